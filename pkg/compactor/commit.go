package compactor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// publication is the content of one manifest.
type publication struct {
	groups  []fold.Group
	barrier bool
	// proven waits until handed-over entries have been compared with the stored ones, and returns an error that wraps
	// errUnproven if they may differ. If proven is nil, there is nothing to compare.
	proven func() error
	// caughtUp is the time of a listing of the ledger, if this publication folds the last entries that the listing has
	// found; otherwise 0.
	caughtUp event.Time
	// complete is the id up to which the whole ledger is folded, or "".
	complete string
	swept    wakeup.Swept
}

// errStateChanged means that another writer has published a state that may not descend from the state with which the
// step began. The new state may lack entries that the step has not listed, so the step must start over.
var errStateChanged = errors.New("another writer has published a different state meanwhile")

// commit calls prepare with the current state, and publishes the state that prepare returns. If another writer
// publishes first, commit loads the other writer's state. If this new state is known to descend from the old one,
// commit calls prepare again; otherwise it returns errStateChanged. If prepare returns no state, there is nothing to
// publish.
func (c *Compactor) commit(ctx context.Context, prepare func() (*state.State, publication, error)) error {
	for {
		work, p, err := prepare()
		if err != nil || work == nil {
			return err
		}
		err = c.timed(PhasePublish, func() error { return c.publish(ctx, work, p) })
		if !errors.Is(err, manifest.ErrConflict) && !errors.Is(err, manifest.ErrNotCommitted) {
			return err
		}
		first := c.manifest == nil
		follows, err := c.reload(ctx)
		if err != nil {
			return err
		}
		if !follows && !first {
			return fmt.Errorf("publish %s: %w", c.cfg.Domain, errStateChanged)
		}
	}
}

// foldAndPublish folds groups, publishes the result, and returns the number of groups that were
// folded for the first time.
func (c *Compactor) foldAndPublish(ctx context.Context, p publication) (n int, err error) {
	ctx, traced := c.traceFold(ctx, p.groups)
	defer func() { traced.end(ctx, c.current().Revision, n, err) }()
	err = c.commit(ctx, func() (*state.State, publication, error) {
		work := c.state.Copy()
		err = c.timed(PhaseFold, func() error { n, err = c.fold(ctx, work, p); return err })
		if err != nil || n == 0 {
			return nil, p, err
		}
		if p.proven != nil {
			err = p.proven()
		}
		return work, p, err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// fold applies the groups of p to work, a copy of the state. After a group that created runs, it also applies the
// dead letters that waited for these runs. It returns the number of groups that were folded for the first time.
func (c *Compactor) fold(ctx context.Context, work *state.State, p publication) (int, error) {
	n := 0
	revision := c.current().Revision + 1
	queue := slices.Clone(p.groups)
	for len(queue) > 0 {
		g := queue[0]
		queue = queue[1:]
		g.Revision = revision
		if c.inHistory(work, g) {
			continue
		}
		var err error
		if g.Closed, err = c.closed(ctx, work, g); err != nil {
			return 0, err
		}
		r := fold.Apply(work, g)
		if r.Known {
			continue
		}
		n++
		if r.Row.Outcome == state.DeadLetter && r.Row.RunID != "" && !p.barrier {
			return 0, errNeedBarrier
		}
		for _, run := range r.Appeared {
			redriven, err := c.waiting(ctx, work, run)
			if err != nil {
				return 0, err
			}
			queue = append(redriven, queue...)
		}
	}
	return n, nil
}

// closed returns those runs of a group whose rows are only in history.
//
// If history is damaged, the fold continues. A trigger of a run that may be in history does not create the run again.
// Other events that name such a run wait as if the run were unknown.
func (c *Compactor) closed(ctx context.Context, work *state.State, g fold.Group) ([]string, error) {
	var closed []string
	for _, run := range fold.Names(g) {
		if work.Runs.Get(run) != nil {
			continue
		}
		has, err := snapshot.HistoryOf(c.cfg.Codec, c.cfg.Manifests, c.manifest).Has(ctx, run)
		if manifest.Damaged(err) {
			if live, liveErr := c.cfg.Manifests.Live(ctx, c.manifest); liveErr == nil && live {
				c.cfg.Logger.ErrorContext(ctx, "history is damaged; run `servo admin rebuild`",
					slog.String("domain", c.cfg.Domain.String()), slog.Any("error", err))
				has, err = fold.Begins(g, run), nil
			}
		}
		if err != nil {
			return nil, err
		}
		if has {
			closed = append(closed, run)
		}
	}
	return closed, nil
}

// waiting returns the groups that became dead letters because the state did not contain the run yet.
func (c *Compactor) waiting(ctx context.Context, work *state.State, run string) ([]fold.Group, error) {
	var groups []fold.Group
	archived := archive.NewReader(c.cfg.Store, c.cfg.Domain)
	for _, key := range work.Waiting(run) {
		all, err := c.decode(ctx, Entry{ID: key.A, refused: true}, archived)
		if err == nil {
			all = slices.DeleteFunc(all, func(g fold.Group) bool { return g.ID != key.B })
			err = FetchPlans(ctx, c.cfg.Store, c.cfg.Domain, all)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // the group stays a dead letter, which the next barrier tries again
			c.cfg.Logger.WarnContext(ctx, "the entry of a dead letter cannot be read, although its run has appeared; will retry",
				slog.String("domain", c.cfg.Domain.String()), slog.String("entry", key.A), slog.Any("error", err))
			delete(c.tried, key.A)
			continue
		}
		groups = append(groups, all...)
	}
	return groups, nil
}

// publishWakeups is called at the end of a step that a sweep has requested. It publishes the minute up to which
// wakeups may be deleted, and the next wakeup of the domain. If the current manifest already contains both, it
// publishes nothing.
func (c *Compactor) publishWakeups(ctx context.Context, r Request) error {
	if c.manifest == nil {
		return nil
	}
	err := c.commit(ctx, func() (*state.State, publication, error) {
		now := event.At(c.cfg.Clock.Now())
		p := publication{swept: wakeup.After(c.state, now, r.Through, c.unannounced)}
		if c.wakeups.Next(c.manifest.Wakeup, c.state, now, p.swept) == c.manifest.Wakeup {
			return nil, p, nil
		}
		return c.state.Copy(), p, nil
	})
	if err == nil {
		c.unannounced = false
	}
	return err
}

// flushRounds limits the rounds of a flush, because the publish of a merge may start another merge.
const flushRounds = 3

// flush waits for running merges and publishes their results.
func (c *Compactor) flush(ctx context.Context) error {
	for range flushRounds {
		c.AwaitMerges()
		published := false
		err := c.commit(ctx, func() (*state.State, publication, error) {
			if published = c.tiers.Ready(); !published {
				return nil, publication{}, ctx.Err()
			}
			return c.state.Copy(), publication{}, ctx.Err()
		})
		if errors.Is(err, errStateChanged) {
			err = nil // the merges belong to another timeline, and are dropped
		}
		if err != nil || !published {
			return err
		}
	}
	return nil
}

// AwaitMerges waits until no merge runs. It is for tests, and for callers that need exclusive use of the store.
func (c *Compactor) AwaitMerges() { c.tiers.AwaitMerges() }
