package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxCompletions is the maximum number of candidates that a completion returns to the shell.
const maxCompletions = 1000

// candidates returns the possible values of the next argument after args. A tab separates a
// value from its optional description.
type candidates func(ctx context.Context, args []string) []string

// completions registers the candidates for arguments and flags. Completion reports no errors:
// it omits candidates that it cannot determine.
func (a *app) completions(root *cobra.Command) {
	arguments := map[string]candidates{
		"run": a.completeAssets, "check": a.completeAssets, "assets": a.completeAssets, "checks": a.completeAssets, "test": a.completeAssets, "export": a.completeAssets,
		"status": a.completeRun, "tasks": a.completeRun, "retry": a.completeRun, "cancel": a.completeRun,
		"logs": a.completeRunAndTask, "explain": a.completeRunAndTask,
	}
	for _, c := range root.Commands() {
		if of, ok := arguments[c.Name()]; ok {
			c.ValidArgsFunction = completing(of)
		}
		for _, child := range c.Commands() {
			if c.Name() == "partitions" && child.Args != nil {
				child.ValidArgsFunction = completing(a.completeKeys)
			}
		}
		completeFlag(c, "in", func(context.Context, []string) []string { return taskStateNames() })
	}
	completeFlag(root, "env", func(context.Context, []string) []string { return a.completeEnvironments() })
	completeFlag(root, "output", func(context.Context, []string) []string { return render.Formats() })
	completeFlag(root, "log-level", func(context.Context, []string) []string { return []string{"debug", "info", "warn", "error"} })
}

// completeFlag registers the values of a flag, if the command has it.
func completeFlag(c *cobra.Command, name string, of candidates) {
	if c.Flags().Lookup(name) == nil && c.PersistentFlags().Lookup(name) == nil {
		return
	}
	if err := c.RegisterFlagCompletionFunc(name, completing(of)); err != nil {
		panic(fmt.Sprintf("cli: %v", err)) // cannot happen: the flag exists
	}
}

func completing(of candidates) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		// A list such as FAILED,RETRY_WAIT is completed after its last comma.
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var found []string
		for _, c := range of(cmd.Context(), args) {
			if strings.HasPrefix(before+c, typed) && len(found) < maxCompletions {
				found = append(found, before+c)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func taskStateNames() []string {
	var names []string
	for _, s := range state.TaskStates() {
		names = append(names, string(s))
	}
	return names
}

func (a *app) completeAssets(ctx context.Context, args []string) []string {
	return slices.DeleteFunc(a.declared(ctx), func(key string) bool { return slices.Contains(args, key) })
}

// completeKeys completes the arguments SET KEY…: first a key set, then keys of this set.
func (a *app) completeKeys(ctx context.Context, args []string) (found []string) {
	_ = a.read(ctx, func(v published) error {
		if len(args) > 0 {
			found = slices.DeleteFunc(v.State.Keys(args[0]), func(key string) bool { return slices.Contains(args[1:], key) })
			return nil
		}
		for _, set := range v.State.ListKeySets() {
			found = append(found, fmt.Sprintf("%s\t%s", set.Name, plural(set.Keys, "key")))
		}
		return nil
	})
	return found
}

func (a *app) completeRun(ctx context.Context, args []string) (found []string) {
	if len(args) > 0 {
		return nil
	}
	_ = a.read(ctx, func(v published) (err error) {
		found, err = runCandidates(ctx, v, event.At(a.Clock.Now()))
		return err
	})
	return found
}

// completeRunAndTask completes [RUN] TASK. For the first argument it offers the tasks of the
// newest run, and the runs. For the second it offers the tasks of the named run.
func (a *app) completeRunAndTask(ctx context.Context, args []string) (found []string) {
	if len(args) > 1 {
		return nil
	}
	_ = a.read(ctx, func(v published) error {
		s, run, err := engine.FindRun(ctx, v.Snapshot, optional(args))
		if err != nil {
			return err
		}
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			if t.Kind != event.KindGroup {
				found = append(found, fmt.Sprintf("%s\t%s", t.TaskKey, t.State))
			}
			return true
		})
		if len(args) == 1 {
			return nil
		}
		runs, err := runCandidates(ctx, v, event.At(a.Clock.Now()))
		found = append(found, runs...)
		return err
	})
	return found
}

// runCandidates returns the newest runs, each with its state, assets and age.
func runCandidates(ctx context.Context, v published, now event.Time) ([]string, error) {
	const most = 50
	runs, err := v.Runs(ctx, most, func(*state.Run) bool { return true })
	var found []string
	for _, r := range runs {
		found = append(found, fmt.Sprintf("%s\t%s %s, %s ago", r.RunID, r.State, shortList(r.RootAssets), view.Span(now.Sub(r.CreatedAt))))
	}
	return found, err
}
