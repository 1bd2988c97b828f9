package sim

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

// rush stores an entry like a writer that ignores the store's clock: the name, the ids or the timestamps of the
// entry, or all of them, are far ahead. The entry must have no effect.
func (c *client) rush(ctx context.Context, e *clientEngine) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	right := c.p.machine.w.now() // the right time; the client's own clock may be ahead
	ahead := right.Add(farAhead(c.rng))
	name, id, at := right, right, right
	which := c.rng.IntN(4)
	if which == 0 || which == 3 {
		name = ahead
	}
	if which == 1 || which == 3 {
		id = ahead
	}
	if which == 2 || which == 3 {
		at = ahead
	}
	payload := c.rushed(e.domain, snap.State, event.At(at))
	data, err := event.Encode(nil, &event.Envelope{
		ID: ids.NewSource(func() time.Time { return id }, c.p.entropy).New(), Time: event.At(at),
		Domain: e.domain, Source: e.domain.Source(), Payload: payload,
	})
	if err != nil {
		return err
	}
	entry := ids.NewSource(func() time.Time { return name }, c.p.entropy).New()
	c.p.machine.w.rushed.Store(entry, true)
	_, err = store{c.p}.Create(ctx, ledger.Key(e.domain, entry), data)
	return err
}

// rushed returns the event of an entry that is far ahead. Folding it would do harm, because it is a final failure of a
// live task, or a limit of one slot.
func (c *client) rushed(d ids.Domain, st *state.State, at event.Time) event.Payload {
	for t := range st.Tasks.All {
		if t.State.Terminal() || t.Attempt < 1 || t.Kind == event.KindGroup || c.rng.IntN(3) > 0 {
			continue
		}
		ref := event.AttemptRef{
			RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: ids.AttemptID(d, t.RunID, t.TaskKey, t.Attempt), WorkerID: "rush",
		}
		return &event.TaskFinished{
			AttemptRef: ref, Outcome: event.Failed, Error: &event.Error{Code: "GHOST", Message: "a report that is far ahead"},
			StartedAt: at, CompletedAt: at,
		}
	}
	return &event.LimitSet{CommandID: "rush", Scope: event.ScopePool, Name: pools[3], Slots: 1}
}
