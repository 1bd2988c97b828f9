package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

func TestQueryReadsPartitionColumns(t *testing.T) {
	const visits, total = "raw/visits", "mart/total"
	for _, local := range []bool{true, false} {
		for own, want := range map[string][]string{
			// In some of these cases, all files have the same columns. In the others, one file has more columns.
			"":                                       {"2025-01-01|1|eu", "2025-01-02|1|'us"},
			", 'x' AS more":                          {"2025-01-01|1|eu", "2025-01-02|1|'us"},
			", DATE '2024-12-31' AS Date":            {"2024-12-31|1|eu", "2025-01-02|1|'us"},
			", {a: 1} AS region, NULL::DATE AS date": nil,
		} {
			keys := []ids.Partition{{"date": "2025-01-01", "region": "eu"}, {"date": "2025-01-02", "region": "'us"}}
			first, second := ids.TaskKey(ids.AssetKey{Namespace: "raw", Name: "visits"}, keys[0]), ids.TaskKey(ids.AssetKey{Namespace: "raw", Name: "visits"}, keys[1])
			var store blob.Store
			if !local {
				store = memblob.New(memblob.Options{})
			}
			w := newFixture(t, store, map[string]plan.Work{
				visits: shell(`:`), total: query("SELECT date, count(*) AS n, region FROM raw.visits GROUP BY ALL"),
			}, task(first, keys[0].Key(), nil), task(second, keys[1].Key(), nil),
				task(total, "", map[string]plan.InputSet{visits: from(first, second)}, first, second))
			w.plan.PartitionColumns = map[string][]space.Column{visits: {{Name: "date", Type: "DATE"}, {Name: "region", Type: "VARCHAR"}}}
			w.plan.Assets[visits] = plan.Work{SQL: "SELECT 1 AS v" + own}
			w.storePlan()
			w.run(first)
			w.plan.Assets[visits] = plan.Work{SQL: "SELECT 1 AS v"}
			w.storePlan()
			w.run(second)
			if want == nil {
				failed := w.failed(total)
				require.Equal(t, "INVALID_INPUT", failed.Code)
				require.Contains(t, failed.Message, "others get region from their keys as VARCHAR")
				continue
			}
			require.Equal(t, want, w.rows(w.run(total), "date, n, region"))
		}
	}
}
