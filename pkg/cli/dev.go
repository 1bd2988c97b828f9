package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/ui"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// devAddress is the default address of servo dev.
const devAddress = "127.0.0.1:4280"

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Serve the project and its web page: execute the runs of other commands, and reload changed files",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.elsewhere = !cmd.Flags().Changed("listen")
			return a.dev(cmd.Context(), &f)
		},
	}
	cmd.Flags().StringVar(&f.address, "listen", devAddress, "loopback address to listen on")
	cmd.Flags().BoolVar(&f.open, "open", false, "open the web page in the browser")
	a.traceFlags(cmd)
	return cmd
}

// devFlags are the flags of servo dev.
type devFlags struct {
	address string
	// If elsewhere is true and the address is in use, servo dev listens on another port.
	elsewhere bool
	open      bool
}

// loaded holds the project that runs use: the newest version without problems. Until such a version exists, loaded
// holds the assets without problems, or only the settings.
type loaded struct {
	mu      sync.Mutex
	project *project.Project
	// usable means that the field project contains assets. Otherwise, it contains only settings.
	usable bool
	graph  *plan.Graph // the graph of the project's assets
	// release is the hash of the deployed release that contains the project. source is the hash of the archive of the
	// release's files; "": tasks use the files of the folder.
	release, source string
	// absent is the error of API calls that need assets, if usable is false. If absent is nil, the error is
	// errNoProject.
	absent error
}

// errNoProject says why no run can start.
var errNoProject = errors.New("the project has problems: run `servo validate`")

func (l *loaded) get() (*api.Project, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.usable {
		return nil, cmp.Or(l.absent, errNoProject)
	}
	p := l.project
	served := &api.Project{
		Name: p.Name, Root: p.Root, Data: p.Data, Assets: p.Assets, Graph: l.graph, MaxParallelism: p.MaxParallelism, Release: l.release, Source: l.source,
	}
	if l.source != "" {
		served.Root = ""
	}
	return served, nil
}

// set replaces the project and returns the previous one.
func (l *loaded) set(p *project.Project) (before *project.Project) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.project
	l.project, l.usable = p, true
	l.graph, _ = plan.NewGraph(p.Assets) // calls that need the graph report the error
	return before
}

// deployed replaces the project with the project of a deployed release.
func (l *loaded) deployed(p *project.Project, sha, source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.project, l.usable, l.release, l.source = p, true, sha, source
	l.graph, _ = plan.NewGraph(p.Assets) // calls that need the graph report the error
}

// codeFiles returns the files of the project that belong to the code of its assets.
func (l *loaded) codeFiles() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for i := range l.project.Assets {
		for name := range l.project.Assets[i].Text.Files {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) dev(ctx context.Context, f *devFlags) error {
	if err := embedded.CheckListen(f.address); err != nil {
		return usagef("%w; listen on 127.0.0.1, and reach it from other machines through an SSH tunnel or an authenticating proxy (docs/reference/http.md)", err)
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	settings, err := a.settings()
	if err != nil {
		return err
	}
	current := &loaded{project: settings}
	var p *project.Project
	if !explicit(settings) {
		p, err = a.loadProject(ctx, settings.Root)
	}
	var problems project.Problems
	switch {
	case explicit(settings):
		a.note("runs execute the deployed release of %s", environmentName(settings.Environment.Name))
	case errors.As(err, &problems):
		if err := a.problems(settings.Root, err); !errors.Is(err, errReported) {
			return err
		}
		if p == nil {
			a.note("serving without assets until the problems are fixed")
			break
		}
		a.note("serving the assets without problems; the others follow as soon as their problems are fixed")
		current.set(p)
	case err != nil:
		return err
	default:
		current.set(p)
	}
	options := a.options(settings)
	options.Listen, options.Page = f.address, ui.Handler()
	keys, err := embedded.LoadKeys(options.Dir)
	if err != nil {
		return err
	}
	options.Routes = func(mux *http.ServeMux, e *engine.Engine, w *worker.Worker) {
		cfg := a.apiConfig(e, current)
		cfg.PageKey = keys.Secrets[keys.Current]
		if w != nil {
			cfg.Logs = w
		}
		api.Register(mux, cfg)
	}
	stack, err := embedded.Start(ctx, options)
	if f.elsewhere && errors.Is(err, syscall.EADDRINUSE) {
		a.note("servo: %s is in use; listening on another port", f.address)
		options.Listen = "127.0.0.1:0"
		stack, err = embedded.Start(ctx, options)
	}
	if err != nil {
		return err
	}
	content := describeAssets(current.project.Assets)
	if explicit(current.project) { // followDeployments shows the assets of the deployed release
		content = "which executes its deployed release"
	}
	a.note("project %s, %s, serving on %s", a.style.bold(settings.Name), content, a.style.bold(stack.URL))
	login := stack.LoginURL()
	a.note("web page, with a login for one browser: %s", login)
	if f.open {
		if err := a.browse(ctx, login); err != nil {
			a.warn("%v", err)
		}
	}
	s := a.ownSession(stack, options.Dir)
	err = a.guard(ctx, s, func(ctx context.Context, s *session) error { return a.serve(ctx, s, current) })
	return errors.Join(err, s.close())
}

// apiConfig returns the dependencies of the API. They are the same for servo dev and for the web page of a bucket.
func (a *app) apiConfig(e *engine.Engine, current *loaded) api.Config {
	return api.Config{
		Engine: e, Project: current.get, User: func(http.Header) string { return a.userName() }, Logger: a.logger, Version: servoVersion(),
		OpenQuery: a.openAPIQuery,
	}
}

// serve reloads the project and reports runs until serving ends. It returns nil if the user has ended the command, and
// otherwise the cause of the end.
func (a *app) serve(serving context.Context, s *session, current *loaded) error {
	g, ctx := errgroup.WithContext(serving)
	g.Go(s.stack.Done)
	g.Go(func() error { return a.reportRuns(ctx, s) })
	if explicit(current.project) {
		g.Go(func() error {
			return a.followDeployments(ctx, s.Engine, current, executableDeployment, func(p *project.Project) error { return a.limits(ctx, s, p) })
		})
	}
	g.Go(func() error {
		if err := a.limits(ctx, s, current.project); err != nil {
			return err
		}
		if err := a.deployLoaded(ctx, s, current); err != nil {
			return err
		}
		return a.watch(ctx, current.project.Root, s.stack.CheckFolder, current.codeFiles, func(ctx context.Context) error { return a.reload(ctx, s, current) })
	})
	g.Go(func() error { // the stack does not stop when ctx ends, only when it is closed
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

// reload reads the project again. While it has problems, the last good version remains in use.
func (a *app) reload(ctx context.Context, s *session, current *loaded) error {
	root := current.project.Root
	p, err := a.loadProject(ctx, root)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if err := a.problems(root, err); !errors.Is(err, errReported) {
			a.note("servo: %v", err)
		}
		a.note("keeping the last loaded project until the problems are fixed")
		return nil
	}
	if explicit(p) {
		a.note("the files have changed; runs execute the deployed release until `servo deploy%s`", envFlag(p.Environment.Name))
		return nil
	}
	before := current.set(p)
	a.note("project reloaded: %s%s", describeAssets(p.Assets), difference(before, p))
	if err := a.limits(ctx, s, p); err != nil {
		return err
	}
	return a.deployLoaded(ctx, s, current)
}

// deployLoaded deploys the loaded project if it differs from the deployed release, unless the
// environment deploys explicitly.
func (a *app) deployLoaded(ctx context.Context, s *session, current *loaded) error {
	if !current.usable || explicit(current.project) {
		return nil
	}
	p, sha, err := a.deployLocal(ctx, s, current.project, func(*snapshot.Snapshot) error { return nil })
	if err != nil {
		return err
	}
	if sha != current.release {
		a.note("deployed release %s", release.Short(sha))
	}
	current.deployed(p, sha, "")
	return nil
}

// reader reads a deployed release.
type reader func(ctx context.Context, store blob.Store, settings *project.Project, sha string) (*deployment, error)

// followDeployments reloads the project whenever the deployed release changes, and calls onReload after each reload. It
// is for processes that use the deployed release, and not the files in the project's folder, because their environment
// has explicit deployments or their state is in a bucket.
func (a *app) followDeployments(ctx context.Context, e *engine.Engine, current *loaded, read reader, onReload func(*project.Project) error) error {
	snap, err := e.Current(ctx)
	for ; err == nil; snap, err = e.Await(ctx, snap.Revision) {
		if sha := snap.State.Release(); sha == "" || sha == current.release || !a.useRelease(ctx, e, current, read, sha) {
			continue
		}
		if err := onReload(current.project); err != nil {
			return err
		}
	}
	return err
}

// useRelease replaces the project with the project of a deployed release. It returns false, with a warning, if the
// release cannot be read.
func (a *app) useRelease(ctx context.Context, e *engine.Engine, current *loaded, read reader, sha string) bool {
	d, err := read(ctx, e.Store(), current.project, sha)
	if err != nil {
		a.warn("%v", err)
		return false
	}
	current.deployed(d.project, sha, d.release.Source)
	a.note("serving release %s: %s", release.Short(sha), describeAssets(d.project.Assets))
	return true
}

// reportRuns prints a line for each run that starts and ends.
func (a *app) reportRuns(ctx context.Context, s *session) error {
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	seen := runsSeen{}
	for _, run := range live(snap.State) {
		a.note("run %s: %s done; resuming", run.RunID, doneText(run))
	}
	seen.update(snap.State)
	for {
		if snap, err = s.Await(ctx, snap.Revision); err != nil {
			return err
		}
		started, ended := seen.update(snap.State)
		for _, run := range started {
			a.note("run %s: %s", run.RunID, plural(int(run.TasksTotal), "task"))
		}
		for _, run := range ended {
			a.noteEnd(run)
		}
		if err := a.Clock.Sleep(ctx, reportPause); err != nil {
			return err
		}
	}
}

// reportPause is the minimum time between two looks at the runs, because each look visits all runs of the live state.
const reportPause = 200 * time.Millisecond

// runsSeen contains the runs of the live state, by id. The value is true if the run had not ended when it was last
// seen. Ids do not show which runs are new: the id of a requested run has the time at which the request became ready,
// so a run that takes long to plan appears after runs with higher ids.
type runsSeen map[string]bool

// update returns the runs that have appeared since the previous call, and the runs that have ended since then, in the
// order of their ids. A run that has appeared and ended is in both results.
func (seen runsSeen) update(s *state.State) (started, ended []*state.Run) {
	for run := range s.Runs.All {
		wasLive, known := seen[run.RunID]
		if !known {
			started = append(started, run)
		}
		if (wasLive || !known) && run.State.Terminal() {
			ended = append(ended, run)
		}
		seen[run.RunID] = !run.State.Terminal()
	}
	if len(seen) > s.Runs.Len() { // runs have moved to history
		maps.DeleteFunc(seen, func(id string, _ bool) bool { return s.Runs.Get(id) == nil })
	}
	return started, ended
}
