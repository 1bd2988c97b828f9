package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func (a *app) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "validate",
		SuggestFor:  []string{"lint", "compile", "parse"},
		Annotations: writesRows,
		Short:       "Check the project and report every problem",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := a.projectDir()
			if err != nil {
				return err
			}
			o := a.projectOptions()
			o.Validate = true
			p, err := a.load(cmd.Context(), dir, o)
			var problems project.Problems
			if err != nil && !errors.As(err, &problems) {
				return fmt.Errorf("load project %s: %w", dir, err)
			}
			skipped := ""
			var warnings []string
			if p != nil {
				var more project.Problems
				if more, warnings, skipped, err = a.bind(cmd.Context(), p); err != nil {
					return err
				}
				problems = append(problems, more...).Sorted()
			}
			if a.table() {
				a.noteSchema(dir)
			}
			switch {
			case !a.table() && len(problems) > 0:
				return errors.Join(list(a, problemColumns, problems), errReported)
			case !a.table():
				return list(a, problemColumns, nil)
			case len(problems) > 0:
				for _, problem := range problems {
					fmt.Fprintln(a.Stdout, a.problemText(problem))
				}
				a.note("servo: %s in project %s", plural(len(problems), "problem"), dir)
				return errReported
			}
			a.warnings(warnings)
			a.warnings(largeResources(p.Assets, worker.MachineMemory()))
			a.warnings(surprises(p.Schedules))
			a.warnings(a.unfitting(p.Assets))
			a.note("project %s is valid: %s%s", a.style.bold(p.Name), describeAssets(p.Assets), skipped)
			return nil
		},
	}
}

// largeResources warns of assets that declare more memory than this machine has. It omits assets with a worker queue
// of their own, because the workers of the queue may have more memory.
func largeResources(assets []plan.Asset, memory int64) (found []string) {
	for i := range assets {
		a := &assets[i]
		if r := a.Work.Resources; r != nil && r.MemoryBytes > memory && (a.WorkerQueue == "" || a.WorkerQueue == "default") {
			found = append(found, fmt.Sprintf("%s: resources.memory is %s, but this machine has only %s: tasks of the asset fail on this machine with %s",
				a.Key, bytesText(r.MemoryBytes), bytesText(memory), worker.CodeResourcesExceeded))
		}
	}
	return found
}

// unfitting warns of assets whose first partition can never be materialized, because an upstream asset starts later. It
// also warns of assets that read periods of another time zone.
func (a *app) unfitting(assets []plan.Asset) []string {
	g, err := plan.NewGraph(assets)
	if err != nil {
		return nil // the error was already reported as a problem
	}
	clock := plan.Calendar{Now: a.Clock.Now(), Zone: calendar.Zone}
	return append(slices.Sorted(maps.Values(plan.StartsEarly(g, clock))), plan.OtherZones(g, clock)...)
}

// surprises warns of schedules that may tick at other times than their author expects.
func surprises(schedules []event.Schedule) (found []string) {
	for i := range schedules {
		if compiled, err := calendar.Compile(&schedules[i]); err == nil { // an error was already reported as a problem
			for _, note := range compiled.Notes() {
				found = append(found, "schedule "+schedules[i].Name+": "+note)
			}
		}
	}
	return found
}

var problemColumns = []column[project.Problem]{
	{Name: "file", Value: func(p project.Problem) any { return p.File }},
	{Name: "line", Value: func(p project.Problem) any { return p.Line }},
	{Name: "column", Value: func(p project.Problem) any { return p.Column }},
	{Name: "message", Value: func(p project.Problem) any { return p.Message }},
	{Name: "suggestion", Value: func(p project.Problem) any { return orNil(p.Suggestion) }},
}

// describeAssets counts the assets of each kind.
func describeAssets(assets []plan.Asset) string {
	partitioned, edges := 0, 0
	for i := range assets {
		edges += len(assets[i].Deps)
		if assets[i].Partitions != nil {
			partitioned++
		}
	}
	return fmt.Sprintf("%s (%d partitioned), %s between them",
		plural(len(assets), "asset"), partitioned, dependencies(edges))
}

func dependencies(n int) string {
	if n == 1 {
		return "1 dependency"
	}
	return fmt.Sprintf("%d dependencies", n)
}
