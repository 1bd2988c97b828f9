package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

func (a *app) deadlinesCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "deadlines",
		Annotations: writesRows,
		Short:       "List the deadlines of assets, and show which are late or at risk",
		Long: "List the deadlines, freshness and SLAs of the deployed release. A deadline is at risk if the missing work would\n" +
			"take longer than the time that is left. A task is expected to take the 95th percentile of the durations of\n" +
			"earlier tasks.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).ListDeadlines(cmd.Context(), &servov1.ListDeadlinesRequest{})
				if err != nil {
					return err
				}
				all := api.ReadAll[engine.Promise](found.GetDeadlines())
				if len(all) == 0 && a.table() {
					a.note("the deployed release has no deadlines: add `deadline`, `freshness` or `sla` to an asset")
				}
				return list(a, promiseColumns(), all)
			})
		},
	}
}

func promiseColumns() []column[engine.Promise] {
	return []column[engine.Promise]{
		{Name: "asset", Value: func(p engine.Promise) any { return p.Asset }},
		{
			Name: "status", Value: func(p engine.Promise) any { return orNil(p.Status) },
			Text: func(p engine.Promise) any { return orNil(strings.ReplaceAll(p.Status, "_", " ")) },
		},
		{Name: "period", Value: func(p engine.Promise) any { return orNil(p.Period) }},
		{
			Name: "due_at", Value: func(p engine.Promise) any { return moment(p.DueAt) },
			Text: func(p engine.Promise) any { return stamp(p.DueAt) },
		},
		{
			Name: "needs_sec", Value: func(p engine.Promise) any { return p.NeedsSec },
			Text: func(p engine.Promise) any { return span(p.NeedsSec) },
		},
		{Name: "late", Value: func(p engine.Promise) any { return orNil(lateText(p.Late)) }},
		{Name: "freshness", Value: func(p engine.Promise) any { return orNil(p.Freshness) }},
		{
			Name: "fresh_until", Value: func(p engine.Promise) any { return moment(p.LagAt) },
			Text: func(p engine.Promise) any { return stamp(p.LagAt) },
		},
		{Name: "sla_run_sec", Machine: true, Value: func(p engine.Promise) any { return p.RunSec }},
		{Name: "sla_task_sec", Machine: true, Value: func(p engine.Promise) any { return p.TaskSec }},
		{Name: "error", Value: func(p engine.Promise) any { return orNil(p.Error) }},
	}
}

// lateText lists the first three late periods and, if there are more, the number of all late periods.
func lateText(late []string) string {
	const shown = 3
	if len(late) > shown {
		return strings.Join(late[:shown], " ") + fmt.Sprintf(" … %d in all", len(late))
	}
	return strings.Join(late, " ")
}

func span(seconds float64) any {
	if seconds == 0 {
		return nil
	}
	return view.Span(time.Duration(cmp.Or(seconds, 0) * float64(time.Second)))
}
