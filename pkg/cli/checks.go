package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkColumns are the columns of the list of checks.
var checkColumns = []column[view.AssetCheck]{
	{Name: "asset", Value: func(c view.AssetCheck) any { return c.Asset }},
	{Name: "check", Value: func(c view.AssetCheck) any { return c.Check }},
	{Name: "kind", Value: func(c view.AssetCheck) any { return c.Kind }},
	{Name: "phase", Machine: true, Value: func(c view.AssetCheck) any { return strings.ToLower(c.Phase) }},
	{Name: "severity", Value: func(c view.AssetCheck) any { return strings.ToLower(c.Severity) }},
	{Name: "passed", Value: func(c view.AssetCheck) any { return rowOf(c).Passed }},
	{Name: "failed", Value: func(c view.AssetCheck) any { return rowOf(c).Failed }},
	{Name: "last", Value: func(c view.AssetCheck) any { return orNil(c.Last()) }},
	{Name: "last_at", Machine: true, Value: func(c view.AssetCheck) any { return moment(rowOf(c).LastAt) }},
	{Name: "last_run_id", Machine: true, Value: func(c view.AssetCheck) any { return orNil(rowOf(c).LastRunID) }},
	{Name: "failed_partition", Machine: true, Value: func(c view.AssetCheck) any { return orNil(rowOf(c).FailedPartition) }},
	{Name: "failed_run_id", Machine: true, Value: func(c view.AssetCheck) any { return orNil(rowOf(c).FailedRunID) }},
	{Name: "failed_sample", Machine: true, Value: func(c view.AssetCheck) any { return orNil(rowOf(c).FailedSample) }},
	{Name: "last_failure", Value: func(c view.AssetCheck) any { return orNil(rowOf(c).FailedMessage) }, Text: func(c view.AssetCheck) any {
		return orNil(view.OneLine(rowOf(c).FailedMessage))
	}},
}

// rowOf returns the row of a check. The row is empty if the check has no result.
func rowOf(c view.AssetCheck) *state.AssetCheck {
	if c.Row == nil {
		return &state.AssetCheck{}
	}
	return c.Row
}

func (a *app) checksCommand() *cobra.Command {
	var f assetFlags
	var rows, runID string
	cmd := &cobra.Command{
		Use:         "checks [SELECTION…]",
		Annotations: writesRows,
		Short:       "List the checks of assets and their results, or show the failing rows of a check",
		Example:     "  servo checks clean/daily\n  servo checks 'clean/daily[date=2025-01-15]' --rows unique_city",
		Args:        takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case rows != "" && len(args) != 1:
				return usagef("--rows %s shows the rows of one asset or task: name the asset or the task", rows)
			case rows != "":
				return a.failingRows(cmd.Context(), args[0], rows, runID)
			case runID != "":
				return usagef("--run %s needs --rows: name the check whose failing rows to show", runID)
			}
			p, chosen, err := a.listed(cmd.Context(), &f, args)
			if err != nil {
				return err
			}
			s, err := a.current(cmd.Context(), p)
			if err != nil {
				return err
			}
			var checks []view.AssetCheck
			for i := range p.Assets {
				if _, found := slices.BinarySearchFunc(chosen.Keys, p.Assets[i].Key, plan.CompareKeys); found {
					checks = append(checks, view.AssetChecks(s, &p.Assets[i])...)
				}
			}
			return list(a, checkColumns, checks)
		},
	}
	f.add(cmd, "list the checks of")
	cmd.Flags().StringVar(&rows, "rows", "", "show the failing rows that this check has stored, instead of the list")
	cmd.Flags().StringVar(&runID, "run", "", "with --rows: show the rows of this run (default: of the last failure)")
	return cmd
}

// failedChecks prints the checks that did not pass in a run.
func (a *app) failedChecks(s *state.State, runID string) {
	found := view.FailedChecks(s, runID)
	for i, c := range found {
		if i == maxFailures {
			a.note("… and %s: servo checks", plural(len(found)-maxFailures, "more check"))
			break
		}
		others := ""
		if c.Tasks > 1 {
			others = " (and " + plural(c.Tasks-1, "more task") + ")"
		}
		a.note("check %s of %s %s, %s%s: %s", c.Check, readable(c.Task), c.Verdict(), strings.ToLower(c.Severity), others, view.OneLine(c.Message))
		if c.Sample != "" {
			a.note("       failing rows: %s", rowsCommand(c.Task, c.Check, runID))
		}
	}
	if len(found) > 0 {
		a.note("")
	}
}
