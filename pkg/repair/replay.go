package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

// replayed is what the ledger says in its recorded order.
type replayed struct {
	state *state.State
	// lost are the groups that were folded and that the ledger does not have any more;
	// problems is what else speaks against the record: a line each.
	lost, problems []string
}

// drainEvery is after how many groups what is noted of changes is dropped.
const drainEvery = 10_000

// replay folds recorded groups in the order in which they were folded, where closed runs
// below an id were not kept. It sorts them. What leaves the state on the way goes to l,
// which may be nil: then nothing does.
//
// What was folded stays folded, also if its clock was far ahead, as builds before
// CLOCK_AHEAD allowed: see [atStoresTime]. Entries get the names of renamed, which may
// be nil.
func (cfg Config) replay(ctx context.Context, order []place, from string, l *leaving, renamed map[string]string) (replayed, error) {
	out := replayed{state: state.New(cfg.Domain), problems: inOrder(order)}
	r := cfg.reader()
	for i, p := range order {
		if i%drainEvery == 0 {
			out.state.Drain() // what has changed is of no interest, and would stay in memory
		}
		g, err := p.group(ctx, r)
		if errors.Is(err, blob.ErrNotFound) || errors.Is(err, errNoGroup) {
			out.lost = append(out.lost, fmt.Sprintf("ledger: %s is recorded and not there", p))
			continue
		}
		if err == nil {
			var gone []string
			gone, err = cfg.plansGone(ctx, g)
			out.lost = append(out.lost, gone...)
		}
		if err != nil {
			return replayed{}, err
		}
		// A group that was dead and folded later has its later place; the numbers
		// that it had before stay unused.
		out.state.FoldSeq = p.firstSeq - 1
		g.Revision = p.revision
		if to, ok := renamed[g.Entry]; ok {
			g.Entry = to
		}
		if p.ahead != nil { // by a build that may have known fewer of its events
			g.Reason, g.Detail, g.Events = p.ahead.reason, p.ahead.detail, g.Events[:min(int(p.events), len(g.Events))]
		} else {
			atStoresTime(g)
		}
		if l != nil {
			g.Closed = l.among(fold.Names(g))
		}
		if p.late { // also of runs that were never there, once they could have been and gone
			g.Closed = append(g.Closed, unkept(out.state, g, from)...)
		}
		fold.Apply(out.state, g)
		if l != nil {
			l.some(out.state)
		}
	}
	return out, nil
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

var errNoGroup = errors.New("the entry has no such group")

// reader reads groups of the ledger and its archive; it keeps the last entry, whose
// groups were mostly folded one after the other.
type reader struct {
	cfg     Config
	entries *archive.Reader
	entry   string
	groups  []fold.Group
}

func (cfg Config) reader() *reader {
	return &reader{cfg: cfg, entries: archive.NewReader(cfg.Store, cfg.Domain)}
}

func (r *reader) load(ctx context.Context, entry string) error {
	if r.entry == entry {
		return nil
	}
	data, err := r.entries.Read(ctx, entry)
	if g, refused := compactor.RefusedRead(entry, err); refused {
		r.entry, r.groups = entry, []fold.Group{g}
		return nil
	}
	if err != nil {
		return r.skip(ctx, entry, err)
	}
	return r.take(ctx, entry, data)
}

// skip goes on without an entry that cannot be read, if an operator has decided so. The
// error is otherwise that of reading it.
func (r *reader) skip(ctx context.Context, entry string, failed error) error {
	if errors.Is(failed, blob.ErrNotFound) || ctx.Err() != nil {
		return failed
	}
	skip, err := ledger.ReadSkip(ctx, r.cfg.Store, r.cfg.Domain, entry)
	if skip == nil {
		return errors.Join(failed, err)
	}
	r.entry, r.groups = entry, []fold.Group{compactor.Skipped(*skip)}
	return nil
}

// take goes on with an entry whose bytes are at hand.
func (r *reader) take(ctx context.Context, entry string, data []byte) error {
	groups := compactor.Decode(entry, data)
	if err := compactor.FetchPlans(ctx, r.cfg.Store, r.cfg.Domain, groups); err != nil {
		return r.skip(ctx, entry, err)
	}
	r.entry, r.groups = entry, groups
	return nil
}

func (r *reader) group(ctx context.Context, entry, group string) (fold.Group, error) {
	if err := r.load(ctx, entry); err != nil {
		return fold.Group{}, err
	}
	for _, g := range r.groups {
		if g.ID == group {
			return g, nil
		}
	}
	return fold.Group{}, errNoGroup
}
