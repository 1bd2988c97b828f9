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
	// of to the ledger. 0: 1 hour.
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
}

// Rows are what the published state says of the outputs of a partition. They must be read after the listing.
type Rows struct {
	// Visible is the materialization that the partition shows; the zero value: none.
	Visible Success
	// Successes are all successes of the partition that the state records, in any order, live and in history.
	Successes []Success
	// Live reports whether a live run makes or reads a materialization.
	Live func(materialization string) bool
}

// Reason says why an object is garbage.
type Reason string

// Reasons.
const (
	Superseded Reason = "superseded" // a version that a later run has replaced, and that the rule keeps no longer
	Unseen     Reason = "unseen"     // an output that never became visible, and never will
	Lost       Reason = "lost"       // files of an execution that another one has beaten, or that failed
	Log        Reason = "log"
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
//   - What a live run reads is kept. A later run plans with the visible version, and not with this one. A run that was
//     planned before the version was superseded, and triggered after the rows were read, has Keep.Superseded for that.
func Decide(keep Keep, now event.Time, rows Rows, stored []Materialization) []Garbage {
	versions := slices.Clone(rows.Successes)
	slices.SortFunc(versions, func(a, b Success) int { return b.compare(a) }) // newest first
	versions = slices.CompactFunc(versions, func(a, b Success) bool { return a.MaterializationID == b.MaterializationID })
	var garbage []Garbage
	for _, m := range stored {
		if rows.Live(m.ID) {
			continue
		}
		at := slices.IndexFunc(versions, func(s Success) bool { return s.MaterializationID == m.ID })
		switch {
		case m.ID == rows.Visible.MaterializationID:
			garbage = append(garbage, lost(keep, now, m)...)
		case at >= 0 && keeps(keep, now, rows, versions, at):
			garbage = append(garbage, lost(keep, now, m)...)
		case at >= 0:
			garbage = append(garbage, whole(Superseded, m))
		case now.Sub(m.newest()) >= keep.Unseen:
			reason := Unseen
			if m.Marker.Key == "" {
				reason = Lost
			}
			garbage = append(garbage, whole(reason, m))
		}
	}
	return garbage
}

// compare orders successes as the fold does that decides which one is visible.
func (s Success) compare(other Success) int {
	return cmp.Or(cmp.Compare(s.RunID, other.RunID), cmp.Compare(s.TaskKey, other.TaskKey))
}

// keeps reports whether the version at an index, newest first, is kept.
func keeps(keep Keep, now event.Time, rows Rows, versions []Success, at int) bool {
	if rows.Visible.MaterializationID == "" || versions[at].compare(rows.Visible) >= 0 {
		return true // not superseded
	}
	superseded := rows.Visible.At
	for _, later := range versions[:at] {
		superseded = min(superseded, later.At)
	}
	age := now.Sub(superseded)
	return age < keep.Superseded || at < keep.Versions && age < keep.For
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
