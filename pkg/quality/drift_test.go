package quality_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/quality"
)

func TestMixedNamesTypesAndLackingColumns(t *testing.T) {
	retyped, lacking := quality.Mixed(
		[]quality.ColumnType{{Name: "id", Type: "BIGINT"}, {Name: "same", Type: "DATE"}, {Name: "gone", Type: "X\x1b"}},
		[]quality.ColumnType{{Name: "same", Type: "DATE"}, {Name: "id", Type: "DOUBLE"}, {Name: "a\nb", Type: "DATE"}},
		[]quality.ColumnType{{Name: "id", Type: "BIGINT"}, {Name: "same", Type: "DATE"}, {Name: "gone", Type: "DATE"}},
	)
	require.Equal(t, []string{`"id" (BIGINT, DOUBLE)`, `"gone" (X\x1b, DATE)`}, retyped)
	require.Equal(t, []string{`"gone"`, `"a\nb"`}, lacking)

	retyped, lacking = quality.Mixed([]quality.ColumnType{{Name: "n", Type: "DATE"}}, []quality.ColumnType{{Name: "n", Type: "DATE"}})
	require.Empty(t, retyped)
	require.Empty(t, lacking)
}
