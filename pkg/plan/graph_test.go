package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// asset returns a SQL asset in a file named after its key.
func asset(key string, deps ...string) plan.Asset {
	a := plan.Asset{Key: mustKey(key), File: "assets/" + key + ".sql", Work: plan.Work{SQL: "SELECT 1"}}
	for _, dep := range deps {
		a.Deps = append(a.Deps, mustKey(dep))
	}
	slices.SortFunc(a.Deps, plan.CompareKeys)
	return a
}

// daily returns an asset with one partition for each day.
func daily(key, start, end string, deps ...string) plan.Asset {
	a := asset(key, deps...)
	a.Partitions = space.Days(start, end)
	a.Work.Dimensions = map[string]string{"date": "DATE"}
	return a
}

func mustKey(s string) ids.AssetKey {
	key, err := ids.ParseAssetKey(s)
	if err != nil {
		panic(err)
	}
	return key
}

func keys(texts ...string) []ids.AssetKey {
	var all []ids.AssetKey
	for _, text := range texts {
		all = append(all, mustKey(text))
	}
	return all
}

func TestGraphOrdersTopologically(t *testing.T) {
	g, err := plan.NewGraph([]plan.Asset{asset("d/d", "b/b", "c/c"), asset("c/c", "a/a"), asset("b/b", "a/a"), asset("a/z"), asset("a/a")})
	require.NoError(t, err)
	order, err := g.Topological()
	require.NoError(t, err)
	require.Equal(t, keys("a/a", "a/z", "b/b", "c/c", "d/d"), order)
	require.Equal(t, keys("a/a", "b/b", "c/c", "d/d"), g.Upstream(mustKey("d/d")))
	require.Equal(t, keys("b/b", "d/d"), g.Downstream(mustKey("b/b")))
	require.Empty(t, g.Upstream(mustKey("no/such")))
}

func TestGraphRejectsDuplicateKeysAndUnknownDeps(t *testing.T) {
	twice := asset("a/a")
	twice.File = "assets/other.yaml"
	_, err := plan.NewGraph([]plan.Asset{asset("a/a"), twice, asset("b/b", "x/y")})
	require.EqualError(t, err, "asset a/a is declared twice: in assets/a/a.sql and in assets/other.yaml\n"+
		"asset b/b depends on x/y, which is not an asset")
}

func TestCyclesAreShortest(t *testing.T) {
	g, err := plan.NewGraph([]plan.Asset{
		asset("a/x", "b/y", "c/long"), asset("c/long", "c/longer"), asset("c/longer", "a/x"), asset("b/y", "a/x"),
		asset("s/self", "s/self"), asset("z/fine", "a/x"),
	})
	require.NoError(t, err)
	cycles := g.Cycles()
	require.Len(t, cycles, 2)
	require.Equal(t, "a/x → b/y → a/x", plan.CyclePath(cycles[0]))
	require.Equal(t, "s/self → s/self", plan.CyclePath(cycles[1]))
	_, err = g.Topological()
	require.EqualError(t, err, "dependency cycle: a/x → b/y → a/x\n"+
		"dependency cycle: s/self → s/self")
}

// TestCyclesAgreeWithTopologicalOrder checks Tarjan's algorithm against Kahn's.
func TestCyclesAgreeWithTopologicalOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "assets")
		name := func(i int) string { return "n/a" + string(rune('a'+i)) }
		var assets []plan.Asset
		for i := range n {
			var deps []string
			for j := range n {
				if rapid.IntRange(0, 4).Draw(t, "edge") == 0 {
					deps = append(deps, name(j))
				}
			}
			assets = append(assets, asset(name(i), deps...))
		}
		g, err := plan.NewGraph(assets)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Topological()
		cycles := g.Cycles()
		if (err == nil) != (len(cycles) == 0) {
			t.Fatalf("Topological returned %v, but Cycles returned %v", err, cycles)
		}
		for _, cycle := range cycles {
			for i, key := range cycle {
				a, _ := g.Asset(key)
				if next := cycle[(i+1)%len(cycle)]; !slices.Contains(a.Deps, next) {
					t.Fatalf("%s is not a cycle: %s does not depend on %s", plan.CyclePath(cycle), key, next)
				}
			}
		}
	})
}

func TestSuggestFindsTheNearestWord(t *testing.T) {
	for word, want := range map[string]string{
		"raw/wether": "raw/weather", "raw/waether": "raw/weather", "analytics/month": "analytics/monthly", "something/else": "", "": "",
	} {
		require.Equal(t, want, plan.Suggest(word, []string{"raw/weather", "analytics/monthly", "clean/daily"}), word)
	}
	require.Empty(t, plan.Suggest("x", nil))
}
