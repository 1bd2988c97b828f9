package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// runFlags are the flags of servo run.
type runFlags struct {
	assets                   assetFlags
	resume, dry              bool
	partitions, labels, vars []string
	runKey                   string
	wait, detach             bool
	parallelism              int32
	timeout                  time.Duration
	stale, missing, failed   bool
	allowIncomplete          bool
	allowFuture              bool
	at                       string
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:         "run [SELECTION…]",
		SuggestFor:  []string{"build", "materialize"},
		Annotations: writesRows,
		Short:       "Materialize assets: plan a run, execute it, and wait until it ends",
		Long: "Materialize assets. If a servo process owns the state folder (`servo dev`, or another `servo run`),\n" +
			"that process executes the run and this one follows it; otherwise this process executes it. The\n" +
			"executing process stays until all its runs have ended, including runs that other processes handed to it.\n" +
			"If it dies, nothing is lost: the next process continues from the ledger.",
		Example: "  servo run --all -p date=2025-01-01..2025-01-31\n" +
			"  servo run report/climate --upstream\n" +
			"  servo run 'raw/* and tag:pii' --exclude raw/old --dry-run\n" +
			"  servo run --all --run-key nightly-2025-01-15      a second request with this key attaches to the same run",
		Args: takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.wait {
				err = exclusive(cmd, "wait", "detach")
			}
			for _, flag := range []string{"resume", "wait", "detach"} {
				err = errors.Join(err, exclusive(cmd, "dry-run", flag))
			}
			for _, flag := range []string{"all", "upstream", "downstream", "exclude", "partition", "run-key", "wait", "detach", "timeout", "label", "var", "max-parallelism", "allow-incomplete", "allow-future"} {
				err = errors.Join(err, exclusive(cmd, "resume", flag))
			}
			for _, flag := range []string{"dry-run", "resume", "wait", "detach", "run-key", "var", "allow-future"} {
				err = errors.Join(err, exclusive(cmd, "at", flag))
			}
			err = errors.Join(err, f.exclusiveNeeds(cmd))
			switch {
			case err != nil:
				return err
			case f.resume:
				return a.resume(cmd.Context(), args)
			}
			err = a.run(cmd.Context(), f, args)
			if early := new(space.NotBegunError); f.at == "" && errors.As(err, &early) {
				return fmt.Errorf("%w, or add --allow-future", err) // --at and --allow-future exclude each other
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.assets.all, "all", false, "run every asset of the project")
	f.assets.add(cmd, "run")
	flags.StringArrayVarP(&f.partitions, "partition", "p", nil, "partitions to run: date=2025-01-15 or date=2025-01-01..2025-01-31 (repeatable)")
	flags.BoolVar(&f.allowIncomplete, "allow-incomplete", false, "accept missing partitions of upstream assets where an asset requires all (requires: complete)")
	flags.BoolVar(&f.allowFuture, "allow-future", false, "let -p select periods that have not begun")
	flags.BoolVar(&f.dry, "dry-run", false, "list the tasks that would run, with an estimate; start nothing and write nothing")
	f.addNeeds(cmd)
	flags.StringVar(&f.at, "at", "", "run at a later time: 22:30, 2025-01-31T22:30 or +90m; the run is planned then, with the code that is deployed then")
	flags.StringVar(&f.runKey, "run-key", "", "idempotency key, unique for 30 days: the same request attaches to the existing run")
	flags.BoolVar(&f.wait, "wait", true, "wait until the run has ended; --wait=false means --detach")
	flags.BoolVar(&f.detach, "detach", false, "hand the run to the process that owns the state folder, and do not wait")
	flags.Int32Var(&f.parallelism, "max-parallelism", 0, "maximum number of concurrent tasks of the run (default: max_parallelism of servo.yaml)")
	flags.DurationVar(&f.timeout, "timeout", 0, "time limit of the run, for example 2h")
	flags.StringArrayVar(&f.labels, "label", nil, "a label of the run: name=value (repeatable)")
	flags.StringArrayVar(&f.vars, "var", nil, "the value of a variable of servo.yaml in this run: name=value (repeatable)")
	flags.BoolVar(&f.resume, "resume", false, "start nothing new; resume unfinished runs")
	a.traceFlags(cmd)
	return cmd
}

func (a *app) run(ctx context.Context, f runFlags, args []string) error {
	f.assets.all = f.assets.all || f.need() != "" && len(args) == 0
	request, err := f.request(args)
	if err != nil {
		return err
	}
	choice, err := f.assets.parse(args)
	if err != nil {
		return err
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	if f.at != "" {
		return a.requestRun(ctx, f, args, &request, choice)
	}
	dir, err := a.projectDir()
	if err != nil {
		return err
	}
	request.Trigger = event.Trigger{Type: "manual", UserID: a.User}
	choose := func(assets []plan.Asset) ([]ids.AssetKey, error) {
		chosen, err := choice.resolve(assets)
		request.Roots, request.Plan.Select, request.Plan.Matched = chosen.Roots, chosen.Named, chosen.Matched
		return chosen.Named, err
	}
	// An error is ignored here, because usableProject reports all problems of the project.
	if settings, err := project.LoadSettings(dir, a.projectOptions()); err == nil && explicit(settings) {
		return a.runDeployed(ctx, settings, f, &request, choose)
	}
	p, err := a.usableProject(ctx, choose)
	if err != nil {
		return err
	}
	if len(p.Assets) == 0 {
		return fmt.Errorf("nothing to run: the project %s declares no assets: add .sql or .yaml files to %s", p.Root, project.AssetsDir)
	}
	with, vars, err := a.override(p, f.vars)
	if err != nil {
		return err
	}
	request.Vars = vars
	request.Plan.Root, request.Plan.Data, request.Plan.Assets = p.Root, p.Data, with.Assets
	return a.start(ctx, f, p, &request, func(ctx context.Context, s *session) (engine.RunHandle, error) {
		// If the run cannot be planned, nothing is deployed. If there is nothing to run, the files are deployed.
		current, sha, err := a.deployLocal(ctx, s, p, func(snap *snapshot.Snapshot) error {
			planned := request
			switch _, err := engine.Choose(ctx, snap, &planned, a.Clock.Now()); {
			case errors.Is(err, engine.ErrNothing):
				return nil // the files may differ in more than assets, for example in a schedule
			case err != nil:
				return err
			}
			_, err := engine.Prepare(ctx, snap, planned.Plan, a.Clock.Now())
			return err
		})
		if err != nil {
			return engine.RunHandle{}, err
		}
		if current, err = current.Override(vars); err != nil {
			return engine.RunHandle{}, err
		}
		request.Release, request.Plan.Assets = sha, current.Assets
		return s.Run(ctx, request)
	})
}

// start starts a run of a project, or shows what it would do.
func (a *app) start(ctx context.Context, f runFlags, p *project.Project, request *engine.RunRequest, run trigger) error {
	if request.MaxParallelism == 0 {
		request.MaxParallelism = p.MaxParallelism
	}
	if f.dry {
		return a.orNothing(a.dryRun(ctx, p, *request))
	}
	t := func(ctx context.Context, s *session) (engine.RunHandle, error) {
		if err := a.limits(ctx, s, p); err != nil {
			return engine.RunHandle{}, err
		}
		return run(ctx, s)
	}
	if f.detach || !f.wait {
		return a.orNothing(a.detach(ctx, p, t))
	}
	return a.orNothing(a.execute(ctx, p, t))
}

// runDeployed runs assets of the deployed release, in an environment that deploys explicitly. It reads the files of
// this folder only to print how they differ from the release.
func (a *app) runDeployed(
	ctx context.Context, settings *project.Project, f runFlags, request *engine.RunRequest, choose func([]plan.Asset) ([]ids.AssetKey, error),
) error {
	d, err := a.deployedRelease(ctx, settings)
	if err != nil {
		return err
	}
	if _, err := choose(d.project.Assets); err != nil {
		return err
	}
	p, vars, err := a.override(d.project, f.vars)
	if err != nil {
		return err
	}
	request.Vars, request.Release = vars, d.sha
	request.Plan.Source, request.Plan.Data, request.Plan.Assets = d.release.Source, p.Data, p.Assets
	return a.start(ctx, f, p, request, func(ctx context.Context, s *session) (engine.RunHandle, error) { return s.Run(ctx, *request) })
}

// request converts the flags and arguments to a request. It does not need the project.
func (f *runFlags) request(args []string) (engine.RunRequest, error) {
	r := engine.RunRequest{
		RunKey: f.runKey, MaxParallelism: f.parallelism, Need: f.need(), Plan: plan.Request{AllowIncomplete: f.allowIncomplete, AllowFuture: f.allowFuture},
	}
	switch {
	case f.assets.all && len(args) > 0:
		return r, usagef("--all already includes every asset: remove %s, or --all", strings.Join(args, " "))
	case !f.assets.all && len(args) == 0:
		return r, usagef("no assets selected: name assets, or select all of them with --all; list them with `servo assets`")
	case f.allowFuture && len(f.partitions) == 0:
		return r, usagef("--allow-future applies to partitions that -p selects: add -p, or remove --allow-future")
	case f.parallelism < 0:
		return r, usagef("--max-parallelism is %d; must be 1 or more", f.parallelism)
	case f.timeout < 0 || f.timeout > 0 && f.timeout < time.Second || f.timeout.Seconds() > math.MaxInt32:
		return r, usagef("--timeout is %s; must be a second or more", f.timeout)
	}
	r.TimeoutSec = int32(f.timeout.Round(time.Second) / time.Second) //nolint:gosec // checked above
	for _, text := range f.partitions {
		s, err := plan.ParseSelection(text)
		if err != nil {
			return r, &usageError{err}
		}
		r.Plan.Partitions = append(r.Plan.Partitions, s)
	}
	for _, text := range f.labels {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return r, usagef("invalid label %q: write name=value", text)
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[name] = value
	}
	return r, nil
}

// execute triggers a run, follows it to its end and reports the result.
func (a *app) execute(ctx context.Context, p *project.Project, t trigger) error {
	return (&runner{a: a, options: a.options(p), assets: p.Assets, trigger: t}).run(ctx)
}

// announce prints which run was started and which process executes it.
func (a *app) announce(s *state.State, r *runner) {
	h := r.handle
	text := plural(h.Tasks, "task")
	run := s.Runs.Get(h.RunID)
	switch {
	case h.Attached:
		text += "; already started under this run key; following it"
	case r.resumed && run != nil:
		text += fmt.Sprintf(", %s done; resuming", view.Grouped(int64(view.Done(run))))
	}
	a.note("run %s: %s", a.style.bold(h.RunID), text)
	a.warnings(h.Warnings)
	if run != nil && run.ParentRunID != "" {
		a.note("this run repeats tasks of run %s with the code of that run; for the current code, use `servo run ASSET`", run.ParentRunID)
	}
	if r.session.stack == nil {
		a.note("handed to %s", r.session.executor())
		return
	}
	for _, run := range live(s) {
		if run.RunID != h.RunID && !r.resumed {
			a.note("also resuming run %s, which was left with %s done", run.RunID, doneText(run))
		}
	}
}

// warnings prints the warnings of a plan.
func (a *app) warnings(texts []string) {
	for _, text := range texts {
		a.warn("%s", text)
	}
}

// live returns the runs that have not ended, oldest first.
func live(s *state.State) []*state.Run {
	if s.LiveRuns() == 0 {
		return nil
	}
	var runs []*state.Run
	for run := range s.Runs.All {
		if !run.State.Terminal() {
			runs = append(runs, run)
		}
	}
	return runs
}

// detach hands a run to the owner of the state folder.
func (a *app) detach(ctx context.Context, p *project.Project, t trigger) error {
	o := a.options(p)
	if _, ok := owner(ctx, o.Dir); !ok && !inCloud(o.Dir) {
		return fmt.Errorf("--detach needs a process that owns %s, and there is none: start `servo dev`, or remove --detach", o.Dir)
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		if s.stack != nil {
			return errors.New("the process that owned the state folder has just ended: start `servo dev`, or remove --detach")
		}
		handle, err := t(ctx, s)
		if err != nil {
			return err
		}
		a.note("run %s: %s, handed to %s", a.style.bold(handle.RunID), plural(handle.Tasks, "task"), s.executor())
		a.warnings(append(handle.Warnings, handle.Incomplete...)) // this command prints no report of the run
		return list(a, []column[engine.RunHandle]{
			{Name: "run_id", Value: func(t engine.RunHandle) any { return t.RunID }},
			{Name: "tasks", Value: func(t engine.RunHandle) any { return t.Tasks }},
			{Name: "attached", Value: func(t engine.RunHandle) any { return t.Attached }},
		}, []engine.RunHandle{handle})
	})
}

// resume resumes unfinished runs, the oldest first. It also executes the runs of requests that wait to be planned, such
// as triggered ticks.
func (a *app) resume(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("--resume starts nothing new: remove %s", strings.Join(args, " "))
	}
	p, err := a.settings()
	if err != nil {
		return err
	}
	r := &runner{a: a, options: a.options(p), resumed: true}
	found := false
	var left []*state.Run // the runs to follow; some may end while this process follows another run
	r.trigger = func(ctx context.Context, s *session) (engine.RunHandle, error) {
		snap, err := s.Current(ctx)
		if err != nil {
			return engine.RunHandle{}, err
		}
		if len(left) == 0 {
			left = unfinished(snap.State)
		}
		for len(left) == 0 && snap.State.PendingCount() > 0 { // until the runs of the requests are planned
			if snap, err = s.Await(ctx, snap.Revision); err != nil {
				return engine.RunHandle{}, err
			}
			left = unfinished(snap.State)
		}
		if len(left) == 0 {
			return engine.RunHandle{}, errNothingLeft
		}
		next := left[0]
		found, left = true, left[1:]
		return engine.RunHandle{RunID: next.RunID, Tasks: int(next.TasksTotal)}, nil
	}
	err = r.run(ctx)
	if err == nil && !found {
		a.note("nothing to resume: all runs have finished")
	}
	return err
}

// errNothingLeft means that every run has ended.
var errNothingLeft = errors.New("every run has ended")

func (a *app) retryCommand() *cobra.Command {
	var failed bool
	cmd := &cobra.Command{
		Use:         "retry [RUN]",
		Annotations: writesRows,
		Short:       "Retry the failed tasks of a finished run, as a new run",
		Long: "Retry all tasks that did not succeed in a finished run, with the commands and SQL of that run.\n" +
			"If you have since fixed a file, use `servo run ASSET` instead: it picks up the new code.",
		Args: takes("[RUN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !failed {
				return usagef("missing flag --failed: `servo retry RUN --failed` repeats every task that did not succeed and keeps the others")
			}
			p, err := a.settings()
			if err != nil {
				return err
			}
			return a.execute(cmd.Context(), p, func(ctx context.Context, s *session) (engine.RunHandle, error) {
				return s.Retry(ctx, optional(args))
			})
		},
	}
	cmd.Flags().BoolVar(&failed, "failed", false, "retry the tasks that did not succeed")
	a.traceFlags(cmd)
	return cmd
}
