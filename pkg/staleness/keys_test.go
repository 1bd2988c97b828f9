package staleness_test

import (
	"iter"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

var tenants = []string{"t1", "t2", "t3"}

// tenantAssets returns the asset raw, with days and tenants, and its readers. The readers differ in the partitions of
// raw that a partition reads: the one with the same key, all tenants of a day, all partitions, or some tenants for each
// region.
func tenantAssets() []plan.Asset {
	day := space.Days("2025-01-01", "2025-01-02").Dimensions[0]
	tenant := space.Dimension{Name: "tenant", Kind: space.Dynamic, Set: "tenants"}
	region := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}}
	reads := func(m space.DimensionMap) []plan.Dep {
		return []plan.Dep{{Asset: key("raw"), Map: space.Map{Dimensions: []space.DimensionMap{m}}}}
	}
	deps := []ids.AssetKey{key("raw")}
	return []plan.Asset{
		{Key: key("raw"), Partitions: space.New(day, tenant)},
		{Key: key("same"), Partitions: space.New(day, tenant), Deps: deps},
		{Key: key("daily"), Partitions: space.New(day), Deps: deps},
		{Key: key("total"), Deps: deps},
		{Key: key("regions"), Partitions: space.New(day, region), Deps: deps, Reads: reads(space.DimensionMap{
			Dimension: "region", Op: space.Values, Of: "tenant", Values: map[string][]string{"eu": {"t1", "t2"}, "us": {"t3"}},
		})},
	}
}

// A key that is removed or added again makes the readers of its partitions stale. Readers whose own partition key
// contains this key stay fresh, like all other partitions.
func TestKeyChangesMakeReadersStale(t *testing.T) {
	all := tenantAssets()
	g, err := plan.NewGraph(all)
	require.NoError(t, err)
	everything := plan.Calendar{Keys: func(string) []string { return tenants }}
	rapid.Check(t, func(r *rapid.T) {
		keys := slices.DeleteFunc(slices.Clone(tenants), func(string) bool { return rapid.IntRange(0, 3).Draw(r, "removed") == 0 })
		changes := map[string]int64{}
		for _, k := range tenants {
			if seq := rapid.Int64Range(-5, 10).Draw(r, "changed"); seq > 0 {
				changes[k] = seq
			}
		}
		rows := map[ids.AssetKey][]*state.Partition{}
		for i := range all {
			declared, err := everything.Declared(all[i].Partitions, 100)
			require.NoError(r, err)
			for _, partition := range declared {
				if all[i].Key != key("raw") {
					rows[all[i].Key] = append(rows[all[i].Key], &state.Partition{
						AssetKey: all[i].Key.String(), PartitionKey: partition, RunID: "r", InputsSeq: rapid.Int64Range(0, 10).Draw(r, "inputs"),
					})
				}
			}
		}
		e := staleness.New(g, staleness.Data{
			Rows: func(asset ids.AssetKey) iter.Seq2[*state.Partition, error] {
				return func(yield func(*state.Partition, error) bool) {
					for _, row := range rows[asset] {
						if !yield(row, nil) {
							return
						}
					}
				}
			},
			Row: func(asset ids.AssetKey, partition string) (*state.Partition, error) {
				return rowOf(rows[asset], partition), nil
			},
			KeyChanges: func(string) map[string]int64 { return changes },
			Calendar:   plan.Calendar{Keys: func(string) []string { return keys }},
		})
		raw, err := everything.Declared(all[0].Partitions, 100)
		require.NoError(r, err)
		for _, a := range all[1:] {
			edge, err := g.Readers(everything).Of(a.Key, key("raw"))
			require.NoError(r, err)
			for _, p := range rows[a.Key] {
				own, err := ids.ParsePartition(p.PartitionKey)
				require.NoError(r, err)
				if own["tenant"] != "" && !slices.Contains(keys, own["tenant"]) {
					continue
				}
				want := staleness.Fresh
				for _, q := range raw {
					of, err := ids.ParsePartition(q)
					require.NoError(r, err)
					reads, err := edge.Reads(p.PartitionKey, q)
					require.NoError(r, err)
					if reads && own["tenant"] == "" && changes[of["tenant"]] > p.InputsSeq {
						want = staleness.Stale
					}
				}
				x, err := e.Explain(a.Key, p.PartitionKey)
				require.NoError(r, err)
				require.Equal(r, want, x.Status, "%+v", p)
				require.Equal(r, want == staleness.Stale, len(x.Sets) > 0)
			}
		}
		partitions, err := e.Partitions(key("same"))
		require.NoError(r, err)
		require.Len(r, partitions, 2*len(keys), "a removed key is neither expected nor shown")
	})
}
