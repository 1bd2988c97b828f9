package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// replay folds groups in the recorded order.
type replay struct {
	cfg   Config
	state *state.State
	// from is a run id. The recorded state has dropped closed runs with lower ids, because they have expired.
	from string
	// evictor removes closed rows from the state. If it is nil, closed rows stay in the state.
	evictor *evictor
	reader  *reader
	last    string // the greatest id of a folded entry
	// renamed contains the new names of entries, by their old names. It may be nil.
	renamed map[string]string
	// keeps means that the state must keep the record of its changes, because the changes become a delta.
	keeps bool
	// versions are the versions of partitions that an earlier bare rebuild has created.
	versions versions
	// lost describes the folded groups and their plans that are missing or damaged, one line each.
	lost []string
}

func (cfg Config) newReplay(from string, l *evictor) *replay {
	return &replay{cfg: cfg, state: state.New(cfg.Domain), from: from, evictor: l, reader: cfg.reader()}
}

// drainEvery is the number of groups after which the state's recorded changes are dropped.
const drainEvery = 10_000

// fold folds groups in the given order. It folds even a group whose timestamps are far ahead, if the record says that
// the group was folded: builds without the reason CLOCK_AHEAD folded such groups. See [clampToStoreTime]. fold adds
// missing groups, damaged groups and lost plans to r.lost. It returns all other read errors.
func (r *replay) fold(ctx context.Context, order []place) error {
	for i, p := range order {
		if i%drainEvery == 0 && !r.keeps {
			r.state.Drain() // nothing needs the recorded changes, and they would stay in memory
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
		r.lost = append(r.lost, fmt.Sprintf("ledger: %s is recorded but missing", p))
		return nil
	}
	if archive.Damaged(err) {
		r.lost = append(r.lost, fmt.Sprintf("ledger: %s is recorded but unreadable: %v", p, err))
		return nil
	}
	if err == nil {
		var gone []string
		gone, err = r.reader.lostPlans(ctx, g)
		r.lost = append(r.lost, gone...)
		if g.Reason != "" && !p.dead {
			r.lost = append(r.lost, fmt.Sprintf("ledger: %s was accepted, but is damaged now: %s", p, g.Detail))
		}
	}
	if err != nil {
		return fmt.Errorf("replay %s: %w", p, err)
	}
	// Sequence numbers can have gaps: if a waiting dead letter was folded later, ledger_entries contains only the
	// sequence numbers of the later fold, so those of the first fold stay unused.
	r.state.FoldSeq = p.firstSeq - 1
	g.Revision = p.revision
	if to, ok := r.renamed[g.Entry]; ok {
		g.Entry = to
	}
	if p.ahead == nil {
		clampToStoreTime(g)
		r.last = max(r.last, g.Entry)
		if r.evictor != nil {
			g.Closed = r.evictor.evicted(fold.Names(g))
		}
	}
	if p.late { // a late event may also name a run that has expired and so is unknown
		g.Closed = append(g.Closed, expired(r.state, g, r.from)...)
	}
	r.apply(p, g)
	if r.evictor != nil {
		return r.evictor.afterGroup(ctx, r.state)
	}
	return nil
}

// apply folds a group again, with the same result as the first time. If a bare rebuild folded the group, apply needs
// two facts that the rebuild found in other groups: which state the group's plan observed, and whether a retry in the
// group was accepted.
func (r *replay) apply(p place, g fold.Group) {
	if !p.bare() {
		fold.Apply(r.state, g)
		return
	}
	g.Inputs, g.Bare, g.Proven = r.versions.observedSeqs(g), true, p.folded
	r.versions.note(g, fold.Apply(r.state, g))
}

// maxClaim is how far an event's timestamp may be ahead of the time in the name of the event's entry. A compactor folds
// a timestamp only if it is at most [ids.MaxAhead] ahead of the store's time of the upload, and an entry's name is at
// most a minute behind that time. maxClaim exceeds the sum of both.
const maxClaim = 2 * ids.MaxAhead

// clampToStoreTime corrects timestamps of a folded group that are far ahead. The time in the name of the group's
// entry is close to the store's time. If the name itself was ahead, the entry has been renamed.
func clampToStoreTime(g fold.Group) {
	named := event.At(ids.Time(g.Entry))
	event.Clamp(g.Events, named.Add(maxClaim), named)
}

// entriesOf returns the entries of groups without duplicates.
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

// expired returns the runs that a group names and that the state no longer keeps, because their ids are below minRun.
func expired(st *state.State, g fold.Group, minRun string) []string {
	return slices.DeleteFunc(fold.Names(g), func(run string) bool { return run >= minRun || st.Runs.Get(run) != nil })
}
