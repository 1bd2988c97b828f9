package engine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func release(digit string) string { return strings.Repeat(digit, 64) }

func code(digit string) string { return strings.Repeat(digit, 16) }

func TestDeployReplacesExpectedRelease(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		current, err := w.CurrentDeployment(t.Context())
		require.NoError(t, err)
		require.Empty(t, current.ID)

		first, err := w.Deploy(t.Context(), engine.DeployRequest{
			Release: release("1"), Kind: event.DeployRelease, Environment: "prod", Message: "the first",
			Git: &event.Git{Commit: "abc", Branch: "main"}, Changes: event.Changes{Added: 3},
		})
		require.NoError(t, err)
		require.Equal(t, "user:jane", first.Actor)
		require.Equal(t, &event.Git{Commit: "abc", Branch: "main"}, first.Git)
		require.Equal(t, event.Changes{Added: 3}, first.Changes)
		again, err := w.Deploy(t.Context(), engine.DeployRequest{Release: release("1"), Kind: event.DeployLocal})
		require.NoError(t, err)
		require.Equal(t, first, again, "the release is the current one")

		second, err := w.Deploy(t.Context(), engine.DeployRequest{Release: release("2"), Expects: release("1"), Kind: event.DeployLocal})
		require.NoError(t, err)
		_, err = w.Deploy(t.Context(), engine.DeployRequest{Release: release("3"), Expects: release("1"), Kind: event.DeployRelease})
		conflict := &engine.ReleaseConflictError{}
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, second, conflict.Current)
		require.ErrorContains(t, err, "deploy release 333333333333: RELEASE_CONFLICT: user:jane deployed release 222222222222 at ")
		_, err = w.Deploy(t.Context(), engine.DeployRequest{Release: release("3"), Expects: release("1"), Force: true, Kind: event.DeployRollback})
		require.NoError(t, err)

		all, err := w.Deployments(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.Equal(t, all[0].ID, all[1].SupersededBy)
		require.Equal(t, first.ID, all[2].ID)
		newest, err := w.Deployments(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, all[:1], newest)
	})
}

func TestDeployAcceptsCodesTransitively(t *testing.T) {
	w := newFixture(t, false)
	asset := ids.AssetKey{Namespace: "raw", Name: "a"}
	current := ""
	for i, accept := range [][2]string{{"1", "2"}, {"2", "3"}, {"3", "1"}} {
		next := release(string(rune('a' + i)))
		_, err := w.Deploy(t.Context(), engine.DeployRequest{
			Release: next, Expects: current, Kind: event.DeployRelease,
			Accept: []engine.Accept{{Asset: asset, Previous: code(accept[0]), Code: code(accept[1])}},
		})
		require.NoError(t, err)
		current = next
	}
	for digit, want := range map[string][]string{"1": {code("2"), code("3")}, "2": {code("1")}, "3": {code("1"), code("2")}} {
		codes, err := engine.AcceptedCodes(w.state(), "raw/a", code(digit))
		require.NoError(t, err)
		require.Equal(t, want, codes, digit)
	}
}

func TestRetryKeepsChainAndRelease(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		made := w.run(request(asset("d")))
		w.report(w.finished(made.RunID, "raw/d", event.Succeeded))
		r := request(asset("a"), asset("b", "a"))
		r.Release, r.Vars = release("1"), map[string]string{"currency": "EUR"}
		r.Plan.Assets[1].Code = code("7")
		observed := w.state()
		root := w.run(r)
		row := w.state().Runs.Get(root.RunID)
		require.Equal(t, release("1"), row.Release)
		require.JSONEq(t, `{"currency":"EUR"}`, row.Vars)
		require.Equal(t, []any{observed.FoldSeq, observed.FoldTime}, []any{row.InputsSeq, row.InputsAt})
		w.report(w.finished(root.RunID, "raw/a", event.Succeeded), w.finished(root.RunID, "raw/b", event.Failed))

		retry, err := w.Retry(t.Context(), root.RunID)
		require.NoError(t, err)
		_, err = w.Retry(t.Context(), root.RunID)
		require.ErrorIs(t, err, engine.ErrLiveRetry)
		w.report(w.finished(retry.RunID, "raw/b", event.Failed))
		last, err := w.Retry(t.Context(), retry.RunID)
		require.NoError(t, err)
		w.report(w.finished(last.RunID, "raw/b", event.Succeeded))

		again := w.state().Runs.Get(last.RunID)
		require.Equal(t, []any{root.RunID, row.Release, row.Vars, row.InputsSeq, row.InputsAt},
			[]any{again.RootRun, again.Release, again.Vars, again.InputsSeq, again.InputsAt})
		output := w.state().Partitions.Get(state.Key2{A: "raw/b"})
		require.Equal(t, []any{code("7"), root.RunID, row.InputsSeq}, []any{output.Code, output.Root(), output.InputsSeq})
	})
}
