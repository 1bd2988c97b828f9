package api_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

func TestAssetGraphSaysHowNodesAre(t *testing.T) {
	f := serve(t,
		asset("raw/a", `touch "$SERVO_OUTPUT/x"`), asset("raw/b", `exit 3`),
		asset("mart/c", `touch "$SERVO_OUTPUT/x"`, "raw/a"), asset("mart/d", `touch "$SERVO_OUTPUT/x"`, "raw/b", "mart/c"),
	)
	c := f.connect(t)
	f.run(t)
	health := func(r *servov1.GetAssetGraphRequest) map[string]string {
		g, err := c.assets.GetAssetGraph(t.Context(), r)
		require.NoError(t, err)
		require.EqualValues(t, 4, g.GetAssetsTotal())
		all := map[string]string{}
		for _, n := range g.GetNodes() {
			all[n.GetId()] = n.GetHealth()
		}
		return all
	}
	require.Equal(t, map[string]string{"raw/a": "fresh", "raw/b": "failed", "mart/c": "fresh", "mart/d": "missing"}, health(&servov1.GetAssetGraphRequest{}))
	require.Equal(t, map[string]string{"raw/*": "failed", "mart/*": "missing"}, health(&servov1.GetAssetGraphRequest{Level: 2}))
	require.Equal(t, map[string]string{"raw/a": "fresh", "mart/c": "fresh"},
		health(&servov1.GetAssetGraphRequest{Focus: "mart/c", Direction: "upstream", Depth: 3}))

	g, err := c.assets.GetAssetGraph(t.Context(), &servov1.GetAssetGraphRequest{Level: 2})
	require.NoError(t, err)
	require.Equal(t, map[string]int32{"fresh": 1, "failed": 1}, g.GetNodes()[1].GetHealthCounts())
	require.EqualValues(t, 2, g.GetEdges()[0].GetCount())
	_, err = c.assets.GetAssetGraph(t.Context(), &servov1.GetAssetGraphRequest{Focus: "no/such"})
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}

// BenchmarkAssetGraph measures how long the server needs for a graph of 400 assets. The limit is 20 ms.
func BenchmarkAssetGraph(b *testing.B) {
	var assets []plan.Asset
	for i := range 400 {
		var deps []string
		for _, d := range []int{1, 7, 40} {
			if i >= d {
				deps = append(deps, fmt.Sprintf("n%d/a%03d", (i-d)%5, i-d))
			}
		}
		assets = append(assets, asset(fmt.Sprintf("n%d/a%03d", i%5, i), `touch "$SERVO_OUTPUT/x"`, deps...))
	}
	f := serve(b, assets...)
	c := f.connect(b)
	for b.Loop() {
		g, err := c.assets.GetAssetGraph(b.Context(), &servov1.GetAssetGraphRequest{})
		require.NoError(b, err)
		require.Len(b, g.GetNodes(), 400)
	}
}
