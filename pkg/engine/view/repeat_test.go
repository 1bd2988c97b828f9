package view_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/state"
)

func repeatOf(codes ...string) (f view.Repeat) {
	for _, code := range codes {
		f.Add(&state.Task{ErrorCode: code})
	}
	return f
}

func TestRetryIsOfferedOnlyIfItCanSucceed(t *testing.T) {
	for _, c := range []struct {
		codes []string
		want  []string
	}{
		{nil, []string{"servo retry R --failed"}}, // the run was cancelled
		{[]string{"NETWORK_ERROR"}, []string{"servo retry R --failed"}},
		{[]string{"HEARTBEAT_TIMEOUT"}, []string{"servo retry R --failed"}},
		{[]string{"EXIT_STATUS"}, []string{"servo run --failed-only", "servo retry R --failed"}},
		{[]string{"X_QUOTA"}, []string{"servo run --failed-only", "servo retry R --failed"}},
		{[]string{"SECRET_MISSING"}, []string{"servo run --failed-only", "servo retry R --failed"}},
		{[]string{"COMMAND_NOT_FOUND"}, []string{"servo run --failed-only"}},
		{[]string{"SOURCE_DENIED"}, []string{"servo run --failed-only"}},
		{[]string{"RESOURCES_EXCEEDED"}, []string{"servo run --failed-only"}},
		{[]string{"PLAN_MISSING"}, []string{"servo run --failed-only"}},
		{[]string{"INVALID_INPUT"}, []string{"servo run --failed-only"}},
		{[]string{"INVALID_MARKER"}, []string{"servo run --failed-only"}},
		{[]string{"INVALID_INPUT", "NETWORK_ERROR"}, []string{"servo run --failed-only", "servo retry R --failed"}},
		{[]string{"CHECK_FAILED"}, []string{"servo run --failed-only"}},
		{[]string{"SQL_ERROR"}, []string{"servo run --failed-only"}},
		{[]string{"CHECK_FAILED", "SQL_ERROR"}, []string{"servo run --failed-only"}},
		{[]string{"SQL_ERROR", "EXIT_STATUS"}, []string{"servo run --failed-only", "servo retry R --failed"}},
	} {
		var got []string
		for _, step := range repeatOf(c.codes...).Steps("R") {
			got = append(got, step.Command)
			require.NotEmpty(t, step.Reason)
		}
		require.Equal(t, c.want, got, "%v", c.codes)
		advice := strings.Join(repeatOf(c.codes...).Advice("R"), "\n")
		for _, command := range c.want {
			require.Contains(t, advice, ": "+command, "%v", c.codes)
		}
		require.Equal(t, len(c.want) == 1 && c.want[0] == "servo run --failed-only", !strings.Contains(advice, "servo retry"), "%v", c.codes)
	}
	checks := view.Repeat{Total: 1, Checks: 1, OnlyChecks: true}
	require.Equal(t, view.StepFix, checks.Steps("R")[0].Action)
}

func TestRetryOfAssetNeedsTasksOfOneRun(t *testing.T) {
	f := repeatOf("EXIT_STATUS", "EXIT_STATUS")
	require.Equal(t, view.StepRetry, f.StepOf("a/b", "R", true).Action)
	several := f.StepOf("a/b", "R", false)
	require.Equal(t, "servo run a/b --failed-only", several.Command)
	require.Contains(t, several.Reason, "several runs")
	require.Equal(t, view.StepRun, repeatOf("SQL_ERROR", "EXIT_STATUS").StepOf("a/b", "R", true).Action)
}

func TestStepOfAssetNamesBothActionsIfUnclear(t *testing.T) {
	step := repeatOf("EXIT_STATUS").StepOf("a/b", "R", true)
	require.Equal(t, "servo retry R --failed", step.Command)
	require.Contains(t, step.Reason, "servo run a/b --failed-only")
	require.Equal(t, view.StepRun, repeatOf("COMMAND_NOT_FOUND").StepOf("a/b", "R", true).Action)
	require.Equal(t, view.StepRun, repeatOf("INVALID_INPUT").StepOf("a/b", "R", true).Action)
}

// An upstream that has succeeded with the rejected data is fresh, so --failed-only does not read the corrected data.
func TestAdviceForChecksNamesUpstreams(t *testing.T) {
	const upstreams = "run the assets that read the corrected data, then run the failed partitions again"
	f := repeatOf("CHECK_FAILED")
	require.Contains(t, strings.Join(f.Advice("R"), "\n"), upstreams)
	require.Contains(t, f.Steps("R")[0].Reason, upstreams)
	require.Contains(t, repeatOf("CHECK_FAILED", "SQL_ERROR").StepOf("a/b", "R", true).Reason, upstreams)
	require.NotContains(t, repeatOf("SQL_ERROR").Advice("R")[0], upstreams)
}

func TestAdviceForMissingFilesNamesDelivery(t *testing.T) {
	const deliver = ", or deliver the missing files, then run the failed partitions again"
	f := repeatOf("SQL_ERROR")
	require.NotContains(t, f.Advice("R")[0], "deliver")
	f.Add(&state.Task{ErrorCode: "SQL_ERROR", ErrorMessage: `assets/r/a.sql:1:15: IO Error: No files found that match the pattern "data/x.csv"`})
	require.Equal(t, "fix the code or the settings of the failed tasks"+deliver+": servo run --failed-only", f.Advice("R")[0])
	require.Contains(t, f.Steps("R")[0].Reason, deliver)
}
