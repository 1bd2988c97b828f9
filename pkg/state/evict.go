package state

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// ClosedAfter is how long after its end a run is closed. Later reports about it are rejected as
// late.
const ClosedAfter = 15 * time.Minute

// Closed reports whether a run is closed at a fold time.
func (r *Run) Closed(now event.Time) bool {
	return r.State.Terminal() && now.Sub(r.CompletedAt) >= ClosedAfter
}

// Cutoff is a history cutoff: it defines which rows are in history and not in the live state. These
// are the rows that were closed at a fold sequence and time, and the rows of ledger entries below
// a ULID except waiting dead letters. The zero Cut leaves every row in the live state.
type Cutoff struct {
	Seq     int64
	Time    event.Time
	Entries string
	// Runs is a ULID. Closed runs below it are not kept: history has all, some or none of their
	// rows.
	Runs string
}

// evictable is a row type that defines which of its rows are closed. stop ends the search in the
// order of the keys: no further row is closed.
type evictable interface {
	evictable(c Cutoff) (closed, stop bool)
}

func (r *Run) evictable(c Cutoff) (closed, stop bool) { return r.Closed(c.Time), false }

func (r *RunKeyConflict) evictable(c Cutoff) (closed, stop bool) {
	return c.Time.Sub(r.DetectedAt) >= ClosedAfter, false
}

func (r *Deployment) evictable(c Cutoff) (closed, stop bool) {
	return r.SupersededAt != 0 && c.Time.Sub(r.SupersededAt) >= ClosedAfter, false
}

func (row *Entry) evictable(c Cutoff) (closed, stop bool) {
	return !row.Waits(), row.Entry >= c.Entries
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

// Evict removes and returns the rows that a cutoff assigns to history. It records no changes. It
// also removes the rows of runs that the state does not have: merged deltas may contain them.
func (s *State) Evict(c Cutoff) *Rows {
	if c.Time == 0 {
		return &Rows{}
	}
	return s.rows(func(t store) any { return t.evict(c) })
}

// evict is Evict for one table. Runs are evicted before the tables that depend on them.
func (t *Table[K, R, P]) evict(c Cutoff) any {
	if !t.decl.info.History {
		return nil
	}
	var out []*R
	if _, byRow := any(P(nil)).(evictable); byRow {
		out = t.closed(c)
	} else {
		out = t.closedByRun(c)
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

// closed returns the rows that their method evictable calls closed.
func (t *Table[K, R, P]) closed(c Cutoff) (out []*R) {
	for row := range t.All {
		closed, stop := any(row).(evictable).evictable(c) //nolint:errcheck // checked by evict
		if stop {
			break
		}
		if closed && P(row).RowMeta().Seq <= c.Seq {
			out = append(out, row)
		}
	}
	return out
}

// closedByRun returns the rows of runs that the state does not have. Of the other runs it visits
// the first row only.
func (t *Table[K, R, P]) closedByRun(c Cutoff) (out []*R) {
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
