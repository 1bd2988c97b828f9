package release_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
)

// merged compiles a project, in which some files may have problems.
func merged(t *testing.T, in release.Input, previous *release.Compiled) *release.Compiled {
	t.Helper()
	in.Parser = "1"
	slices.SortFunc(in.Assets, func(x, y plan.Asset) int { return plan.CompareKeys(x.Key, y.Key) })
	release.SetCodes(in.Assets)
	c, err := release.Compile(in, previous, nil)
	require.NoError(t, err)
	return c
}

// find returns an asset of a release.
func find(t *testing.T, c *release.Compiled, key ids.AssetKey) *plan.Asset {
	t.Helper()
	at := slices.IndexFunc(c.Code.Assets, func(a plan.Asset) bool { return a.Key == key })
	require.GreaterOrEqual(t, at, 0, "%s is not in the release", key)
	return &c.Code.Assets[at]
}

// Every release must have a valid graph, because schedules, requests and backfills are planned with it.
func TestReleaseWithBrokenReadersIsPlannable(t *testing.T) {
	previous := compile(t, assets(), nil)
	for name, c := range map[string]struct {
		edit func([]plan.Asset) []plan.Asset
		why  string
	}{
		"the upstream asset is renamed": {func(list []plan.Asset) []plan.Asset {
			list[0].Key = key("a2")
			list[1].Broken, list[1].Deps = "b.sql has problems", nil
			return list
		}, "it reads a/a, which the release does not contain"},
		"the upstream asset reads the broken one": {func(list []plan.Asset) []plan.Asset {
			list[0].Deps = []ids.AssetKey{key("b")}
			list[1].Broken, list[1].Deps = "b.sql has problems", nil
			return list
		}, "its file has problems"},
	} {
		is := merged(t, release.Input{Assets: c.edit(assets())}, previous)
		g, err := plan.NewGraph(is.Code.Assets)
		require.NoError(t, err, name)
		require.Empty(t, g.Cycles(), name)
		require.Equal(t, c.why, find(t, is, key("b")).Broken, name)
		require.Equal(t, find(t, previous, key("b")).Code, find(t, is, key("b")).Code, "%s: nothing becomes stale", name)
	}
}

// If a file has problems, the loader marks only the direct readers of its assets as broken. A direct reader that was
// never deployed is left out of the release. A reader of this direct reader is not marked, so the release must remove
// the dependency on the missing asset. In this test, a is left out, and b reads a.
func TestReleaseWithReaderOfNewBrokenAssetIsPlannable(t *testing.T) {
	list := assets()
	list[0].Broken = "a.sql has problems"
	is := merged(t, release.Input{Assets: list}, nil)
	_, err := plan.NewGraph(is.Code.Assets)
	require.NoError(t, err)
	require.NotEmpty(t, find(t, is, key("b")).Code)
}

func TestUnreadableFileKeepsItsAssets(t *testing.T) {
	list := assets()
	for i := range list {
		list[i].File = "assets/" + list[i].Key.Name + ".yaml"
	}
	previous := merged(t, release.Input{Assets: list}, nil)
	is := merged(t, release.Input{Assets: slices.Clone(list[1:2]), Problems: map[string]bool{"assets/a.yaml": true}}, previous)
	require.Len(t, is.Code.Assets, 2, "c was removed")
	require.Equal(t, find(t, previous, key("a")), find(t, is, key("a")))
}

func TestBrokenFilesKeepTheirDeployedPromises(t *testing.T) {
	list := assets()
	for i := range list {
		list[i].File = list[i].Key.Name + ".sql"
	}
	promises := func(names ...string) (all []event.WatchedAsset) {
		for i, name := range names {
			all = append(all, event.WatchedAsset{Asset: name, MaxLagSec: int64(100*i + len(names))})
		}
		return all
	}
	deployed := promises("a/a", "a/b", "a/c")
	previous := merged(t, release.Input{Assets: list, Settings: release.Settings{Watched: deployed}}, nil)
	list = slices.Clone(list)
	list[0].Broken, list[1].Broken = "a.sql has problems", "it reads a/a, but a.sql has problems"
	found := promises("a/b", "a/new") // a/c no longer declares a freshness, and a/new was never deployed
	is := merged(t, release.Input{Assets: list, Problems: map[string]bool{"a.sql": true}, Settings: release.Settings{Watched: found}}, previous)
	require.Equal(t, []event.WatchedAsset{deployed[0], found[0]}, is.Watched)
}

func TestAlertRulesKeepTheirDeployedAssets(t *testing.T) {
	rule := func(name, selection string, assets ...string) event.AlertRule {
		return event.AlertRule{Name: name, Select: selection, Assets: assets}
	}
	in := release.Input{Assets: assets(), Settings: release.Settings{Alerts: []event.AlertRule{
		rule("all", ""), rule("gold", "tag:gold", "a/a", "a/gone"), rule("other", "tag:x", "a/b"),
	}}}
	previous := merged(t, in, nil)
	in.Problems = map[string]bool{"a.sql": true}
	in.Alerts = []event.AlertRule{rule("all", ""), rule("gold", "tag:gold", "a/c"), rule("new", "tag:gold"), rule("other", "tag:y")}
	require.Equal(t, []event.AlertRule{rule("all", ""), rule("gold", "tag:gold", "a/a", "a/c")}, merged(t, in, previous).Alerts)
}
