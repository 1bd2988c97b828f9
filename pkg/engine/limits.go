package engine

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits are the limits of a workspace: how many tasks may run at once.
type Limits struct {
	// Workspace is the limit of all tasks together; 0: the default.
	Workspace int32
	// Pools are the limits of pools, by name. A pool that is not named has none.
	Pools map[string]int32
}

// scopeOf is the key of a limit: the pool's, or for "" the workspace's.
func scopeOf(pool string) state.Key2 {
	if pool == "" {
		return state.Key2{A: event.ScopeWorkspace}
	}
	return state.Key2{A: event.ScopePool, B: pool}
}

// describeLimit names the scope of a limit in a sentence.
func describeLimit(pool string) string {
	if pool == "" {
		return "the workspace"
	}
	return "pool " + pool
}

// LimitsOf are the limits that are set in a state.
func LimitsOf(s *state.State) Limits {
	l := Limits{Pools: map[string]int32{}}
	for row := range s.Limits.All {
		switch {
		case row.Removed:
		case row.Scope == event.ScopePool:
			l.Pools[row.Name] = row.Slots
		default:
			l.Workspace = row.Slots
		}
	}
	return l
}

// ApplyLimits makes want the limits of the workspace: it sets those that differ and
// removes those that want does not have.
func (e *Engine) ApplyLimits(ctx context.Context, want Limits) error {
	snap, err := e.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	have := LimitsOf(snap.State)
	var commands []event.Payload
	change := func(pool string, slots, was int32, set, wasSet bool) {
		if set != wasSet || set && slots != was {
			commands = append(commands, e.limitCommand(snap, pool, slots, !set))
		}
	}
	change("", want.Workspace, have.Workspace, want.Workspace > 0, isSet(snap.State, ""))
	for _, pool := range sortedKeys(want.Pools) {
		was, wasSet := have.Pools[pool]
		change(pool, want.Pools[pool], was, true, wasSet)
	}
	for _, pool := range sortedKeys(have.Pools) {
		if _, kept := want.Pools[pool]; !kept {
			change(pool, 0, have.Pools[pool], false, true)
		}
	}
	for group := range slices.Chunk(commands, event.MaxGroupEvents) {
		if _, _, err := e.append(ctx, "", group...); err != nil {
			return err
		}
	}
	return nil
}

// SetLimit sets the limit of a pool, or for "" of the workspace.
func (e *Engine) SetLimit(ctx context.Context, pool string, slots int32) error {
	return e.changeLimit(ctx, pool, func(snap *snapshot.Snapshot) (event.Payload, error) {
		if isSet(snap.State, pool) && snap.State.Limits.Get(scopeOf(pool)).Slots == slots {
			return nil, nil
		}
		return e.limitCommand(snap, pool, slots, false), nil
	})
}

// RemoveLimit removes the limit of a pool, or for "" of the workspace, which then has the
// default.
func (e *Engine) RemoveLimit(ctx context.Context, pool string) error {
	return e.changeLimit(ctx, pool, func(snap *snapshot.Snapshot) (event.Payload, error) {
		if !isSet(snap.State, pool) {
			return nil, fmt.Errorf("remove the limit of %s: %w: it has no limit; list the limits with `servo limits`", describeLimit(pool), ErrNotFound)
		}
		return e.limitCommand(snap, pool, 0, true), nil
	})
}

func isSet(s *state.State, pool string) bool {
	row := s.Limits.Get(scopeOf(pool))
	return row != nil && !row.Removed
}

// changeLimit appends the command that makes returns, and checks that no other command
// was later.
func (e *Engine) changeLimit(ctx context.Context, pool string, makes func(*snapshot.Snapshot) (event.Payload, error)) error {
	snap, err := e.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	command, err := makes(snap)
	if err != nil || command == nil {
		return err
	}
	if snap, _, err = e.append(ctx, "", command); err != nil {
		return err
	}
	asked, _ := command.(*event.LimitSet)
	row := snap.State.Limits.Get(scopeOf(pool))
	if row == nil || row.Removed != asked.Remove || row.Slots != asked.Slots {
		return fmt.Errorf("change the limit of %s: a later command has changed it: list the limits with `servo limits`", describeLimit(pool))
	}
	return nil
}

// limitCommand is a command that is later than the one that the snapshot has of this limit,
// also where that was written by a machine whose clock is ahead.
func (e *Engine) limitCommand(snap *snapshot.Snapshot, pool string, slots int32, remove bool) event.Payload {
	key := scopeOf(pool)
	if row := snap.State.Limits.Get(key); row != nil {
		e.IDs.Observe(row.Version)
	}
	switch { // what builds apply that do not know Remove
	case remove && pool == "":
		slots = state.DefaultWorkspaceSlots
	case remove:
		slots = math.MaxInt32
	}
	return &event.LimitSet{CommandID: e.IDs.New(), Scope: key.A, Name: key.B, Slots: slots, Remove: remove}
}
