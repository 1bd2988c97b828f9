package query_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/query"
)

// The test checks that an infinite date is not returned as the greatest date that DuckDB can store, in the year
// 5881580.
func TestInfiniteTimesAreText(t *testing.T) {
	db, err := query.Open(t.Context(), query.Source{}, query.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	rows, err := db.Query(t.Context(), `SELECT 'infinity'::TIMESTAMP, '-infinity'::DATE, '-infinity'::TIMESTAMPTZ, ['infinity'::DATE],
		'infinity'::TIMESTAMP_S, '-infinity'::TIMESTAMP_MS, 'infinity'::TIMESTAMP_NS, DATE '1960-01-05'`)
	require.NoError(t, err)
	got, err := rows.Collect(1)
	require.NoError(t, err)
	require.Equal(t, [][]any{{"infinity", "-infinity", "-infinity", []any{"infinity"}, "infinity", "-infinity", "infinity", "1960-01-05"}}, got)
}
