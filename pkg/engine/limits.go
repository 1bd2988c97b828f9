package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits are the maximum numbers of tasks of a workspace that run at once.
type Limits struct {
	// Workspace limits all tasks together; 0: the default.
	Workspace int32
	// Pools are the limits of pools, by name. Other pools have no limit.
	Pools map[string]int32
}

// scopeOf returns the key of a pool's limit or, for "", of the workspace's limit.
func scopeOf(pool string) state.Key2 {
	if pool == "" {
		return state.Key2{A: event.ScopeWorkspace}
	}
	return state.Key2{A: event.ScopePool, B: pool}
}

// describeLimit names a limit in error messages.
func describeLimit(pool string) string {
	if pool == "" {
		return "the workspace"
	}
	return "pool " + pool
}

// CheckPool returns an [*InvalidError] if pools does not contain the named pool: tasks in an unknown pool would run
// without a limit.
func CheckPool(name string, pools map[string]int32) error {
	if _, ok := pools[name]; ok || name == "" {
		return nil
	}
	return &InvalidError{fmt.Errorf("pool %q is unknown: choose from %s, or add it to pools in servo.yaml", name,
		cmp.Or(strings.Join(sortedKeys(pools), ", "), "none"))}
}

// LimitsOf returns the limits that are set in a state.
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

// ApplyLimits makes the limits of the domain equal to want: it sets those that differ, and removes those that want
// does not contain.
func (e *Engine) ApplyLimits(ctx context.Context, want Limits) error {
	snap, err := e.Current(ctx)
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

// SetLimit sets the limit of a pool or, for "", of the workspace.
func (e *Engine) SetLimit(ctx context.Context, pool string, slots int32) error {
	return e.changeLimit(ctx, pool, func(snap *snapshot.Snapshot) (event.Payload, error) {
		if isSet(snap.State, pool) && snap.State.Limits.Get(scopeOf(pool)).Slots == slots {
			return nil, nil
		}
		return e.limitCommand(snap, pool, slots, false), nil
	})
}

// RemoveLimit removes the limit of a pool or, for "", resets the limit of the workspace to the
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

// changeLimit calls build with the newest state. If build returns a command, changeLimit appends it. It returns an
// error if a later command has overridden the appended one.
func (e *Engine) changeLimit(ctx context.Context, pool string, build func(*snapshot.Snapshot) (event.Payload, error)) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	command, err := build(snap)
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

// limitCommand returns a command whose version is later than the current version of the limit, even if a machine with
// a fast clock wrote the current version.
func (e *Engine) limitCommand(snap *snapshot.Snapshot, pool string, slots int32, remove bool) event.Payload {
	key := scopeOf(pool)
	if row := snap.State.Limits.Get(key); row != nil {
		e.cfg.IDs.Observe(row.Version)
	}
	switch { // older versions of Servo ignore Remove, and need Slots
	case remove && pool == "":
		slots = state.DefaultWorkspaceSlots
	case remove:
		slots = math.MaxInt32
	}
	return &event.LimitSet{CommandID: e.cfg.IDs.New(), Scope: key.A, Name: key.B, Slots: slots, Remove: remove}
}
