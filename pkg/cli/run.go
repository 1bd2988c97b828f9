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
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/state"
)

// runFlags are the flags of servo run.
type runFlags struct {
	all, upstream, resume bool
	partitions, labels    []string
	runKey                string
	wait, detach          bool
	parallelism           int32
	timeout               time.Duration
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [ASSET…]",
		Short: "Make assets: plan a run, execute it, and wait for its end",
		Long: "Run makes assets. Without a servo process on the state folder this process executes the run;\n" +
			"with one (`servo dev`, or another `servo run`) that one does, and this one watches. The one that\n" +
			"executes stays until all runs have ended, also those that others have left to it. A process\n" +
			"that dies loses nothing: the next one carries on where it was.",
		Example: "  servo run --all -p date=2025-01-01..2025-01-31\n" +
			"  servo run report/climate --upstream\n" +
			"  servo run --all --run-key nightly-2025-01-15      the same key never runs twice",
		Args: takes("[ASSET…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.wait {
				err = exclusive(cmd, "wait", "detach")
			}
			for _, flag := range []string{"all", "upstream", "partition", "run-key", "wait", "detach", "timeout", "label", "max-parallelism"} {
				err = errors.Join(err, exclusive(cmd, "resume", flag))
			}
			switch {
			case err != nil:
				return err
			case f.resume:
				return a.resume(cmd.Context(), args)
			}
			return a.run(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "make every asset of the project")
	flags.BoolVar(&f.upstream, "upstream", false, "make what the named assets depend on, too")
	flags.StringArrayVarP(&f.partitions, "partition", "p", nil, "partitions to make: date=2025-01-15 or date=2025-01-01..2025-01-31 (repeatable)")
	flags.StringVar(&f.runKey, "run-key", "", "a name that makes the run unique for 30 days: the same again attaches to it")
	flags.BoolVar(&f.wait, "wait", true, "stay until the run has ended; --wait=false is --detach")
	flags.BoolVar(&f.detach, "detach", false, "leave the run to the process that owns the state folder")
	flags.Int32Var(&f.parallelism, "max-parallelism", 0, "how many tasks of the run may run at once (default: max_parallelism of servo.yaml)")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the run after this long, for example 2h")
	flags.StringArrayVar(&f.labels, "label", nil, "a label of the run: name=value (repeatable)")
	flags.BoolVar(&f.resume, "resume", false, "start nothing: carry on the runs that are not done")
	a.traceFlags(cmd)
	return cmd
}

func (a *app) run(ctx context.Context, f runFlags, args []string) error {
	request, err := f.request(args)
	if err != nil {
		return err
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	p, err := a.load(ctx)
	if err != nil {
		return err
	}
	request.Plan.Root, request.Plan.Assets = p.Root, p.Assets
	request.Trigger = event.Trigger{Type: "manual", UserID: a.User}
	if request.MaxParallelism == 0 {
		request.MaxParallelism = p.MaxParallelism
	}
	t := func(ctx context.Context, s *session) (engine.Ticket, error) {
		if err := s.SetLimits(ctx, p.MaxConcurrentTasks, p.Pools); err != nil {
			return engine.Ticket{}, err
		}
		return s.Run(ctx, request)
	}
	if f.detach || !f.wait {
		return a.detach(ctx, p, t)
	}
	return a.carry(ctx, p, t)
}

// request is the run that the flags ask for, without the project.
func (f *runFlags) request(args []string) (engine.RunRequest, error) {
	r := engine.RunRequest{RunKey: f.runKey, MaxParallelism: f.parallelism, Plan: plan.Request{All: f.all, Upstream: f.upstream}}
	switch {
	case f.all && len(args) > 0:
		return r, usagef("--all makes every asset: leave out %s, or --all", strings.Join(args, " "))
	case !f.all && len(args) == 0:
		return r, usagef("which assets? name some, or make all of them with --all; `servo assets` lists them")
	case f.parallelism < 0:
		return r, usagef("--max-parallelism is %d; it must be 1 or more", f.parallelism)
	case f.timeout < 0 || f.timeout > 0 && f.timeout < time.Second || f.timeout.Seconds() > math.MaxInt32:
		return r, usagef("--timeout is %s; it must be a second or more", f.timeout)
	}
	r.TimeoutSec = int32(f.timeout.Round(time.Second) / time.Second) //nolint:gosec // checked above
	for _, arg := range args {
		key, err := ids.ParseAssetKey(arg)
		if err != nil {
			return r, &usageError{fmt.Errorf("%w; `servo assets` lists them", err)}
		}
		r.Plan.Select = append(r.Plan.Select, key)
	}
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
			return r, usagef("the label %q is not name=value", text)
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[name] = value
	}
	return r, nil
}

// carry triggers a run, follows it to its end, and tells how it went.
func (a *app) carry(ctx context.Context, p *project.Project, t trigger) error {
	return (&runner{a: a, options: a.options(p), trigger: t}).run(ctx)
}

// announce says what was started, and who executes it.
func (a *app) announce(s *state.State, r *runner) {
	t := r.ticket
	text := plural(t.Tasks, "task")
	run := s.Runs.Get(t.RunID)
	switch {
	case t.Attached:
		text += "; it was asked for before, and holds the run key: following it"
	case r.resumed && run != nil:
		text += fmt.Sprintf(", %s done; carrying on", grouped(int64(done(run))))
	}
	a.note("run %s: %s", a.style.bold(t.RunID), text)
	a.warnings(t.Warnings)
	if run != nil && run.ParentRunID != "" {
		a.note("it repeats what run %s planned, with the code of that time; `servo run` of an asset takes what its file says now", run.ParentRunID)
	}
	if r.session.stack == nil {
		if r.session.cloud {
			a.note("%s execute it", r.session.who())
		} else {
			a.note("%s, executes it", r.session.who())
		}
		return
	}
	for _, run := range live(s) {
		if run.RunID != t.RunID && !r.resumed {
			a.note("carrying on run %s as well, which had been left with %s of %s done", run.RunID,
				grouped(int64(done(run))), plural(int(run.TasksTotal), "task"))
		}
	}
}

// warnings prints the warnings of a plan.
func (a *app) warnings(texts []string) {
	for _, text := range texts {
		a.note("%s %s", a.style.yellow("warning:"), text)
	}
}

// live are the runs that have not ended, oldest first.
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

// detach leaves a run to the owner of the state folder.
func (a *app) detach(ctx context.Context, p *project.Project, t trigger) error {
	o := a.options(p)
	if _, ok := owner(ctx, o.Dir); !ok && !inCloud(o.Dir) {
		return fmt.Errorf("nobody would execute the run: no servo process owns %s; start `servo dev`, or leave out --detach", o.Dir)
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		if s.stack != nil {
			return errors.New("the process that owned the state folder has just ended; start `servo dev`, or leave out --detach")
		}
		ticket, err := t(ctx, s)
		if err != nil {
			return err
		}
		a.note("run %s: %s, left to %s", a.style.bold(ticket.RunID), plural(ticket.Tasks, "task"), s.who())
		a.warnings(ticket.Warnings)
		return list(a, []column[engine.Ticket]{
			{name: "run_id", value: func(t engine.Ticket) any { return t.RunID }},
			{name: "tasks", value: func(t engine.Ticket) any { return t.Tasks }},
			{name: "attached", value: func(t engine.Ticket) any { return t.Attached }},
		}, []engine.Ticket{ticket})
	})
}

// resume carries on what earlier processes have left, the oldest run first.
func (a *app) resume(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("--resume starts nothing: leave out %s", strings.Join(args, " "))
	}
	p, err := a.settings()
	if err != nil {
		return err
	}
	r := &runner{a: a, options: a.options(p), resumed: true}
	found := false
	var left []*state.Run // also those that end while another one is followed
	r.trigger = func(ctx context.Context, s *session) (engine.Ticket, error) {
		snap, err := s.Snapshots.Current(ctx)
		if err != nil {
			return engine.Ticket{}, err
		}
		if len(left) == 0 {
			left = underWay(snap.State)
		}
		if len(left) == 0 {
			return engine.Ticket{}, errNothingLeft
		}
		next := left[0]
		found, left = true, left[1:]
		return engine.Ticket{RunID: next.RunID, Tasks: int(next.TasksTotal)}, nil
	}
	err = r.run(ctx)
	if err == nil && !found {
		a.note("every run has ended; there is nothing to carry on")
	}
	return err
}

// errNothingLeft says that every run has ended.
var errNothingLeft = errors.New("every run has ended")

func (a *app) retryCommand() *cobra.Command {
	var failed bool
	cmd := &cobra.Command{
		Use:   "retry [RUN]",
		Short: "Start a run that repeats what did not succeed in an ended one",
		Long: "Retry repeats the plan of the run that has ended: the same partitions, and the commands and SQL that the\n" +
			"files had when it was started. Who has mended a file since says `servo run` of that asset, which takes the\n" +
			"new code.",
		Args: takes("[RUN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !failed {
				return usagef("say what to repeat: `servo retry RUN --failed` repeats all that did not succeed; what did is kept")
			}
			p, err := a.settings()
			if err != nil {
				return err
			}
			return a.carry(cmd.Context(), p, func(ctx context.Context, s *session) (engine.Ticket, error) {
				return s.Retry(ctx, optional(args))
			})
		},
	}
	cmd.Flags().BoolVar(&failed, "failed", false, "repeat the tasks that did not succeed")
	a.traceFlags(cmd)
	return cmd
}
