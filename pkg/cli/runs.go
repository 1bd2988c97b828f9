package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) runsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:         "runs",
		Annotations: writesRows,
		Short:       "List the runs, newest first",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit is %d; must be 1 or more", limit)
			}
			return a.read(cmd.Context(), func(v published) error {
				shown, err := v.Runs(cmd.Context(), limit, func(*state.Run) bool { return true })
				if err != nil {
					return err
				}
				if err := list(a, runColumns(event.At(a.Clock.Now())), shown); err != nil {
					return err
				}
				if older := v.RunCount() - len(shown); older > 0 && a.table() {
					upTo := ""
					if v.History.Since() != 0 {
						upTo = "up to "
					}
					a.note("… and %s%d older; raise --limit to see more", upTo, older)
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number of runs to list")
	return cmd
}

// names returns the names in a JSON list as the value of a cell.
func names(list string) any { return cells(view.Names(list)) }

func runColumns(now event.Time) []column[*state.Run] {
	number32 := func(name string, value func(*state.Run) int32) column[*state.Run] {
		return column[*state.Run]{Name: name, Machine: true, Value: func(r *state.Run) any { return value(r) }}
	}
	return []column[*state.Run]{
		{Name: "run_id", Value: func(r *state.Run) any { return r.RunID }},
		{Name: "state", Value: func(r *state.Run) any { return string(r.State) }},
		{Name: "trigger", Value: func(r *state.Run) any { return r.TriggerType }},
		{Name: "run_key", Machine: true, Value: func(r *state.Run) any { return orNil(r.RunKey) }},
		{Name: "assets", Value: func(r *state.Run) any { return names(r.RootAssets) }, Text: func(r *state.Run) any { return shortList(r.RootAssets) }},
		{Name: "assets_total", Machine: true, Value: func(r *state.Run) any { return r.RootAssetsTotal }},
		{Name: "partitions", Machine: true, Value: func(r *state.Run) any { return names(r.Partitions) }},
		{Name: "partitions_total", Machine: true, Value: func(r *state.Run) any { return r.PartitionsTotal }},
		{Name: "tasks", Value: func(r *state.Run) any { return r.TasksTotal }, Text: func(r *state.Run) any { return counts(r) }},
		number32("succeeded", func(r *state.Run) int32 { return r.TasksSucceeded }),
		number32("failed", func(r *state.Run) int32 { return r.TasksFailed }),
		number32("skipped", func(r *state.Run) int32 { return r.TasksSkipped }),
		number32("cancelled", func(r *state.Run) int32 { return r.TasksCancelled }),
		{
			Name: "created_at", Value: func(r *state.Run) any { return moment(r.CreatedAt) },
			Text: func(r *state.Run) any { return stamp(r.CreatedAt) },
		},
		{Name: "completed_at", Machine: true, Value: func(r *state.Run) any { return moment(r.CompletedAt) }},
		{
			Name: "duration", Value: func(r *state.Run) any { return view.Took(r, now).Seconds() },
			Text: func(r *state.Run) any { return number(view.Span(view.Took(r, now))) },
		},
	}
}

// shortList formats the first items of a JSON list of strings.
func shortList(list string) string {
	names := view.Names(list)
	const most = 3
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, " ")
}

func (a *app) tasksCommand() *cobra.Command {
	var only []string
	var all bool
	cmd := &cobra.Command{
		Use:         "tasks [RUN]",
		Annotations: writesRows,
		Short:       "List the tasks of a run",
		Args:        takes("[RUN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.namesStates(cmd) {
				only = append(only, strings.Split(a.state, ",")...)
				a.state = a.getenv("SERVO_STATE")
			}
			states, err := taskStates(only)
			if err != nil {
				return err
			}
			return a.read(cmd.Context(), func(v published) error {
				s, run, err := engine.FindRun(cmd.Context(), v.Snapshot, optional(args))
				if err != nil {
					return err
				}
				var tasks []*state.Task
				s.TasksOf(run.RunID, func(t *state.Task) bool {
					if (all || t.Kind != event.KindGroup) && (len(states) == 0 || slices.Contains(states, t.State)) {
						tasks = append(tasks, t)
					}
					return true
				})
				return list(a, taskColumns(event.At(a.Clock.Now())), tasks)
			})
		},
	}
	cmd.Flags().StringSliceVar(&only, "in", nil, "list only tasks in these states, for example FAILED,RETRY_WAIT")
	cmd.Flags().BoolVar(&all, "all", false, "include group nodes, which represent all partitions of an asset")
	return cmd
}

// namesStates reports whether --state contains names of task states instead of a folder. If so, the command treats
// --state as --in.
func (a *app) namesStates(cmd *cobra.Command) bool {
	if !cmd.Flags().Changed("state") || inCloud(a.state) || strings.ContainsRune(a.state, filepath.Separator) {
		return false
	}
	if _, err := taskStates(strings.Split(a.state, ",")); err == nil {
		return true
	}
	_, err := os.Stat(a.abs(a.state))
	return err != nil // if there is no such folder, the value is probably a misspelt task state
}

// taskStates parses the names of states, in upper or lower case.
func taskStates(names []string) ([]state.TaskState, error) {
	var known []string
	for _, s := range state.TaskStates() {
		known = append(known, string(s))
	}
	var states []state.TaskState
	for _, name := range names {
		name = strings.ToUpper(name)
		if !slices.Contains(known, name) {
			hint := "choose from " + strings.Join(known, ", ")
			if near := plan.Suggest(name, known); near != "" {
				hint = "did you mean " + near + "?"
			}
			return nil, usagef("unknown task state %q: %s", name, hint)
		}
		states = append(states, state.TaskState(name))
	}
	return states, nil
}

func taskColumns(now event.Time) []column[*state.Task] {
	return []column[*state.Task]{
		{Name: "run_id", Machine: true, Value: func(t *state.Task) any { return t.RunID }},
		{Name: "task", Value: func(t *state.Task) any { return t.TaskKey }, Text: func(t *state.Task) any { return readable(t.TaskKey) }},
		{Name: "kind", Machine: true, Value: func(t *state.Task) any { return cmp.Or(t.Kind, event.KindTask) }},
		{Name: "asset", Machine: true, Value: func(t *state.Task) any { return orNil(t.AssetKey) }},
		{Name: "partition", Machine: true, Value: func(t *state.Task) any { return orNil(t.PartitionKey) }},
		{Name: "state", Value: func(t *state.Task) any { return string(t.State) }},
		{Name: "attempt", Value: func(t *state.Task) any { return t.Attempt }},
		{Name: "max_attempts", Machine: true, Value: func(t *state.Task) any { return t.MaxAttempts }},
		{Name: "pool", Machine: true, Value: func(t *state.Task) any { return orNil(t.Pool) }},
		{Name: "worker", Machine: true, Value: func(t *state.Task) any { return orNil(t.WorkerID) }},
		{Name: "rows", Value: func(t *state.Task) any { return t.RowCount }, Text: func(t *state.Task) any { return ifDone(t, number(view.Grouped(t.RowCount))) }},
		{Name: "bytes", Value: func(t *state.Task) any { return t.ByteSize }, Text: func(t *state.Task) any { return ifDone(t, number(bytesText(t.ByteSize))) }},
		{Name: "started_at", Value: func(t *state.Task) any { return moment(t.StartedAt) }, Text: func(t *state.Task) any { return stamp(t.StartedAt) }},
		{Name: "completed_at", Machine: true, Value: func(t *state.Task) any { return moment(t.CompletedAt) }},
		{
			Name: "duration", Value: func(t *state.Task) any { return taskTook(t, now) },
			Text: func(t *state.Task) any { return taskTookText(t, now) },
		},
		{Name: "output_uri", Machine: true, Value: func(t *state.Task) any { return orNil(t.OutputURI) }},
		{Name: "error_code", Machine: true, Value: func(t *state.Task) any { return orNil(t.ErrorCode) }},
		{Name: "error", Value: func(t *state.Task) any { return orNil(t.ErrorMessage) }, Text: func(t *state.Task) any {
			if t.ErrorCode == "" && t.ErrorMessage == "" {
				return nil
			}
			return view.ErrorLine(t.ErrorCode, t.ErrorMessage)
		}},
	}
}

func ifDone(t *state.Task, cell any) any {
	if t.State != state.TaskSucceeded || t.Kind == event.KindGroup {
		return nil
	}
	return cell
}

func (a *app) logsCommand() *cobra.Command {
	var attempt int32
	var follow bool
	cmd := &cobra.Command{
		Use:        "logs [RUN] TASK",
		SuggestFor: []string{"log"},
		Short:      "Show a task's log",
		Long: `Show the log of a task's last attempt.

With --follow, stream the output of the task and of each retry until the task ends. If the task has not
started, wait for it. The exit code is 0 if the task succeeded, otherwise 1.`,
		Example: "  servo logs 'clean/daily[date=2012-01-01]'      of the latest run\n  servo logs -f clean/daily",
		Args:    takes("[RUN]", "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, task := runAndTask(args)
			return a.logs(cmd.Context(), run, task, attempt, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the log until the task ends; with --attempt, until that attempt ends")
	cmd.Flags().Int32Var(&attempt, "attempt", 0, "number of the attempt (default: the last one that started)")
	return cmd
}

// runAndTask returns the arguments [RUN] TASK.
func runAndTask(args []string) (run, task string) {
	if len(args) == 1 {
		return "", args[0]
	}
	return args[0], args[1]
}

func (a *app) logs(ctx context.Context, runID, task string, attempt int32, follow bool) error {
	if attempt < 0 {
		return usagef("--attempt is %d; must be 1 or more", attempt)
	}
	return a.read(ctx, func(v published) error {
		s, row, err := engine.FindTaskAnywhere(ctx, v.Snapshot, runID, task)
		if follow && runID == "" && errors.Is(err, engine.ErrNoTask) && a.declares(ctx, v, task) {
			s, row, err = a.awaitTask(ctx, &v, task)
		}
		if err != nil {
			return err
		}
		if newest, err := v.Runs(ctx, 1, func(*state.Run) bool { return true }); err == nil && runID == "" && newest[0].RunID != row.RunID {
			a.note("run %s: the newest run with %s", row.RunID, readable(row.TaskKey))
		}
		if follow {
			return a.tailLogs(ctx, v, row, attempt)
		}
		log, err := engine.ReadLog(ctx, v.Store, s, row, attempt)
		if err != nil {
			return err
		}
		if len(log.Text) == 0 {
			a.note("attempt %d of %s has no log: the task printed nothing, or its worker could not store the log", log.Attempt, readable(log.TaskKey))
			return nil
		}
		_, err = a.Stdout.Write(log.Text)
		a.notePartial(log)
		return err
	})
}

// notePartial says that the end of a log is missing, and why.
func (a *app) notePartial(log engine.Log) {
	switch {
	case !log.Partial:
	case log.State == state.AttemptClosed:
		a.note("servo: the log of attempt %d of %s is incomplete: its worker died, or could not store the end", log.Attempt, readable(log.TaskKey))
	default:
		a.note("servo: attempt %d of %s has not ended: this is what its worker has stored so far; follow it with `servo logs -f`", log.Attempt, readable(log.TaskKey))
	}
}

// declares reports whether the project declares the asset of a task.
func (a *app) declares(ctx context.Context, v published, task string) bool {
	asset, _, _ := strings.Cut(task, "[")
	r, err := project.LoadRetention(ctx, v.project.Root, a.projectOptions())
	return err == nil && slices.Contains(r.Assets(), asset)
}

// awaitTask waits until a run has the given task, and updates v to the newest state.
func (a *app) awaitTask(ctx context.Context, v *published, task string) (*state.State, *state.Task, error) {
	a.note("waiting: no run has a task %s yet; start one with `servo run`", task)
	most := folderLook
	if inCloud(v.dir) {
		most = cloudLook
	}
	for look := firstLook; ; look = min(2*look, most) {
		if err := a.Clock.Sleep(ctx, look); err != nil {
			return nil, nil, err
		}
		snap, err := v.Reader().Current(ctx)
		if err != nil {
			return nil, nil, err
		}
		v.Snapshot = snap
		s, row, err := engine.FindTaskAnywhere(ctx, snap, "", task)
		if !errors.Is(err, engine.ErrNoTask) {
			return s, row, err
		}
	}
}
