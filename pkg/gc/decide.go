package gc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Keep says which superseded versions of a partition are kept: those that are among the newest Versions of their
// partition, the visible one included, and were superseded less than For ago.
type Keep struct {
	Versions int           // 0: 3
	For      time.Duration // 0: 30 days
	// Superseded is how long every superseded version is kept: longer than a plan takes from the state that it is made
	// of to the ledger, and by more than clocks differ. 0: 1 hour. See Rows.Settled.
	Superseded time.Duration
	// Unseen is how long an output is kept that never was visible, and the files of an execution that no commit marker
	// names. 0: 24 hours.
	Unseen time.Duration
	// Logs is how long logs are kept. 0: 90 days.
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
	Updated event.Time // by the store's clock
}

// Materialization is what is stored of one materialization of a partition.
type Materialization struct {
	ID string
	// Marker is the commit marker; its Key is empty if there is none.
	Marker Object
	// Files are the files of all executions.
	Files []Object
	// Winner is the folder of the execution that the marker names. It is needed only where Files has several folders;
	// empty: unknown.
	Winner string
}

// Success is a success of a task that the state records: a version of its partition.
type Success struct {
	RunID, TaskKey, MaterializationID string
	At                                event.Time
	// Seq is the fold sequence number of the success: a revision with this FoldSeq, or a greater one, shows it.
	Seq int64
}

// Rows are what the published state says of the outputs of a partition. They must be read after the listing.
type Rows struct {
	// Visible is the materialization that the partition shows; the zero value: none.
	Visible Success
	// Successes are all successes of the partition that the state records, in any order, live and in history.
	Successes []Success
	// Failed reports whether the state has the task that makes a materialization, and the task has no success.
	Failed func(materialization string) bool
	// Live reports whether a live run makes or reads a materialization.
	Live func(materialization string) bool
	// Settled is the FoldSeq of a revision that was published Keep.Superseded before the time up to which the ledger is
	// known to be folded; 0: there is none. Each plan that is not folded yet was made of that revision or a later one.
	Settled int64
	// RunsFrom is the ULID below which the state does not keep runs that have ended.
	RunsFrom string
}

// Reason says why an object is garbage.
type Reason string

// Reasons.
const (
	Superseded Reason = "superseded" // a version that a later run has replaced, and that the rule keeps no longer
	Unseen     Reason = "unseen"     // an output that never became visible, and never will
	Lost       Reason = "lost"       // files of an execution that another one has beaten, or that failed
	Log        Reason = "log"
	Scratch    Reason = "scratch" // a scratch folder of a worker that died: the caller of Run removes these
)

// Garbage is what may be deleted together, in this order: the commit marker first, so that no marker ever names files
// that are gone.
type Garbage struct {
	Reason  Reason
	Version string // the materialization
	Objects []Object
}

// Decide returns what may be deleted of a partition. It is safe whatever happens after the listing and the rows were
// read, and however much later the deletion comes:
//
//   - What is visible is kept. A version that a later run has superseded never becomes visible again, because the later
//     triggered run counts (fold).
//   - A materialization that no live run makes belongs to a run that has ended, because the rows are younger than the
//     listing and a run is published before its tasks execute. What such a run did not make visible never becomes so.
//   - What a live run reads is kept. A run that is not folded yet was planned of the settled revision or of a later one,
//     which shows a later version (Rows.Settled).
//   - A materialization of which the rows say nothing is kept, unless its run is one that the state does not keep any
//     more. Then it counts as the oldest version: the state may be incomplete, but what supersedes it is known.
func Decide(keep Keep, now event.Time, rows Rows, stored []Materialization) []Garbage {
	versions := rows.versions()
	var garbage []Garbage
	for _, m := range stored {
		if rows.Live(m.ID) {
			continue
		}
		at := slices.IndexFunc(versions, func(s Success) bool { return s.MaterializationID == m.ID })
		unseen := at < 0 && rows.Failed(m.ID)
		if at < 0 && !unseen && m.ID < rows.RunsFrom && now.Sub(m.newest()) >= keep.Unseen {
			at = len(versions)
		}
		switch {
		case m.ID == rows.Visible.MaterializationID:
			garbage = append(garbage, lost(keep, now, m)...)
		case at >= 0 && !rows.outlived(keep, now, versions, at):
			garbage = append(garbage, lost(keep, now, m)...)
		case at >= 0:
			garbage = append(garbage, whole(Superseded, m))
		case unseen && now.Sub(m.newest()) >= keep.Unseen:
			reason := Unseen
			if m.Marker.Key == "" {
				reason = Lost
			}
			garbage = append(garbage, whole(reason, m))
		}
	}
	return garbage
}

// versions are the successes with the visible one, newest first.
func (r *Rows) versions() []Success {
	versions := slices.Clone(r.Successes)
	if r.Visible.MaterializationID != "" {
		versions = append(versions, r.Visible)
	}
	slices.SortFunc(versions, func(a, b Success) int { return b.compare(a) })
	return slices.CompactFunc(versions, func(a, b Success) bool { return a.MaterializationID == b.MaterializationID })
}

// compare orders successes as the fold does that decides which one is visible.
func (s Success) compare(other Success) int {
	return cmp.Or(cmp.Compare(s.RunID, other.RunID), cmp.Compare(s.TaskKey, other.TaskKey))
}

// outlived reports whether the version at an index, newest first, is superseded and the rule does not keep it.
func (r *Rows) outlived(keep Keep, now event.Time, versions []Success, at int) bool {
	if r.Visible.MaterializationID == "" || at < len(versions) && versions[at].compare(r.Visible) >= 0 {
		return false // not superseded
	}
	settled, since := false, r.Visible.At
	for _, later := range versions[:at] {
		settled = settled || r.Settled > 0 && later.Seq <= r.Settled
		since = min(since, later.At)
	}
	return settled && (at >= keep.Versions || now.Sub(since) >= keep.For)
}

// lost returns the files of a kept materialization that its commit marker does not name.
func lost(keep Keep, now event.Time, m Materialization) []Garbage {
	if m.Winner == "" || now.Sub(m.newest()) < keep.Unseen {
		return nil
	}
	var files []Object
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
	g.Objects = append(g.Objects, m.Files...)
	return g
}

// newest is when the last object of the materialization was stored.
func (m *Materialization) newest() event.Time {
	newest := m.Marker.Updated
	for _, f := range m.Files {
		newest = max(newest, f.Updated)
	}
	return newest
}
