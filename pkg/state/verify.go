package state

import (
	"fmt"
	"slices"
)

// Verify reports where the indexes differ from what the rows give. They never
// do, or a state loaded from files would decide otherwise than the one that
// wrote them: it is for oracles, and for whoever doubts a state.
func (s *State) Verify() error {
	fresh := New(s.Domain)
	fresh.Load(s.All())
	have, want := &s.index, &fresh.index
	for _, err := range []error{
		same("ready tasks", have.ready.Items(), want.ready.Items()),
		same("candidates", have.heads.Items(), want.heads.Items()),
		same("candidates' keys", have.headOf.Keys(), want.headOf.Keys()),
		same("candidates by key", have.headOf.Values(), want.headOf.Values()),
		same("runs that hold slots", have.held.Keys(), want.held.Keys()),
		same("slots held by runs", have.held.Values(), want.held.Values()),
		same("pools with slots held", have.heldPool.Keys(), want.heldPool.Keys()),
		same("slots held in pools", have.heldPool.Values(), want.heldPool.Values()),
		same("slots held", []int32{have.heldAll}, []int32{want.heldAll}),
		same("deadlines", have.deadlines.Items(), want.deadlines.Items()),
		same("waiting groups", have.waiting.Items(), want.waiting.Items()),
		same("expiries of run keys", have.expiries.Items(), want.expiries.Items()),
		same("live runs", []int{have.liveRuns}, []int{want.liveRuns}),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func same[T comparable](what string, have, want []T) error {
	if slices.Equal(have, want) {
		return nil
	}
	return fmt.Errorf("index of %s: it has %+v, the rows give %+v", what, have, want)
}
