package sim

import (
	"context"
	"errors"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// limit sets the limit of a pool or of the workspace, removes it, or applies the limits of a servo.yaml that contains
// only this limit. Normally, the workspace gets four times as many slots as a pool.
func (c *client) limit(ctx context.Context, e *engine.Engine, a ask) error {
	const applies, removes = 14, 12 // a.slots is 3 to 14: 14 means apply, 12 and 13 mean remove
	slots := c.p.machine.w.cfg.manySlots(a.slots)
	if a.pool == "" {
		slots *= 4
	}
	switch {
	case a.slots >= applies:
		want := engine.Limits{Workspace: 2 * a.slots}
		if a.pool != "" {
			want = engine.Limits{Pools: map[string]int32{a.pool: a.slots}}
		}
		return e.ApplyLimits(ctx, want)
	case a.slots >= removes:
		err := e.RemoveLimit(ctx, a.pool)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		c.p.machine.w.fault("limit removed")
		return err
	}
	return e.SetLimit(ctx, a.pool, slots)
}

// setting is a LimitSet event in the ledger.
type setting struct {
	entry, group, id string
	slots            int32
	removed          bool
}

// noteLimits remembers an entry's commands that set or remove limits.
func (f *followed) noteLimits(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.LimitSet); ok {
				key := state.Key2{A: p.Scope, B: p.Name}
				f.settings[key] = append(f.settings[key], setting{entry, group.ID, e.ID, p.Slots, p.Remove})
			}
		}
	}
}

// checkSettings checks that each limit has the value of the folded command with the greatest id. The order of folding
// must not matter: a command must not replace one with a greater id.
func (o *oracle) checkSettings(f *followed) {
	for key, settings := range f.settings {
		last := setting{}
		for _, s := range settings {
			row := f.state.Entries.Get(state.Key2{A: s.entry, B: s.group})
			if row != nil && row.Outcome != state.DeadLetter && s.id > last.id {
				last = s
			}
		}
		row := f.state.Limits.Get(key)
		switch {
		case last.id == "" && row == nil:
		case row == nil || row.Version != last.id || row.Slots != last.slots || row.Removed != last.removed:
			o.violation("limits", "the limit of %s %s of %s is %+v, but the latest folded command is %+v", key.A, key.B, f.domain, row, last)
		}
	}
}
