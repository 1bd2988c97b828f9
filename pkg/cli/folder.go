package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/source"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// stateDir is the default name of the state folder in a project.
const stateDir = ".servo"

// projectDir returns the folder of the project: the one that -C names, or the nearest folder with a servo.yaml, at or
// above the working folder.
func (a *app) projectDir() (string, error) {
	if a.dir != "" {
		return a.abs(a.dir), nil
	}
	for dir := a.Dir; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, project.ConfigFile))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for a project: %w", err)
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no %s found in %s or above: go to the folder of a project, name the folder with -C, or create one with `servo init DIR`",
				project.ConfigFile, a.Dir)
		}
	}
}

// abs returns a path relative to the working folder as an absolute path.
func (a *app) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(a.Dir, path)
}

// settings reads servo.yaml.
func (a *app) settings() (*project.Project, error) {
	dir, err := a.projectDir()
	if err != nil {
		return nil, err
	}
	p, err := project.LoadSettings(dir, a.projectOptions())
	return p, a.problems(dir, err)
}

// usableProject reads the project and warns of assets with problems, which affect only runs of
// those assets. It fails if an asset that the user names has problems.
func (a *app) usableProject(ctx context.Context, names func([]plan.Asset) ([]ids.AssetKey, error)) (*project.Project, error) {
	dir, err := a.projectDir()
	if err != nil {
		return nil, err
	}
	p, err := a.loadProject(ctx, dir)
	var problems project.Problems
	if p == nil || err != nil && !errors.As(err, &problems) {
		return nil, a.problems(dir, err)
	}
	keys, err := names(p.Assets)
	switch {
	case len(problems) == 0:
		return p, err
	case err != nil: // an unknown asset may be declared in a file with problems
		a.warn("%s in files of the project; `servo validate` shows %s", plural(len(problems), "problem"), them(len(problems)))
		return nil, err
	}
	var named project.Problems
	for i := range p.Assets {
		if asset := &p.Assets[i]; asset.Broken != "" && slices.Contains(keys, asset.Key) {
			named = append(named, problems.Of(asset.File)...)
		}
	}
	if len(named) > 0 {
		return nil, a.problems(dir, named)
	}
	a.warn("%s in other files of the project; `servo validate` shows %s", plural(len(problems), "problem"), them(len(problems)))
	return p, nil
}

// definedProject reads the project as runs see it. In an environment that deploys explicitly, its assets are those of
// the deployed release. In other environments, the result is that of [app.usableProject].
func (a *app) definedProject(ctx context.Context, names func([]plan.Asset) ([]ids.AssetKey, error)) (*project.Project, error) {
	dir, err := a.projectDir()
	if err != nil {
		return nil, err
	}
	// After an error, usableProject reports all problems of the project.
	settings, err := project.LoadSettings(dir, a.projectOptions())
	if err != nil || !explicit(settings) {
		return a.usableProject(ctx, names)
	}
	d, err := a.deployedRelease(ctx, settings)
	if err != nil {
		return nil, err
	}
	_, err = names(d.project.Assets)
	return d.project, err
}

func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// projectOptions returns the options for reading servo.yaml in the chosen environment.
func (a *app) projectOptions() project.Options {
	return project.Options{Environment: a.environment, User: a.User}
}

func (a *app) loadProject(ctx context.Context, dir string) (*project.Project, error) {
	return a.load(ctx, dir, a.projectOptions())
}

func (a *app) load(ctx context.Context, dir string, o project.Options) (*project.Project, error) {
	o.ParseSQL, o.CheckBatches = a.parsed.Parse, a.parsed.Mixings
	p, err := project.Load(ctx, dir, o)
	return p, errors.Join(err, a.parsed.End())
}

// problems prints the problems of the project's files, if err has any.
func (a *app) problems(dir string, err error) error {
	var problems project.Problems
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &problems):
		return fmt.Errorf("load project %s: %w", dir, err)
	}
	for _, p := range problems {
		a.note("%s", a.problemText(p))
	}
	a.note("servo: %s in project %s. Fix %s, then run `servo validate`", plural(len(problems), "problem"), dir, them(len(problems)))
	return errReported
}

func (a *app) problemText(p project.Problem) string {
	text := fmt.Sprintf("%s %s", a.style.bold(fmt.Sprintf("%s:%d:%d:", p.File, p.Line, p.Column)), p.Message)
	if p.Suggestion != "" {
		text += ": " + p.Suggestion
	}
	return text
}

// userName returns the name of the user who runs this program. If the user has no name, as in some containers, it
// returns "unknown".
func (a *app) userName() string { return cmp.Or(a.User, "unknown") }

// stateOf returns the state folder or the bucket of a project. It comes from --state or, without this flag, from the
// settings of the environment. If neither names one, it is .servo in the project's folder.
func (a *app) stateOf(p *project.Project) string {
	store := p.Environment.Store
	switch {
	case inCloud(a.state):
		return a.state
	case a.state != "":
		return a.abs(a.state)
	case inCloud(store):
		return store
	case store != "":
		return filepath.Join(p.Root, filepath.FromSlash(store))
	}
	return filepath.Join(p.Root, stateDir)
}

// options returns the options of the embedded stack for a project.
func (a *app) options(p *project.Project) embedded.Options {
	state := a.stateOf(p)
	o := embedded.Options{
		Dir: state, Root: p.Root, Domain: p.Domain, Concurrency: p.Workers.Concurrency, DuckDB: worker.DuckDB{Threads: p.Workers.Threads},
		Clock: a.Clock, Logger: a.logger, Environ: a.Environ, Environment: p.Environment.Name, Secrets: a.secretSources().Resolve, Redactor: &a.redactor, Program: a.Program,
		Actor: engine.User(a.userName()), Traces: a.tracer, Keep: func(ctx context.Context) (gc.Rule, error) {
			r, err := project.LoadRetention(ctx, p.Root, a.projectOptions())
			if err != nil {
				return nil, err
			}
			return keepRule(r), nil
		},
	}
	// An error means that the folder does not exist yet, so it contains no runs of another folder.
	if home, err := projectOf(state); err == nil && source.SameFolder(home, p.Root) {
		o.Home = p.Root
	}
	if !inCloud(state) {
		o.Publish = a.publishing(p, state)
	}
	if p.Workers.MemoryLimit > 0 {
		o.DuckDB.MemoryLimit = fmt.Sprintf("%dB", p.Workers.MemoryLimit)
	}
	return o
}

// keepRule returns the collector's rule for a project, or nil if the project keeps everything.
func keepRule(r *project.Retention) gc.Rule {
	if r.Everything() {
		return nil
	}
	return func(asset string) (gc.Keep, bool) {
		keep := r.Default // used for logs and other files without an asset
		if asset != "" {
			keep = r.Of(asset)
		}
		return gc.Keep{Versions: keep.Versions, For: keep.For, Logs: r.Logs}, !keep.All
	}
}

// noStateError means that a state folder does not exist yet. It wraps [fs.ErrNotExist].
type noStateError struct{ dir string }

// Error implements error.
func (e *noStateError) Error() string {
	return fmt.Sprintf("no state in %s yet: start a run with `servo run --all`", e.dir)
}

// Unwrap returns fs.ErrNotExist.
func (e *noStateError) Unwrap() error { return fs.ErrNotExist }

// parts opens the state folder for reading. The caller closes the store.
func (a *app) parts(ctx context.Context, p *project.Project) (*embedded.Workspace, error) {
	o := a.options(p)
	if inCloud(o.Dir) {
		return a.cloudParts(ctx, o)
	}
	info, err := os.Stat(o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &noStateError{o.Dir}
	case err != nil:
		return nil, fmt.Errorf("open state folder: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("open state folder %s: not a folder; choose another with --state", o.Dir)
	}
	o.Read = true
	return embedded.Open(o)
}

// published is a published state, with the folder and the project that it belongs to.
type published struct {
	*embedded.Workspace
	*snapshot.Snapshot
	project *project.Project
	dir     string
}

// read reads the newest published state and calls f.
func (a *app) read(ctx context.Context, f func(published) error) error {
	return a.withParts(ctx, func(p *project.Project, parts *embedded.Workspace) error {
		snap, err := parts.Reader().Current(ctx)
		if err != nil {
			return err
		}
		if snap.Revision == 0 {
			a.noteLost(ctx, parts)
		}
		return f(published{parts, snap, p, a.options(p).Dir})
	})
}

// noteLost warns if nothing is published although the ledger has entries. If the manifests were deleted by hand before
// the collector had deleted any, only the ledger shows that the domain is not new.
func (a *app) noteLost(ctx context.Context, parts *embedded.Workspace) {
	for _, err := range parts.Store.List(ctx, blob.ListOptions{Prefix: ledger.Prefix(parts.Domain)}) {
		if err == nil {
			a.warn("the ledger has entries, but no revision is published: if manifests/ was deleted, restore manifests/ and state/ " +
				"from a backup, or run `servo admin rebuild --bare`")
		}
		return
	}
}

// table reports whether the output is a table for people, not a format for programs.
func (a *app) table() bool { return a.format == render.Table }
