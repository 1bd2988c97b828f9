package state

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// MissKept is how long a missed deadline stays open. Outputs that are made after this period do not close it.
const MissKept = 30 * 24 * time.Hour

// Promise is a row of deadlines: the deadline, the freshness limit and the SLAs that the current release declares for
// an asset.
type Promise struct {
	AssetKey string `col:"asset_key,key"`
	// Version identifies the deadline. Spec is the event.Deadline as JSON. Both are "" if the asset has no deadline.
	Version string `col:"version,null"`
	Spec    string `col:"spec,null"`
	// Period is the period (a value of the time dimension) whose deadline is DueAt. NextAt is when the fold requests a
	// verdict about the deadline. WantedAt is the time since which the fold waits for the verdict of an automator. While
	// the fold waits, NextAt is 0.
	Period   string     `col:"period,null"`
	DueAt    event.Time `col:"due_at,null"`
	NextAt   event.Time `col:"next_at,null"`
	WantedAt event.Time `col:"wanted_at,null"`
	// Error says why an automator could not judge the deadline. An automator tries again at NextAt. Errors counts
	// consecutive errors.
	Error  string `col:"error,null"`
	Errors int32  `col:"errors"`
	// MaxLagSec is how old the newest output may be. DataAt is when that output was made; if the fold knows no output,
	// it is when the freshness limit was deployed. LagAt is when the output becomes too old. It is 0 if the output is
	// already too old, or if no freshness limit is declared.
	MaxLagSec int64      `col:"max_lag_sec"`
	DataAt    event.Time `col:"data_at,null"`
	LagAt     event.Time `col:"lag_at,null"`
	RunSec    int64      `col:"sla_run_sec"`
	TaskSec   int64      `col:"sla_task_sec"`
	Meta
}

// Key returns the primary key.
func (r *Promise) Key() string { return r.AssetKey }

func (*Promise) newTable() store { return new(rowTable[string, Promise, *Promise]) }

// DeadlineMiss is a row of deadline_misses: a period whose deadline was missed.
type DeadlineMiss struct {
	MissID   string     `col:"miss_id,key"`
	AssetKey string     `col:"asset_key,dict"`
	Period   string     `col:"period,null"`
	DueAt    event.Time `col:"due_at"`
	// Missing is a JSON list of partitions that have had no output since the deadline was missed. An automator makes the
	// list, and More is the number of missing partitions that it did not list. When all listed partitions have an
	// output, an automator lists the other ones that are still missing.
	Missing  string     `col:"missing,null"`
	More     int64      `col:"more"`
	MissedAt event.Time `col:"missed_at"`
	// MetAt is when every missing partition had a newer output, or when the deadline was removed.
	MetAt event.Time `col:"met_at,null"`
	Meta
}

// Key returns the primary key.
func (r *DeadlineMiss) Key() string { return r.MissID }

func (*DeadlineMiss) newTable() store { return new(rowTable[string, DeadlineMiss, *DeadlineMiss]) }

// Open reports whether the miss is open: newer outputs of its partitions can still close it.
func (r *DeadlineMiss) Open(now event.Time) bool {
	return r.MetAt == 0 && now.Sub(r.MissedAt) < MissKept
}

// Unnamed reports whether an automator has to list further missing partitions: all partitions in Missing have got an
// output, but partitions that were only counted in the field More may still be missing.
func (r *DeadlineMiss) Unnamed() bool { return r.MetAt == 0 && r.Missing == "" && r.More > 0 }

func (r *DeadlineMiss) evictable(_ *State, c *cut) (closed, stop bool) {
	return r.MetAt != 0 && c.Time.Sub(r.MetAt) >= ClosedAfter || !r.Open(c.Time) && r.MetAt == 0, false
}

// Kinds of watches. The kind of a watch is the first column of its key.
const (
	watchDeadline = "d"
	watchLag      = "f"
	watchRun      = "r"
	watchTask     = "t"
)

// Watch is a time at which a promise is judged. Asset is set for a deadline; Asset and Lag are set for a freshness
// limit. RunID is set for the SLA of a run; RunID and TaskKey are set for the SLA of a task.
type Watch struct {
	Asset          string
	Lag            bool
	RunID, TaskKey string
}

func (w Watch) key() Key3 {
	switch {
	case w.TaskKey != "":
		return Key3{watchTask, w.RunID, w.TaskKey}
	case w.RunID != "":
		return Key3{watchRun, w.RunID, ""}
	case w.Lag:
		return Key3{watchLag, w.Asset, ""}
	}
	return Key3{watchDeadline, w.Asset, ""}
}

func watchOf(k Key3) Watch {
	switch k.A {
	case watchTask, watchRun:
		return Watch{RunID: k.B, TaskKey: k.C}
	}
	return Watch{Asset: k.B, Lag: k.A == watchLag}
}

// setWatch moves a watch in the index of times from one time to another. The time 0 means that the watch is not in
// the index.
func (x *index) setWatch(w Watch, was, is event.Time) {
	if was == is {
		return
	}
	if was != 0 {
		x.automation.wake.Delete(wakeItem{at: was, watch: w.key()})
	}
	if is != 0 {
		x.automation.wake.Set(wakeItem{at: is, watch: w.key()})
	}
}

func (r *Promise) reindex(s *State, old *Promise) {
	var was, is Promise
	if old != nil {
		was = *old
	}
	if !r.Deleted {
		is = *r
	}
	s.index.setWatch(Watch{Asset: r.AssetKey}, was.NextAt, is.NextAt)
	s.index.setWatch(Watch{Asset: r.AssetKey, Lag: true}, was.LagAt, is.LagAt)
	if was.WantedAt != 0 {
		s.index.alerting.wanted.Delete(timedItem{at: was.WantedAt, id: r.AssetKey})
	}
	if is.WantedAt != 0 {
		s.index.alerting.wanted.Set(timedItem{at: is.WantedAt, id: r.AssetKey})
	}
}

func (r *DeadlineMiss) reindex(s *State, old *DeadlineMiss) {
	key := Key2{r.AssetKey, r.MissID}
	if old != nil && old.MetAt == 0 {
		s.index.alerting.misses.Delete(key)
	}
	if !r.Deleted && r.MetAt == 0 {
		s.index.alerting.misses.Set(key)
	}
	if old != nil && old.Unnamed() {
		s.index.alerting.unnamed.Delete(key)
	}
	if !r.Deleted && r.Unnamed() {
		s.index.alerting.unnamed.Set(key)
	}
}

// WantedDeadlines yields the deadlines that wait for a verdict, the longest wait first.
func (s *State) WantedDeadlines(yield func(*Promise) bool) {
	s.index.alerting.wanted.Scan(func(item timedItem) bool { return yield(s.Promises.Get(item.id)) })
}

// UnnamedMisses yields the open misses whose further missing partitions an automator has to list.
func (s *State) UnnamedMisses(yield func(*DeadlineMiss) bool) {
	s.index.alerting.unnamed.Scan(func(k Key2) bool {
		row := s.DeadlineMisses.Get(k.B)
		return !row.Open(s.FoldTime) || yield(row)
	})
}

// MissesOf returns the misses of an asset without MetAt, oldest first.
func (s *State) MissesOf(asset string) (misses []*DeadlineMiss) {
	s.index.alerting.misses.Ascend(Key2{A: asset}, func(k Key2) bool {
		if k.A != asset {
			return false
		}
		misses = append(misses, s.DeadlineMisses.Get(k.B))
		return true
	})
	return misses
}

// sla returns the time at which the SLA of the task is judged; 0 if there is none or the task has ended.
func (row *Task) sla() event.Time {
	if row == nil || row.Deleted || row.State.Terminal() {
		return 0
	}
	return row.SLAAt
}

func (row *Run) sla() event.Time {
	if row == nil || row.Deleted || row.State.Terminal() {
		return 0
	}
	return row.SLAAt
}
