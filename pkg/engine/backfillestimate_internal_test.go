package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Each task takes one second. The backfill has four chunks. Each contains three partitions of test/a and, in the
// cases with both: true, three partitions of test/b, which reads test/a.
func TestBackfillEstimateFollowsLimits(t *testing.T) {
	a, b := ids.AssetKey{Namespace: "test", Name: "a"}, ids.AssetKey{Namespace: "test", Name: "b"}
	for name, c := range map[string]struct {
		asset  plan.Asset
		both   bool
		event  event.BackfillCreated
		limits estimate.Limits
		want   int // seconds
	}{
		"all at once":       {event: event.BackfillCreated{MaxParallel: 4}, want: 1},
		"chunks in turn":    {event: event.BackfillCreated{MaxParallel: 1}, want: 4},
		"two chunks":        {event: event.BackfillCreated{MaxParallel: 2}, want: 2},
		"two stages":        {event: event.BackfillCreated{MaxParallel: 4, Stages: []int32{1}}, want: 2},
		"a limit of tasks":  {event: event.BackfillCreated{MaxParallel: 4}, limits: estimate.Limits{Tasks: 2}, want: 6},
		"the asset's pool":  {asset: plan.Asset{Pool: "db"}, event: event.BackfillCreated{MaxParallel: 4}, limits: estimate.Limits{Pools: map[string]int{"db": 3}}, want: 4},
		"the backfill's":    {asset: plan.Asset{Pool: "db"}, event: event.BackfillCreated{MaxParallel: 4, Pool: "slow"}, limits: estimate.Limits{Pools: map[string]int{"slow": 1}}, want: 12},
		"reads itself":      {asset: plan.Asset{Deps: []ids.AssetKey{a}}, event: event.BackfillCreated{MaxParallel: 1}, want: 12},
		"an upstream asset": {both: true, event: event.BackfillCreated{MaxParallel: 4}, want: 2},
	} {
		c.asset.Key = a
		g, err := plan.NewGraph([]plan.Asset{c.asset, {Key: b, Deps: []ids.AssetKey{a}}})
		require.NoError(t, err)
		p := &PlannedBackfill{Chunks: &backfill.Chunks{}, graph: g, event: &c.event}
		for chunk := range 4 {
			var cells []backfill.Cell
			for day := range 3 {
				key := fmt.Sprintf("date=2025-01-%02d", 1+chunk*3+day)
				cells = append(cells, backfill.Cell{Asset: a, Partition: key})
				if c.both {
					cells = append(cells, backfill.Cell{Asset: b, Partition: key})
				}
			}
			p.Chunks.Lists = append(p.Chunks.Lists, cells)
		}
		second := []estimate.Sample{{Duration: time.Second}}
		e := estimate.Of(p.estimated(), map[string][]estimate.Sample{"test/a": second, "test/b": second}, c.limits)
		require.Equal(t, time.Duration(c.want)*time.Second, e.Makespan, name)
	}
}

func TestBackfillEstimateFillsBatches(t *testing.T) {
	a := ids.AssetKey{Namespace: "test", Name: "a"}
	g, err := plan.NewGraph([]plan.Asset{{Key: a, Batch: 2}})
	require.NoError(t, err)
	p := &PlannedBackfill{Chunks: &backfill.Chunks{Lists: [][]backfill.Cell{{{Asset: a, Partition: "1"}, {Asset: a, Partition: "2"}, {Asset: a, Partition: "3"}}}}, graph: g, event: &event.BackfillCreated{MaxParallel: 1}}
	e := estimate.Of(p.estimated(), nil, estimate.Limits{})
	require.Equal(t, 2, e.Tasks)
	require.Equal(t, 3, e.Assets[0].Partitions)
}
