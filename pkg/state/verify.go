package state

import (
	"fmt"
	"slices"
)

// Verify rebuilds the indexes from the rows and returns an error if the current indexes differ. A difference is a
// bug: the fold could make different decisions with a state that was loaded from files than with the state that was
// written to them.
func (s *State) Verify() error {
	fresh := New(s.Domain)
	fresh.Load(s.All())
	have, want := s.index, fresh.index
	if err := have.automation.same(&want.automation); err != nil {
		return err
	}
	if err := have.backfills.same(&want.backfills); err != nil {
		return err
	}
	if err := have.alerting.same(&want.alerting); err != nil {
		return err
	}
	for _, err := range []error{
		same("ready tasks", have.ready.Items(), want.ready.Items()),
		same("candidates", have.heads.Items(), want.heads.Items()),
		same("candidates' keys", have.headOf.Keys(), want.headOf.Keys()),
		same("candidates by key", have.headOf.Values(), want.headOf.Values()),
		same("runs with slots", have.runSlots.Keys(), want.runSlots.Keys()),
		same("slots of runs", have.runSlots.Values(), want.runSlots.Values()),
		same("pools with slots", have.poolSlots.Keys(), want.poolSlots.Keys()),
		same("slots of pools", have.poolSlots.Values(), want.poolSlots.Values()),
		same("slots", []int32{have.allSlots}, []int32{want.allSlots}),
		same("deadlines", have.deadlines.Items(), want.deadlines.Items()),
		same("waiting groups", have.waiting.Items(), want.waiting.Items()),
		same("expiries of run keys", have.expiries.Items(), want.expiries.Items()),
		same("live runs", []int{have.liveRuns}, []int{want.liveRuns}),
		same("pending candidates", []int{have.candidates}, []int{want.candidates}),
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
	return fmt.Errorf("the index of %s is wrong: got %+v, want %+v from the rows", what, have, want)
}
