package query

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRowSizeIsMeasuredBeforeConversion(t *testing.T) {
	db, err := Open(t.Context(), Source{}, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	const mib = 1 << 20
	tests := []struct {
		name, sql string
		fits      bool
	}{
		{"small", "SELECT 1, 'x', NULL, [1, NULL], {'a': [2]}, MAP {'k': 1.5}, ARRAY_VALUE(1, 2), UNION_VALUE(n := 'x'), 'a'::BLOB", true},
		{"every type", "SELECT COLUMNS(c -> c != 'time_ns' AND c NOT LIKE 'variant%') FROM test_all_types()", true},
		{"text", "SELECT repeat('x', 1200000)", false},
		{"many texts that fit", "SELECT repeat('x', 1000) FROM range(10000)", true},
		{"list", "SELECT range(200000)", false},
		{"later row", "SELECT CASE WHEN i = 5000 THEN range(200000) END FROM range(6000) t(i)", false},
		{"list of NULL", "SELECT list_transform(range(200000), x -> NULL)", false},
		{"list of lists", "SELECT list_transform(range(12000), x -> range(10))", false},
		{"structs", "SELECT list_transform(range(12000), x -> {'a': x})", false},
		{"map", "SELECT map_from_entries(list_transform(range(12000), x -> (x, x)))", false},
		{"small map", "SELECT map_from_entries(list_transform(range(2000), x -> (x, x)))", true},
		{"map that takes long", "SELECT map_from_entries(list_transform(range(2900), x -> (x, true)))", false},
		// DuckDB allocates memory for 2,048 arrays for each vector. So the array is short, and the row is large because
		// of its long texts.
		{"array", "SELECT list_transform(range(100), x -> repeat('x', 12000))::VARCHAR[100]", false},
		{"union", "SELECT union_value(t := repeat('x', 1200000))", false},
		{"blob", "SELECT repeat('x', 1200000)::BLOB", false},
		{"JSON", "SELECT to_json(range(50000))", false},
		{"garbage below NULL", "SELECT CASE WHEN i < 0 THEN range(200000) END FROM range(5000) t(i)", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rows, err := db.Query(t.Context(), test.sql)
			require.NoError(t, err)
			rows.MaxRowBytes = mib
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := rows.Collect(10_000)
			runtime.ReadMemStats(&after)
			if test.fits {
				require.NoError(t, err)
				require.NotEmpty(t, got)
				return
			}
			require.ErrorContains(t, err, "a row takes more than 1 MiB of memory")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*mib), "the row was converted")
		})
	}
}

func TestNestingLimits(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, sql := range []string{
		"SELECT " + deep(MaxNesting),
		"SELECT '" + deep(200) + "', \"" + deep(200) + "\" -- " + deep(200) + "\n, $x$" + deep(200) + "$x$ /* " + deep(200) + " */",
		"SELECT ((1; SELECT " + deep(99),
		strings.Repeat("VALUES (1, [2, {'a': 3}]);", 10_000),
		"SELECT 1 " + strings.Repeat(")", 500) + deep(100),
	} {
		require.NoError(t, checkNesting(sql))
	}
	require.EqualError(t, checkNesting("SELECT '\n',\n"+strings.Repeat("(", 50)+strings.Repeat("{'a': [", 26)),
		"line 3: brackets are nested more than 100 deep: split the expression or the subquery")
	require.ErrorContains(t, checkNesting("SELECT "+strings.Repeat(deep(100)+",", 40)), "too many deeply nested brackets")
	for _, before := range []string{"--\r", "$é$'$é$,", "/* ' */ 1 AS x\u00a0$$,", "\u00a0$$'$$,"} {
		require.ErrorContains(t, checkNesting("SELECT "+before+deep(101)), "nested more than 100 deep", before)
	}
}

// Query must return when its context ends, even while DuckDB prepares a statement, which cannot be interrupted.
func TestQueryReturnsWhileDuckDBPrepares(t *testing.T) {
	db, err := Open(t.Context(), Source{}, Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = db.Query(ctx, "SELECT 1"+strings.Repeat(", "+strings.Repeat("{'a': ", MaxNesting)+"1"+strings.Repeat("}", MaxNesting), 10))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, db.mu.TryLock(), "DuckDB has returned already")
	require.NoError(t, db.Close())
}
