package gc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestRunCollectsOutputsOfForgottenAssets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, uri := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	f.clock.now = f.clock.now.Add(40 * day)
	f.publish()
	f.collect(gc.Options{})
	require.Contains(t, f.left(), contract.CommitMarkerKeyOf(uri), "a visible output is kept")

	command := f.ids.New()
	state.Set(&f.rows, []*state.ForgottenAsset{{AssetKey: asset.String(), CommandID: command, ForgottenAt: event.At(f.clock.now), Meta: f.meta()}})
	f.publish()
	f.clock.now = f.clock.now.Add(29 * day)
	f.publish()
	f.collect(gc.Options{})
	require.Contains(t, f.left(), contract.CommitMarkerKeyOf(uri), "a forgotten output is kept for 30 days")
	f.clock.now = f.clock.now.Add(2 * day)
	f.publish()
	f.collect(gc.Options{})
	require.NotContains(t, f.left(), contract.CommitMarkerKeyOf(uri))
	require.NotContains(t, f.left(), uri+"data.parquet")
}
