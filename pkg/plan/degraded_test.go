package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// readersOfAll returns a request with an asset whose partitions each read all days of another asset.
func readersOfAll(partitions int, requireQuality bool) plan.Request {
	up, down := ids.AssetKey{Namespace: "a", Name: "up"}, ids.AssetKey{Namespace: "a", Name: "down"}
	days, regions := slowDays(2000, 1, 1, 1000), make([]string, partitions)
	for i := range regions {
		regions[i] = fmt.Sprintf("r%05d", i)
	}
	made := make([]plan.Input, len(days))
	for i, day := range days {
		made[i] = plan.Input{PartitionKey: ids.Partition{"date": day}.Key(), MaterializationID: "m", URI: "u/"}
	}
	assets := []plan.Asset{
		{Key: up, Work: plan.Work{SQL: "SELECT 1"}, Partitions: space.Days(days[0], days[len(days)-1])},
		{
			Key: down, Work: plan.Work{SQL: "SELECT 1"}, Deps: []ids.AssetKey{up},
			Reads:      []plan.Dep{{Asset: up, RequireQuality: requireQuality, Map: space.Map{Op: space.All}}},
			Partitions: space.New(space.Dimension{Name: "region", Kind: space.Static, Values: regions}),
		},
	}
	return plan.Request{
		Assets: assets, Select: []ids.AssetKey{down}, Partitions: []plan.Selection{{Everything: true}},
		Materialized: func(key ids.AssetKey) []plan.Input {
			if key == up {
				return made
			}
			return nil
		},
	}
}

// The planner looks for degraded inputs only once if all partitions of an asset read the same inputs. If it looked for
// each partition, a plan with 5,000 partitions and 5,000 inputs would take 44 s instead of 0.04 s.
func TestDegradedInputsOfAllAreFoundOnce(t *testing.T) {
	const partitions = 200
	cost := func(requireQuality bool) float64 {
		r := readersOfAll(partitions, requireQuality)
		return testing.AllocsPerRun(1, func() {
			p, err := plan.Build(r)
			require.NoError(t, err)
			require.Len(t, p.Tasks, partitions)
		})
	}
	require.Less(t, cost(true)-cost(false), 20.0*partitions)
}

func TestDegradedInputOfAllLeavesOutEveryReader(t *testing.T) {
	r := readersOfAll(3, true)
	made := r.Materialized(r.Assets[0].Key)
	made[500].Degraded = true
	_, err := plan.Build(r)
	require.ErrorContains(t, err, "left out a/down r00000, r00001, r00002: UPSTREAM_DEGRADED: the output of a/up[date=2001-05-15] is degraded")
}
