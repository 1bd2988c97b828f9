package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// replay folds recorded groups in the order in which they were folded.
type replay struct {
	cfg   Config
	state *state.State
	// from is the id below which closed runs were not kept.
	from string
	// leaving takes closed rows out of the state; nil: they stay.
	leaving *leaving
	reader  *reader
	last    string // greatest entry
	// renamed are the names that entries get; it may be nil.
	renamed map[string]string
	// keeps has the state keep what has changed from here on.
	keeps bool
	// lost are the groups that were folded and that the ledger does not have any more, a
	// line each.
	lost []string
}

func (cfg Config) newReplay(from string, l *leaving) *replay {
	return &replay{cfg: cfg, state: state.New(cfg.Domain), from: from, leaving: l, reader: cfg.reader()}
}

// drainEvery is after how many groups what is noted of changes is dropped.
const drainEvery = 10_000

// fold folds groups in the order in which they come. What was folded stays folded, also if
// its clock was far ahead, as builds before CLOCK_AHEAD allowed: see [atStoresTime]. Every error is that of a read: a
// group that the ledger does not have is noted as lost.
func (r *replay) fold(ctx context.Context, order []place) error {
	for i, p := range order {
		if i%drainEvery == 0 && !r.keeps {
			r.state.Drain() // what has changed is of no interest, and would stay in memory
		}
		if i%window == 0 {
			if err := r.reader.fetch(ctx, entriesOf(order[i:min(i+window, len(order))])); err != nil {
				return err
			}
		}
		if err := r.group(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) group(ctx context.Context, p place) error {
	g, err := p.group(ctx, r.reader)
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, errNoGroup) {
		r.lost = append(r.lost, fmt.Sprintf("ledger: %s is recorded and not there", p))
		return nil
	}
	if err == nil {
		var gone []string
		gone, err = r.cfg.plansGone(ctx, g)
		r.lost = append(r.lost, gone...)
	}
	if err != nil {
		return fmt.Errorf("replay %s: %w", p, err)
	}
	// A group that was dead and folded later has its later place; the numbers
	// that it had before stay unused.
	r.state.FoldSeq = p.firstSeq - 1
	g.Revision = p.revision
	if to, ok := r.renamed[g.Entry]; ok {
		g.Entry = to
	}
	if p.ahead == nil {
		atStoresTime(g)
		r.last = max(r.last, g.Entry)
		if r.leaving != nil {
			g.Closed = r.leaving.among(fold.Names(g))
		}
	}
	if p.late { // also of runs that were never there, once they could have been and gone
		g.Closed = append(g.Closed, unkept(r.state, g, r.from)...)
	}
	fold.Apply(r.state, g)
	if r.leaving != nil {
		return r.leaving.some(ctx, r.state)
	}
	return nil
}

// maxClaim is how far a timestamp may be ahead of the name of its entry. What the
// compactor folds is at most [ids.MaxAhead] ahead of the time at which the store took
// the entry, and its name is at most a minute behind that.
const maxClaim = 2 * ids.MaxAhead

// atStoresTime corrects the timestamps of a group that was folded although they are
// far ahead. The name of its entry tells the store's time, once it is not ahead itself.
func atStoresTime(g fold.Group) {
	named := event.At(ids.Time(g.Entry))
	event.Clamp(g.Events, named.Add(maxClaim), named)
}

// entriesOf are the entries of groups, each once.
func entriesOf(order []place) []string {
	var entries []string
	for _, p := range order {
		if !p.unread() {
			entries = append(entries, p.entryID())
		}
	}
	slices.Sort(entries)
	return slices.Compact(entries)
}

// plansGone are the plans that a group names and that are not there, a line each: without
// them a run has no tasks. Plans are stored before they are named, and never deleted.
func (cfg Config) plansGone(ctx context.Context, g fold.Group) (lines []string, err error) {
	for ref, p := range g.Plans {
		if p.Err == "" {
			continue
		}
		_, err := cfg.Store.Head(ctx, ref)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			lines = append(lines, fmt.Sprintf("ledger: entry %s, group %s names %s, which is not there", g.Entry, g.ID, ref))
		case err != nil && !errors.Is(err, blob.ErrInvalid):
			return nil, err
		}
	}
	return lines, nil
}

// unkept are the runs that a group names which would not be kept any more.
func unkept(st *state.State, g fold.Group, from string) []string {
	return slices.DeleteFunc(fold.Names(g), func(run string) bool { return run >= from || st.Runs.Get(run) != nil })
}
