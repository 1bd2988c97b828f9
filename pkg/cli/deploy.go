package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
)

// deployFlags are the flags of servo deploy and servo rollback.
type deployFlags struct {
	message    string
	accept     []string
	force, yes bool
	noBind     bool
}

func (a *app) deployCommand() *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "deploy",
		Short: "Deploy the project: make its files the current release",
		Long: "Compile the project and make it the current release of its environment. If another release is deployed\n" +
			"while this command runs, the command fails with RELEASE_CONFLICT and changes nothing. A deployment between\n" +
			"`servo plan` and `servo deploy` is not detected.",
		Example: "  servo deploy --env prod --message 'new rates'\n" +
			"  servo deploy --accept mart/revenue      the new code does not make its partitions stale",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.deploy(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.message, "message", "m", "", "a description of the change, shown by servo deployments")
	flags.StringArrayVar(&f.accept, "accept", nil, "accept the changed code of this asset: its existing partitions do not become stale (repeatable)")
	flags.BoolVar(&f.force, "force", false, "deploy even if another release is deployed meanwhile, or if the current release is damaged or belongs to another project")
	flags.BoolVar(&f.yes, "yes", false, "deploy to a protected environment without asking")
	flags.BoolVar(&f.noBind, "no-bind", false, "do not check the queries with DuckDB first")
	return cmd
}

// checkQueries binds the queries of a project. If it finds problems, it prints them and returns an error.
func (a *app) checkQueries(ctx context.Context, p *project.Project) error {
	problems, _, _, err := a.bind(ctx, p)
	if err != nil || len(problems) == 0 {
		return err
	}
	return a.problems(p.Root, problems)
}

func (a *app) deploy(ctx context.Context, f deployFlags) error {
	dir, err := a.projectDir()
	if err != nil {
		return err
	}
	p, err := a.loadProject(ctx, dir)
	if err != nil {
		return a.problems(dir, err)
	}
	if !f.noBind {
		if err := a.checkQueries(ctx, p); err != nil {
			return err
		}
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		current, err := s.CurrentDeployment(ctx)
		if err != nil {
			return err
		}
		c, err := a.compile(ctx, s.Store(), p, current.Release, true)
		if err != nil && f.force {
			a.warn("cannot compare with the deployed release: %v", err)
			c, err = a.compile(ctx, s.Store(), p, "", true)
		}
		if err != nil {
			return err
		}
		accept, err := c.accept(f.accept)
		if err != nil {
			return err
		}
		if c.SHA == current.Release && len(accept) == 0 {
			if err := s.SaveRelease(ctx, c.Compiled, c.archive); err != nil { // repairs damaged objects of the release
				return err
			}
			a.note("nothing to deploy: release %s is current", release.Short(c.SHA))
			return nil
		}
		if !f.force {
			if err := c.foreign(); err != nil {
				return err
			}
		}
		if err := a.confirm(p, f.yes, "deploy to", fmt.Sprintf("Deploy release %s (%s)?", release.Short(c.SHA), describeChanges(c.changes))); err != nil {
			return err
		}
		if err := s.SaveRelease(ctx, c.Compiled, c.archive); err != nil {
			return err
		}
		made, err := s.Deploy(ctx, engine.DeployRequest{
			Release: c.SHA, Expects: current.Release, Force: f.force, Kind: event.DeployRelease, Environment: p.Environment.Name,
			Message: f.message, Git: a.git(ctx, p.Root), Accept: accept, Changes: countsOf(c.changes), Schedules: c.Schedules, Alerts: c.Alerts, Watched: c.Watched,
		})
		if err != nil {
			return err
		}
		if err := a.limits(ctx, s, p); err != nil {
			return err
		}
		a.note("deployed release %s to %s: %s", a.style.bold(release.Short(made.Release)), environmentName(p.Environment.Name), describeChanges(c.changes))
		a.noteStale(ctx, s, p, c.Code.Assets, c.changes)
		return nil
	})
}

// noteStale prints how many partitions are stale after a deployment. It counts only partitions of assets whose code the
// deployment has changed.
func (a *app) noteStale(ctx context.Context, s *session, p *project.Project, assets []plan.Asset, changes []release.Change) {
	var names []string
	stale := 0
	count := func() error {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		e, err := engine.Staleness(ctx, snap, assets, a.Clock.Now())
		if err != nil {
			return err
		}
		for _, change := range changes {
			if change.NewCode == "" || change.OldCode == change.NewCode {
				continue
			}
			key, err := ids.ParseAssetKey(change.Asset)
			if err != nil {
				return err
			}
			counts, err := e.Count(key)
			if err != nil {
				return err
			}
			if counts.Stale > 0 {
				names, stale = append(names, change.Asset), stale+counts.Stale
			}
		}
		return nil
	}
	if err := count(); err != nil {
		a.warn("the stale partitions were not counted: %v", err)
	} else if stale > 0 {
		a.note("stale: %s of %s; next: servo run --stale%s", plural(stale, "partition"), someTexts(names), envFlag(p.Environment.Name))
	}
}

// accept returns the code changes of the assets that --accept names.
func (c *candidate) accept(names []string) ([]engine.Accept, error) {
	var accepted []engine.Accept
	for _, name := range names {
		key, err := ids.ParseAssetKey(name)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--accept %s: %w", name, err)}
		}
		at := slices.IndexFunc(c.changes, func(change release.Change) bool { return change.Asset == name })
		if at < 0 || c.changes[at].OldCode == "" || c.changes[at].NewCode == "" || c.changes[at].OldCode == c.changes[at].NewCode {
			return nil, usagef("--accept %s: the code of this asset does not change: `servo plan` lists the changes", name)
		}
		if c.otherDimensions(name) {
			return nil, usagef("--accept %s: the dimensions of the asset change, so its existing partitions are no longer read: deploy without --accept, and run the asset again", name)
		}
		accepted = append(accepted, engine.Accept{Asset: key, Code: c.changes[at].NewCode, Previous: c.changes[at].OldCode})
	}
	return accepted, nil
}

// describeChanges counts the changes of each kind.
func describeChanges(changes []release.Change) string {
	counts := map[string]int{}
	for _, c := range changes {
		counts[c.Kind]++
	}
	var parts []string
	for _, kind := range []string{release.Added, release.Removed, release.Breaking, release.NonBreaking, release.GateOnly, release.PolicyOnly} {
		if counts[kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
		}
	}
	if len(parts) == 0 {
		return "no asset has changed"
	}
	return strings.Join(parts, ", ")
}

// protectedEnvironment is the error code of a deployment that was not confirmed.
const protectedEnvironment = "PROTECTED_ENVIRONMENT"

// confirm asks for a confirmation of an action, such as "deploy to", if the project's environment is
// protected.
func (a *app) confirm(p *project.Project, yes bool, action, question string) error {
	if !p.Environment.Protected || yes {
		return nil
	}
	name := environmentName(p.Environment.Name)
	if _, terminal := a.width(a.Stdin); !terminal {
		return fmt.Errorf("%s %s: %s: the environment is protected: confirm with --yes", action, name, protectedEnvironment)
	}
	fmt.Fprintf(a.Stderr, "%s is protected. %s [yes/no] ", name, question)
	answer, err := bufio.NewReader(a.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return fmt.Errorf("%s %s: %s: not confirmed, so nothing has changed: answer yes, or use --yes", action, name, protectedEnvironment)
	}
	return nil
}

// gitWait limits how long a call of git may take.
const gitWait = 5 * time.Second

// git returns the state of the Git repository of a folder, or nil if there is none.
func (a *app) git(ctx context.Context, dir string) *event.Git {
	ctx, cancel := context.WithTimeout(ctx, gitWait)
	defer cancel()
	call := func(args ...string) (string, bool) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...) //nolint:gosec // the folder of the project
		cmd.Env = a.Environ
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	commit, ok := call("rev-parse", "HEAD")
	if !ok {
		return nil
	}
	g := &event.Git{Commit: commit}
	if branch, ok := call("rev-parse", "--abbrev-ref", "HEAD"); ok && branch != "HEAD" && len(branch) <= event.MaxName {
		g.Branch = branch
	}
	changed, ok := call("status", "--porcelain", "--", ".")
	g.Dirty = !ok || changed != ""
	return g
}

func (a *app) rollbackCommand() *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "rollback [RELEASE]",
		Short: "Make an earlier release the current one again",
		Long: "Deploy an earlier release again, by default the newest that differs from the current one. A second rollback without\n" +
			"a name therefore undoes the first one. Partitions that were materialized with the code\n" +
			"of the earlier release then have the current code. Nothing runs.",
		Args: takes("[RELEASE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.rollback(cmd.Context(), f, optional(args)) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.message, "message", "m", "", "the reason, shown by servo deployments")
	flags.BoolVar(&f.force, "force", false, "roll back even if another release is deployed while this command runs")
	flags.BoolVar(&f.yes, "yes", false, "roll back a protected environment without asking")
	return cmd
}

func (a *app) rollback(ctx context.Context, f deployFlags, name string) error {
	p, err := a.settings()
	if err != nil {
		return err
	}
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		all, err := s.Deployments(ctx, 0)
		if err != nil {
			return err
		}
		target, err := rollbackTarget(all, name)
		if err != nil {
			return err
		}
		current := all[0].Release
		if target == current {
			a.note("nothing to roll back: release %s is current", release.Short(target))
			return nil
		}
		r, now, err := s.ReadRelease(ctx, target)
		if err != nil {
			return err
		}
		if explicit(p) && r.Source == "" {
			return fmt.Errorf("release %s has no archive of the project's files, which %s needs: deploy the files with `servo deploy%s`",
				release.Short(target), environmentName(p.Environment.Name), envFlag(p.Environment.Name))
		}
		var changes []release.Change
		if _, before, err := s.ReadRelease(ctx, current); err == nil {
			if changes, err = a.diff(ctx, before, now); err != nil {
				return err
			}
		} else {
			a.warn("cannot compare the releases: %v", err)
		}
		if err := a.confirm(p, f.yes, "roll back", fmt.Sprintf("Roll back to release %s (%s)?", release.Short(target), describeChanges(changes))); err != nil {
			return err
		}
		if _, err := s.Deploy(ctx, engine.DeployRequest{
			Release: target, Expects: current, Force: f.force, Kind: event.DeployRollback, Environment: p.Environment.Name,
			Message: f.message, Changes: countsOf(changes), Schedules: r.Schedules, Alerts: r.Alerts, Watched: r.Watched,
		}); err != nil {
			return err
		}
		a.note("rolled back to release %s: %s", a.style.bold(release.Short(target)), describeChanges(changes))
		a.noteStale(ctx, s, p, now.Assets, changes)
		if !explicit(p) {
			a.warn("the next `servo run` deploys the project's files again: change the files, or set deploy: explicit")
		}
		return nil
	})
}

// rollbackTarget returns the release that a rollback names. Without a name, it returns the newest release that differs
// from the current one.
func rollbackTarget(all []engine.Deployment, name string) (string, error) {
	if len(all) == 0 {
		return "", errors.New("no release is deployed: deploy the project with `servo deploy`")
	}
	if name != "" {
		return findRelease(all, name)
	}
	for _, d := range all {
		if d.Release != all[0].Release {
			return d.Release, nil
		}
	}
	return "", fmt.Errorf("no release to return to: %s is the only one that was deployed: change the files and use `servo deploy`", release.Short(all[0].Release))
}

// findRelease returns the only deployed release whose hash begins with name. If name is "current", it returns the
// current release.
func findRelease(all []engine.Deployment, name string) (found string, err error) {
	const least = 4
	for _, d := range all {
		switch {
		case name == "current":
			return d.Release, nil
		case !strings.HasPrefix(d.Release, strings.ToLower(name)) || len(name) < least || d.Release == found:
		case found != "":
			return "", fmt.Errorf("several releases begin with %s: write more digits", name)
		default:
			found = d.Release
		}
	}
	if found == "" {
		return "", fmt.Errorf("no deployed release begins with %q: list them with `servo deployments`, and write at least %d digits", name, least)
	}
	return found, nil
}

func (a *app) deploymentsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:         "deployments",
		Annotations: writesRows,
		Short:       "List the deployments, newest first",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--limit is %d; must be 1 or more", limit)
			}
			return a.read(cmd.Context(), func(v published) error {
				all, err := engine.ListDeployments(cmd.Context(), v.Snapshot, limit)
				if err != nil {
					return err
				}
				if len(all) == 0 && a.table() {
					a.note("no release is deployed: the first `servo run`, or `servo deploy`, deploys one")
				}
				return list(a, a.deploymentColumns(), all)
			})
		},
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "maximum number of deployments") //nolint:mnd // the default
	return cmd
}

func (a *app) deploymentColumns() []column[engine.Deployment] {
	return []column[engine.Deployment]{
		{Name: "deployed_at", Value: func(d engine.Deployment) any { return d.DeployedAt.Time() }},
		{Name: "release", Value: func(d engine.Deployment) any {
			if a.table() {
				return release.Short(d.Release)
			}
			return d.Release
		}},
		{Name: "state", Value: func(d engine.Deployment) any {
			if d.SupersededBy == "" {
				return "current"
			}
			return "superseded"
		}},
		{Name: "kind", Value: func(d engine.Deployment) any { return d.Kind }},
		{Name: "changes", Value: func(d engine.Deployment) any { return orNil(changesText(d.Changes)) }},
		{Name: "actor", Value: func(d engine.Deployment) any { return orNil(d.Actor) }},
		{Name: "git", Value: func(d engine.Deployment) any { return orNil(gitText(d.Git)) }},
		{Name: "message", Value: func(d engine.Deployment) any { return orNil(d.Message) }},
	}
}

// gitText formats the state of a repository: main@1a2b3c4d, with a + if the files differ from the commit.
func gitText(g *event.Git) string {
	if g == nil {
		return ""
	}
	const digits = 8
	text := g.Commit[:min(len(g.Commit), digits)]
	if g.Branch != "" {
		text = g.Branch + "@" + text
	}
	if g.Dirty {
		text += "+"
	}
	return text
}
