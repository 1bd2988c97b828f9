package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// existing can be used as Request.Materialized. It says that an earlier run has materialized each asset, without
// partitions.
func existing(key ids.AssetKey) []plan.Input {
	return []plan.Input{{MaterializationID: "M-" + key.String(), URI: "assets/" + key.String() + "/"}}
}

func TestGapKeepsOrderAndWarns(t *testing.T) {
	p, err := plan.Build(plan.Request{
		Assets: []plan.Asset{asset("raw/events"), asset("clean/events", "raw/events"), asset("mart/x", "clean/events")},
		Select: keys("raw/events", "mart/x"), Materialized: existing,
	})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, "raw/events ← \nclean/events[order] ← raw/events\nmart/x ← clean/events[order]\n", outline(p))
	require.Equal(t, event.KindGroup, p.Tasks[1].Kind)
	require.Equal(t, event.RuleAllDone, p.Tasks[1].TriggerRule, "a failure of raw/events does not skip mart/x")
	require.Equal(t, []string{
		"clean/events lies between raw/events and mart/x, but is not selected: mart/x reads the existing output of clean/events: add clean/events",
	}, p.Warnings)
}

func TestGapOfSeveralAssetsAndTasks(t *testing.T) {
	p, err := plan.Build(plan.Request{
		Assets: []plan.Asset{
			daily("a/a", "2025-01-01", "2025-01-03"), asset("b/b", "a/a"), asset("b/c", "b/b"), asset("b/aside", "a/a"),
			daily("c/c", "2025-01-01", "2025-01-03", "b/c", "a/a"), asset("z/before"), asset("z/z", "z/before"),
		},
		Select: keys("a/a", "c/c", "z/z"), Partitions: selection(t, "date=2025-01-01..2025-01-02"), Materialized: existing,
	})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, `a/a[date=2025-01-01] ← 
a/a[date=2025-01-02] ← 
a/a[order] ← a/a[date=2025-01-01] a/a[date=2025-01-02]
b/b[order] ← a/a[order]
b/c[order] ← b/b[order]
c/c[date=2025-01-01] ← a/a[date=2025-01-01] b/c[order]
c/c[date=2025-01-02] ← a/a[date=2025-01-02] b/c[order]
z/z ← 
`, outline(p))
	require.Equal(t, []string{
		"b/b, b/c lie between a/a and c/c, but are not selected: c/c reads the existing output of b/c: add b/b, b/c",
	}, p.Warnings)
}

func TestSelectionWithoutGapHasNoOrderNodes(t *testing.T) {
	assets := []plan.Asset{asset("a/a"), asset("b/b", "a/a"), asset("c/c", "b/b")}
	for _, selected := range [][]string{{"a/a", "b/b"}, {"b/b", "c/c"}, {"c/c"}, {"a/a", "b/b", "c/c"}} {
		p, err := plan.Build(plan.Request{Assets: assets, Select: keys(selected...), Materialized: existing})
		require.NoError(t, err)
		require.Len(t, p.Tasks, len(selected), selected)
		require.Empty(t, p.Warnings, selected)
	}
}

// If only the first and the last asset of a chain are selected, the plan has one order node for each asset between
// them. So its size grows linearly with the length of the chain.
func TestOrderOfManyGapsStaysLinear(t *testing.T) {
	const n = 10_000
	var assets []plan.Asset
	var selected []string
	for i := range n {
		var deps []string
		if i > 0 {
			deps = []string{fmt.Sprintf("n/a%05d", i-1)}
		}
		assets = append(assets, asset(fmt.Sprintf("n/a%05d", i), deps...))
	}
	selected = append(selected, "n/a00000", fmt.Sprintf("n/a%05d", n-1))
	p, err := plan.Build(plan.Request{Assets: assets, Select: keys(selected...), Materialized: existing})
	require.NoError(t, err)
	require.Len(t, p.Tasks, n)
	require.Len(t, p.Warnings, 1)
}

func TestRetryKeepsOrderNodes(t *testing.T) {
	p, err := plan.Build(plan.Request{
		Assets: []plan.Asset{asset("a/a"), asset("b/b", "a/a"), asset("c/c", "b/b")},
		Select: keys("a/a", "c/c"), Materialized: existing,
	})
	require.NoError(t, err)
	again, err := plan.Retry(p, []string{"a/a", "c/c"}, nil)
	require.NoError(t, err)
	require.Equal(t, outline(p), outline(again))
	one, err := plan.Retry(p, []string{"c/c"}, nil)
	require.NoError(t, err)
	require.Equal(t, "c/c ← \n", outline(one), "every upstream task succeeded")
}
