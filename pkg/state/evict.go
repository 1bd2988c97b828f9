package state

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// ClosedAfter is the time from the end of a run until the run is closed. The fold rejects reports about a closed run
// as late.
const ClosedAfter = 15 * time.Minute

// Closed reports whether a run is closed at a fold time.
func (r *Run) Closed(now event.Time) bool {
	return r.State.Terminal() && now.Sub(r.CompletedAt) >= ClosedAfter
}

// Closed reports whether a superseded deployment is closed at a fold time.
func (r *Deployment) Closed(now event.Time) bool {
	return r.SupersededAt != 0 && now.Sub(r.SupersededAt) >= ClosedAfter
}

// Cutoff is a history cutoff: it defines which rows are in history and not in the live state. History contains the rows
// that were closed at the fold sequence Seq and the fold time Time. It also contains the rows of the ledger entries
// below Entries, except the rows of waiting dead letters. With the zero Cutoff, every row is in the live state.
type Cutoff struct {
	Seq     int64
	Time    event.Time
	Entries string
	// Runs is a ULID. Closed runs with lower ids have expired: some or all of their rows may have been deleted from
	// history.
	Runs string
	// Partitions is a ULID. The rows of partition_status that runs with lower ids wrote are in history, with one
	// exception: a row stays in the live state as long as an unfinished task of an earlier run may write the same
	// partition. See [State.PartitionsBelow].
	Partitions string
}

// evictable is a row type that defines which of its rows are closed. If stop is true, neither this row nor any row with
// a greater key is closed, and the search ends.
//
// Every eviction with the same cutoff must remove the same rows, no matter when it runs. So the result may depend on
// the row itself, on the cutoff, and on other rows that have not changed since the cutoff. If another row has changed
// since the cutoff, the result may depend on the fact that it has changed, but not on its new content.
type evictable interface {
	evictable(s *State, c *cut) (closed, stop bool)
}

// cut is a cutoff, with values that are computed once for the search in one state.
type cut struct {
	Cutoff
	// competing is the result of [State.competing]. Nil: not computed yet.
	competing map[Key2]string
}

func (r *Run) evictable(_ *State, c *cut) (closed, stop bool) { return r.Closed(c.Time), false }

func (r *RunKeyConflict) evictable(_ *State, c *cut) (closed, stop bool) {
	return c.Time.Sub(r.DetectedAt) >= ClosedAfter, false
}

func (r *Deployment) evictable(_ *State, c *cut) (closed, stop bool) { return r.Closed(c.Time), false }

func (row *Entry) evictable(_ *State, c *cut) (closed, stop bool) {
	return !row.Waits(), row.Entry >= c.Entries
}

// The fold compares the row of a partition with outputs of earlier runs and of the row's own run. So the row
// stays while such an output may still arrive.
func (r *Partition) evictable(s *State, c *cut) (closed, stop bool) { //nolint:unparam // the interface evictable has two results
	if r.RunID >= c.Partitions {
		return false, false
	}
	if c.competing == nil {
		c.competing = s.competing(c.Cutoff)
	}
	run, competes := c.competing[r.Key()]
	return !competes || run > r.RunID, false
}

// competing maps partitions to runs: for each partition that a task had still to write at the cutoff, it returns the
// earliest run of such a task. It considers only runs below c.Partitions.
func (s *State) competing(c Cutoff) map[Key2]string {
	found := map[Key2]string{}
	for t := range s.Tasks.All {
		if t.RunID >= c.Partitions {
			break
		}
		if t.AssetKey == "" || t.State.Terminal() && t.Seq <= c.Seq {
			continue
		}
		for _, partition := range s.PartitionsOf(t) {
			key := Key2{t.AssetKey, partition}
			if _, has := found[key]; !has {
				found[key] = t.RunID
			}
		}
	}
	return found
}

// MaxRunAge is the maximum age of a run's id when the trigger of the run is appended.
const MaxRunAge = 30 * time.Minute

// PartitionsBelow returns [Cutoff.Partitions] for a cutoff with the given [Cutoff.Entries]. No run with an id below the
// result can get tasks in the future. A run may still get tasks if its entry is not folded yet, if it has no plan yet,
// or if its event is a dead letter that waits for a newer build.
func (s *State) PartitionsBelow(entries string) string {
	s.index.waiting.Ascend(Key3{}, func(k Key3) bool {
		if k.A == "" {
			entries = min(entries, k.B)
		}
		return false
	})
	below := ids.AtTime(ids.Time(entries).Add(-MaxRunAge))
	// The id of a request's run contains the time at which the request became PENDING. The oldest request comes first.
	for request := range s.PendingRequests {
		below = min(below, ids.AtTime(request.ReleasedAt.Time()))
		break
	}
	for run := range s.Runs.All {
		if run.RunID >= below {
			break
		}
		if !run.State.Terminal() && run.PlanRef == "" && run.TasksTotal == 0 {
			return run.RunID
		}
	}
	return below
}

// HasEntry reports whether the state has rows of a ledger entry.
func (s *State) HasEntry(entry string) bool {
	found := false
	s.Entries.Ascend(Key2{A: entry}, func(row *Entry) bool {
		found = row.Entry == entry
		return false
	})
	return found
}

// Evict removes the rows that a cutoff assigns to history, and returns them. It does not record these changes. It
// also removes rows whose run the state does not contain, because merged deltas may contain such rows.
func (s *State) Evict(c Cutoff) *Rows {
	if c.Time == 0 {
		return &Rows{}
	}
	search := cut{Cutoff: c}
	return s.rows(func(t store) any { return t.evict(&search) })
}

// evict implements [State.Evict] for one table. Runs are evicted before the tables that depend on them.
func (t *rowTable[K, R, P]) evict(c *cut) any {
	if !t.decl.info.History {
		return nil
	}
	var out []*R
	if _, byRow := any(P(nil)).(evictable); byRow {
		out = t.closed(c)
	} else {
		out = t.closedByRun(c.Cutoff)
	}
	for _, row := range out {
		t.rows.Delete(item[K, R]{key: P(row).Key()})
		if t.decl.indexed {
			dead := *row
			P(&dead).RowMeta().Deleted = true
			any(&dead).(indexed[R]).reindex(t.owner, row) //nolint:errcheck // see indexed
		}
	}
	return listOf(out)
}

// closed returns the rows that are closed according to their method evictable.
func (t *rowTable[K, R, P]) closed(c *cut) (out []*R) {
	for row := range t.All {
		closed, stop := any(row).(evictable).evictable(t.owner, c) //nolint:errcheck // evict has checked the type
		if stop {
			break
		}
		if closed && P(row).RowMeta().Seq <= c.Seq {
			out = append(out, row)
		}
	}
	return out
}

// closedByRun returns the rows whose runs the state does not contain. If a run has a row that stays in the live state,
// closedByRun visits none of its later rows.
func (t *rowTable[K, R, P]) closedByRun(c Cutoff) (out []*R) {
	for from := ""; ; {
		stays := ""
		t.Ascend(t.decl.from(from), func(row *R) bool {
			run := t.decl.info.Text(t.decl.info.Run, P(row))
			if P(row).RowMeta().Seq <= c.Seq && t.owner.Runs.Get(run) == nil {
				out = append(out, row)
				return true
			}
			stays = run
			return false
		})
		if stays == "" {
			return out
		}
		from = stays + "\x00"
	}
}
