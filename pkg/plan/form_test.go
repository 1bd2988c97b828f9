package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
)

func TestSelectFormatsSelectionInEachForm(t *testing.T) {
	require.Equal(t, "-p 2025-01-15", plan.Flags.Select("2025-01-15"))
	require.Equal(t, "-p 'date=2025-01-15;region=*'", plan.Flags.Select("date=2025-01-15;region=*"), "quoted for the shell")
	require.Equal(t, `"partitions": ["date=2025-01-15;region=*"]`, plan.Fields.Select("date=2025-01-15;region=*"))
	require.Equal(t, "partitions: date=2025-01-15;region=*", plan.Schedule.Select("date=2025-01-15;region=*"))
}

func TestEveryOptionHasNameInEachForm(t *testing.T) {
	for option := plan.OptionPartitions; option <= plan.OptionChunk; option++ {
		for _, form := range []plan.Form{plan.Flags, plan.Fields, plan.Schedule} {
			require.NotEmpty(t, form.Name(option))
		}
		require.Regexp(t, `^--?[a-z]`, plan.Flags.Name(option))
		require.NotContains(t, plan.Fields.Name(option)+plan.Schedule.Name(option), "-")
	}
}
