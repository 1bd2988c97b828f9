package cli

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/state"
)

// devAddress is where servo dev serves.
const devAddress = "127.0.0.1:4280"

func (a *app) devCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Serve the project: execute the runs of other commands, and reload changed files",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.dev(cmd.Context(), address, !cmd.Flags().Changed("listen"))
		},
	}
	cmd.Flags().StringVar(&address, "listen", devAddress, "loopback address to listen on")
	a.traceFlags(cmd)
	return cmd
}

// loaded is the project that runs are made from: the newest one without problems. If there
// was none yet, it is what is sound of the project, or nothing.
type loaded struct {
	mu      sync.Mutex
	project *project.Project
	// usable says that project has assets; otherwise it has settings only.
	usable bool
}

// errNoProject is why no run can be started.
var errNoProject = errors.New("the project has problems: `servo validate` shows them")

func (l *loaded) get() (*api.Project, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.usable {
		return nil, errNoProject
	}
	p := l.project
	return &api.Project{Name: p.Name, Root: p.Root, Data: p.Data, Assets: p.Assets, MaxParallelism: p.MaxParallelism}, nil
}

// set takes over a project, and gives the one before.
func (l *loaded) set(p *project.Project) (before *project.Project) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.project
	l.project, l.usable = p, true
	return before
}

func (a *app) dev(ctx context.Context, address string, elsewhere bool) error {
	if err := embedded.CheckListen(address); err != nil {
		return usagef("%w; serve on 127.0.0.1, and have others come through an SSH tunnel, or a proxy that asks them (docs/cli.md)", err)
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	settings, err := a.settings()
	if err != nil {
		return err
	}
	current := &loaded{project: settings}
	p, err := loadProject(ctx, settings.Root)
	var problems project.Problems
	switch {
	case errors.As(err, &problems):
		if err := a.problems(settings.Root, err); !errors.Is(err, errReported) {
			return err
		}
		if p == nil {
			a.note("serving without assets until the problems are fixed")
			break
		}
		a.note("serving the assets without problems; the others are loaded as soon as theirs are fixed")
		current.set(p)
	case err != nil:
		return err
	default:
		current.set(p)
	}
	options := a.options(settings)
	options.Listen = address
	options.Routes = func(mux *http.ServeMux, e *engine.Engine) {
		api.Register(mux, api.Config{Engine: e, Project: current.get, User: a.User})
	}
	stack, err := embedded.Start(ctx, options)
	if elsewhere && errors.Is(err, syscall.EADDRINUSE) {
		a.note("servo: %s is in use; listening on another port", address)
		options.Listen = "127.0.0.1:0"
		stack, err = embedded.Start(ctx, options)
	}
	if err != nil {
		return err
	}
	a.note("project %s, %s, serving on %s", a.style.bold(settings.Name), describeAssets(current.project.Assets), a.style.bold(stack.URL))
	s := a.own(stack, options.Dir)
	err = a.guard(ctx, s, func(ctx context.Context, s *session) error { return a.serve(ctx, s, current) })
	return errors.Join(err, s.close())
}

// serve keeps the project up to date and tells of runs until ctx ends. That somebody asked
// for the end is no error, whatever else ended ctx is.
func (a *app) serve(serving context.Context, s *session, current *loaded) error {
	g, ctx := errgroup.WithContext(serving)
	g.Go(s.stack.Done)
	g.Go(func() error { return a.tell(ctx, s) })
	g.Go(func() error {
		if err := a.limits(ctx, s, current.project); err != nil {
			return err
		}
		return a.watch(ctx, current.project.Root, func(ctx context.Context) error { return a.reload(ctx, s, current) })
	})
	g.Go(func() error { // the stack ends when it is told to, not with ctx
		<-ctx.Done()
		return s.close()
	})
	err := g.Wait()
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if cause := context.Cause(serving); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errInterrupted) {
		return cause
	}
	return nil
}

// reload reads the project again. As long as it has problems, the last good one stays.
func (a *app) reload(ctx context.Context, s *session, current *loaded) error {
	root := current.project.Root
	p, err := loadProject(ctx, root)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if err := a.problems(root, err); !errors.Is(err, errReported) {
			a.note("servo: %v", err)
		}
		a.note("the project stays as it was last loaded until the problems are fixed")
		return nil
	}
	before := current.set(p)
	a.note("project reloaded: %s%s", describeAssets(p.Assets), difference(before, p))
	return a.limits(ctx, s, p)
}

// tell writes a line for each run that begins and ends.
func (a *app) tell(ctx context.Context, s *session) error {
	snap, err := s.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	under := map[string]bool{}
	for _, run := range live(snap.State) {
		under[run.RunID] = true
		a.note("run %s: %s of %s done; resuming", run.RunID, grouped(int64(done(run))), plural(int(run.TasksTotal), "task"))
	}
	last := newest(snap.State)
	for {
		if snap, err = s.Snapshots.Await(ctx, snap.Revision); err != nil {
			return err
		}
		snap.State.Runs.Ascend(last, func(run *state.Run) bool {
			if run.RunID > last {
				last = run.RunID
				under[run.RunID] = true
				a.note("run %s: %s", run.RunID, plural(int(run.TasksTotal), "task"))
			}
			return true
		})
		for id := range under {
			if run := snap.State.Runs.Get(id); run == nil || run.State.Terminal() {
				delete(under, id)
				if run != nil {
					a.tellEnd(run)
				}
			}
		}
	}
}

func newest(s *state.State) string {
	last := ""
	for run := range s.Runs.All {
		last = run.RunID
	}
	return last
}
