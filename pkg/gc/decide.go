package gc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Keep is a retention rule: it says which superseded versions of a partition to keep. A superseded version is kept
// while two conditions hold: it is among the newest versions, and the time since it was superseded is shorter than the
// field For. The field Versions is the number of newest versions, including the visible one.
type Keep struct {
	Versions int           // 0: 3
	For      time.Duration // 0: 30 days
	// Superseded is the minimum time to keep every superseded version. It must be longer than the time between loading
	// the state for a plan and appending its run to the ledger, plus the difference between the clocks. 0: 1 hour. See
	// Rows.Settled.
	Superseded time.Duration
	// Unseen is how long to keep an output that never became visible, and the files of executions that no commit marker
	// names. 0: 24 hours.
	Unseen time.Duration
	// Logs is how long to keep logs. 0: 90 days.
	Logs time.Duration
}

const (
	keepVersions   = 3
	keepFor        = 30 * 24 * time.Hour
	keepSuperseded = time.Hour
	keepUnseen     = 24 * time.Hour
	keepLogs       = 90 * 24 * time.Hour
)

// WithDefaults returns the rule with its defaults filled in.
func (k Keep) WithDefaults() Keep {
	k.Versions = cmp.Or(k.Versions, keepVersions)
	k.For = cmp.Or(k.For, keepFor)
	k.Superseded = cmp.Or(k.Superseded, keepSuperseded)
	k.Unseen = cmp.Or(k.Unseen, keepUnseen)
	k.Logs = cmp.Or(k.Logs, keepLogs)
	return k
}

// Object is a stored object.
type Object struct {
	Key     string
	Size    int64
	Updated event.Time // the time of the last write, by the store's clock
}

// Materialization lists the stored objects of one materialization of a partition.
type Materialization struct {
	ID string
	// Marker is the commit marker. Its Key is empty if the materialization has no marker.
	Marker Object
	// Blocked is the marker of an execution whose output a check has blocked. Its Key is empty if there is no such
	// execution.
	Blocked Object
	// Files lists the files of all executions.
	Files []Object
	// Winner is the folder of the execution that the marker names. It is set only if Files has
	// several folders. Empty: unknown.
	Winner string
	// Approved means that a decision has published the output that Blocked names.
	Approved bool
}

// Success is a recorded success of a task. It is a version of the task's partition.
type Success struct {
	RunID, TaskKey, MaterializationID string
	At                                event.Time
	// Seq is the fold sequence number of the success. Revisions whose FoldSeq is at least Seq show the success.
	Seq int64
}

// Hidden is a decision to hide the visible output of a partition from readers. It is final: readers find nothing until
// a later output becomes visible.
type Hidden struct {
	At event.Time
	// Seq is the fold sequence number of the decision.
	Seq int64
}

// Rows holds the published state of a partition's outputs. Read it after the listing.
type Rows struct {
	// Visible is the partition's visible materialization. Zero: it has none.
	Visible Success
	// Hidden is a person's decision to hide the visible materialization. Zero: nobody has hidden it.
	Hidden Hidden
	// Successes lists all recorded successes of the partition and approvals of its candidates, live and
	// in history, in any order.
	Successes []Success
	// Failed reports whether the state contains the task of a materialization and the task did not succeed.
	Failed func(materialization string) bool
	// Live reports whether a live run writes or reads a materialization, or whether the materialization waits in
	// quarantine for a decision.
	Live func(materialization string) bool
	// Settled is the FoldSeq of a revision that was published at least Keep.Superseded before the time up to which the
	// ledger is known to be folded. Every plan that is not folded yet was built from that revision or a later one. 0:
	// there is no such revision.
	Settled int64
	// RunsFrom is a ULID. The state no longer contains ended runs with lower ids.
	RunsFrom string
}

// Reason says why an object is garbage.
type Reason string

// Reasons.
const (
	Superseded Reason = "superseded" // a later run replaced the version, and the retention rule no longer protects it
	Unseen     Reason = "unseen"     // an output that never became visible, and cannot become visible any more
	Lost       Reason = "lost"       // files of an execution that failed, or that lost against another execution
	Log        Reason = "log"
	Merged     Reason = "merged"  // a merged copy of a deleted output, or a merged copy that no index names
	Scratch    Reason = "scratch" // a scratch folder of a dead worker, deleted by the caller of Run
)

// Garbage lists objects to delete together. The markers come first, so that no marker ever names
// deleted files.
type Garbage struct {
	Reason  Reason
	Version string // the materialization
	Objects []Object
}

// Decide returns the objects of a partition that may be deleted. Deleting them is safe at any later time, whatever
// has happened after the objects were listed and the rows were read:
//
//   - The visible version stays, unless a mark hides it. A hidden version stays hidden. A superseded
//     version never becomes visible again, because the fold prefers the run that was triggered later.
//   - A listed materialization that no live run writes belongs to an ended run: the rows are
//     newer than the listing, and a run is published before its tasks execute. An output that is
//     not visible when its run has ended never becomes visible, unless it waits in quarantine.
//     Outputs in quarantine stay.
//   - Inputs of live runs stay. A run that is not folded yet reads no deleted version: it was planned from the settled
//     revision or a later one (Rows.Settled), and a version is deleted only if the settled revision already shows a
//     later version.
//   - A materialization without rows stays, because the state may be incomplete. If its run is older than RunsFrom,
//     however, it is treated as the oldest version: deleting it is safe, because a later version is known.
func Decide(keep Keep, now event.Time, rows Rows, stored []Materialization) []Garbage {
	versions := rows.versions()
	var garbage []Garbage
	for _, m := range stored {
		switch reason, of := rows.judge(keep, now, versions, &m); of {
		case wholly:
			garbage = append(garbage, whole(reason, m))
		case onlyLost:
			garbage = append(garbage, lost(keep, now, m)...)
		case nothing:
		}
	}
	return garbage
}

// DecideBatch returns the objects of a batch that may be deleted. The parameter cells contains the rows of its
// partitions. A batch is deleted only as a whole, when every one of its partitions may be deleted, because one marker
// names the files of all of them.
func DecideBatch(keep Keep, now event.Time, cells []Rows, m Materialization) []Garbage {
	var reason Reason
	decided := nothing
	for i := range cells {
		why, of := cells[i].judge(keep, now, cells[i].versions(), &m)
		if i == 0 {
			reason, decided = why, of
		}
		decided = min(decided, of)
	}
	switch decided {
	case wholly:
		return []Garbage{whole(reason, m)}
	case onlyLost:
		return lost(keep, now, m)
	case nothing:
	}
	return nil
}

// garbageOf says which objects of a materialization are garbage.
type garbageOf int

const (
	nothing  garbageOf = iota
	onlyLost           // files of executions that the commit marker does not name
	wholly
)

// judge returns which objects of a materialization are garbage, and why. v has the versions of the partition.
func (r *Rows) judge(keep Keep, now event.Time, v *versions, m *Materialization) (Reason, garbageOf) {
	if r.Live(m.ID) {
		return "", nothing
	}
	at, succeeded := v.place[m.ID]
	unseen := !succeeded && r.Failed(m.ID)
	oldest := !succeeded && !unseen && m.ID < r.RunsFrom && now.Sub(m.newest()) >= keep.Unseen
	if oldest {
		at = len(v.list)
	}
	switch {
	case m.ID == r.Visible.MaterializationID && !r.hiddenFor(keep, now):
		return "", onlyLost
	case (succeeded || oldest) && m.ID != r.Visible.MaterializationID && !r.outlived(keep, now, v, at):
		return "", onlyLost
	case succeeded, oldest:
		return Superseded, wholly
	case unseen && now.Sub(m.newest()) >= keep.Unseen:
		if m.Marker.Key == "" && m.Blocked.Key == "" {
			return Lost, wholly
		}
		return Unseen, wholly
	}
	return "", nothing
}

// versions are the successes of a partition and its visible version.
type versions struct {
	list  []Success      // newest first
	place map[string]int // the index of each materialization in list
	// settled is the index of the first version in list that is older than the newest settled version. If no version is
	// settled, it is len(list)+1.
	settled int
	// since[n] is when the version at index n was superseded: the earliest of the times of the visible version and of the
	// newer versions, list[:n].
	since []event.Time
}

// versions returns the versions of the partition.
func (r *Rows) versions() *versions {
	list := slices.Clone(r.Successes)
	if r.Visible.MaterializationID != "" {
		list = append(list, r.Visible)
	}
	slices.SortFunc(list, func(a, b Success) int { return b.compare(a) })
	list = slices.CompactFunc(list, func(a, b Success) bool { return a.MaterializationID == b.MaterializationID })
	v := &versions{list: list, place: make(map[string]int, len(list)), settled: len(list) + 1, since: []event.Time{r.Visible.At}}
	for i, s := range list {
		if _, has := v.place[s.MaterializationID]; !has {
			v.place[s.MaterializationID] = i
		}
		if r.Settled > 0 && s.Seq <= r.Settled {
			v.settled = min(v.settled, i+1)
		}
		v.since = append(v.since, min(v.since[i], s.At))
	}
	return v
}

// compare defines the order of successes that the fold uses when it selects the visible version.
func (s Success) compare(other Success) int {
	return cmp.Or(cmp.Compare(s.RunID, other.RunID), cmp.Compare(s.TaskKey, other.TaskKey))
}

// outlived reports whether the version at an index of v.list is superseded and no longer protected by keep. The index
// len(v.list) means a version that is older than every version in the list.
func (r *Rows) outlived(keep Keep, now event.Time, v *versions, at int) bool {
	if r.Visible.MaterializationID == "" || at < len(v.list) && v.list[at].compare(r.Visible) >= 0 {
		return false // not superseded
	}
	return at >= v.settled && (at >= keep.Versions || now.Sub(v.since[at]) >= keep.For)
}

// hiddenFor reports whether the visible version is hidden, and no longer protected by keep.
func (r *Rows) hiddenFor(keep Keep, now event.Time) bool {
	return r.Hidden.Seq > 0 && r.Settled > 0 && r.Hidden.Seq <= r.Settled && now.Sub(r.Hidden.At) >= keep.For
}

// lost returns the files of a kept materialization that its commit marker does not name.
func lost(keep Keep, now event.Time, m Materialization) []Garbage {
	if m.Winner == "" || now.Sub(m.newest()) < keep.Unseen {
		return nil
	}
	var files []Object
	if m.Blocked.Key != "" && !m.Approved {
		files = append(files, m.Blocked)
	}
	for _, f := range m.Files {
		if !strings.HasPrefix(f.Key, m.Winner) {
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil
	}
	return []Garbage{{Reason: Lost, Version: m.ID, Objects: files}}
}

func whole(reason Reason, m Materialization) Garbage {
	g := Garbage{Reason: reason, Version: m.ID}
	if m.Marker.Key != "" {
		g.Objects = append(g.Objects, m.Marker)
	}
	if m.Blocked.Key != "" {
		g.Objects = append(g.Objects, m.Blocked)
	}
	g.Objects = append(g.Objects, m.Files...)
	return g
}

// newest returns when the last object of the materialization was stored.
func (m *Materialization) newest() event.Time {
	newest := max(m.Marker.Updated, m.Blocked.Updated)
	for _, f := range m.Files {
		newest = max(newest, f.Updated)
	}
	return newest
}
