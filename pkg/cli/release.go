package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/source"
)

// candidate is the compiled project, with its differences from a stored release.
type candidate struct {
	*release.Compiled
	// project is the compiled project. Its assets have the fingerprints of the release.
	project *project.Project
	// archive holds the project's files, or only their hashes; nil if the environment does not deploy explicitly.
	archive *source.Archive
	// against is the hash of the release that the project is compared with, or "". summary describes that release.
	// before is the code of that release, with syntax trees that the parser of this build has produced.
	against string
	before  *release.Code
	summary *release.Release
	changes []release.Change
}

// explicit reports whether runs of a project's environment execute the deployed release.
func explicit(p *project.Project) bool { return p.Environment.Deploy == project.DeployExplicit }

// compile compiles a project, and compares it with a stored release unless against is empty. If the environment
// deploys explicitly, the candidate has an archive. If pack is true, the archive contains the files, otherwise only
// their hashes.
func (a *app) compile(ctx context.Context, store blob.Store, p *project.Project, against string, pack bool) (*candidate, error) {
	if p.Publish != nil && inCloud(a.stateOf(p)) {
		a.warn("nothing is published: `publish` in %s applies to state folders only, and the store is a bucket", project.ConfigFile)
	}
	c := &candidate{project: p, against: against}
	in := release.Input{Assets: p.Assets, Problems: p.Problems, Parser: duckparse.Version, Settings: release.Settings{
		Project: p.Name, Environment: p.Environment.Name, Pools: p.Pools, MaxConcurrentTasks: p.MaxConcurrentTasks,
		MaxParallelism: p.MaxParallelism, Data: p.Data, Vars: p.Vars, Publish: p.Publish, Schedules: p.Schedules,
		Channels: p.Channels, Alerts: p.Alerts, Watched: p.Watched,
	}}
	var err error
	if explicit(p) {
		if c.archive, err = a.archive(p, pack); err != nil {
			return nil, err
		}
		if err := inArchive(p.Assets, c.archive); err != nil {
			return nil, err
		}
		in.Source = c.archive.SHA
	}
	if c.Compiled, err = release.Compile(in, nil, nil); err != nil || against == c.SHA {
		return c, err // nothing has changed, so the stored release is not read
	}
	if against == "" {
		c.changes = release.Diff(nil, c.Code)
		return c, nil
	}
	if c.summary, c.before, err = engine.ReadRelease(ctx, store, p.Domain, against); err != nil {
		return nil, err
	}
	trees, err := a.reparse(ctx, c.before)
	if err != nil {
		return nil, err
	}
	if c.Compiled, err = release.Compile(in, &release.Compiled{Release: c.summary, Code: c.before}, trees); err != nil {
		return nil, err
	}
	c.before = c.before.WithTrees(duckparse.Version, trees)
	c.changes = release.Diff(c.before, c.Code)
	c.carry()
	return c, nil
}

// inArchive returns an error if the archive lacks a file that is part of the code of an asset, because the tasks of
// the asset could not read the file.
func inArchive(assets []plan.Asset, archive *source.Archive) error {
	for i := range assets {
		for _, name := range slices.Sorted(maps.Keys(assets[i].Text.Files)) {
			if !archive.Has(name) {
				return fmt.Errorf("the file %s is part of the code of asset %s, but %s leaves it out of the release: remove the pattern, or the file from the code",
					name, assets[i].Key, source.IgnoreFile)
			}
		}
	}
	return nil
}

// foreign returns an error if the deployed release belongs to another project, because a deployment would replace all
// assets of that project. A release belongs to another project if the project's name differs, and the release has no
// asset in common with the candidate.
func (c *candidate) foreign() error {
	if c.summary == nil || c.summary.Project == c.project.Name || len(c.before.Assets) == 0 {
		return nil
	}
	for i := range c.Code.Assets {
		if slices.ContainsFunc(c.before.Assets, func(a plan.Asset) bool { return a.Key == c.Code.Assets[i].Key }) {
			return nil
		}
	}
	return fmt.Errorf("deploy project %s: the state belongs to project %s (release %s), and the projects have no asset in common: "+
		"choose another state with --state, or replace the project with `servo deploy --force`", c.project.Name, c.summary.Project, release.Short(c.against))
}

// carry copies the fingerprints of the compiled assets to the project's assets.
func (c *candidate) carry() {
	with := *c.project
	with.Assets = slices.Clone(with.Assets)
	codes := make(map[ids.AssetKey]string, len(c.Code.Assets))
	for i := range c.Code.Assets {
		codes[c.Code.Assets[i].Key] = c.Code.Assets[i].Code
	}
	for i := range with.Assets {
		if with.Assets[i].Broken == "" {
			with.Assets[i].Code = codes[with.Assets[i].Key]
		}
	}
	c.project = &with
}

// reparse parses the queries of a release again if another version of the parser has parsed them.
func (a *app) reparse(ctx context.Context, code *release.Code) (map[ids.AssetKey]*plan.Tree, error) {
	keys, queries := release.Reparse(code, duckparse.Version)
	if len(keys) == 0 {
		return nil, nil
	}
	parser, err := duckparse.Open(ctx)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(ctx, queries)
	if err = errors.Join(err, parser.Close()); err != nil {
		return nil, fmt.Errorf("parse the deployed queries: %w", err)
	}
	trees := map[ids.AssetKey]*plan.Tree{}
	for i, key := range keys {
		if parsed[i].Tree != nil {
			trees[key] = parsed[i].Tree
		}
	}
	return trees, nil
}

// archive packs the files of a project, or only hashes them.
func (a *app) archive(p *project.Project, pack bool) (found *source.Archive, err error) {
	folder, err := os.OpenRoot(p.Root)
	if err != nil {
		return nil, fmt.Errorf("open project folder: %w", err)
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	var skip []string
	states := []string{a.stateOf(p)}
	for _, e := range p.Environments {
		states = append(states, filepath.Join(p.Root, e.Store))
	}
	if p.Publish != nil {
		for _, place := range []string{p.Publish.Folder, p.Publish.DuckDB} {
			if place != "" {
				states = append(states, inProject(p, place), publisher.LinksOf(inProject(p, place)))
			}
		}
	}
	for _, dir := range states {
		if name, err := filepath.Rel(p.Root, dir); err == nil && filepath.IsLocal(name) && name != "." {
			skip = append(skip, filepath.ToSlash(name))
		}
	}
	if pack {
		return source.Build(folder.FS(), skip)
	}
	return source.Hash(folder.FS(), skip)
}

// countsOf summarizes changes for a deployment.
func countsOf(changes []release.Change) event.Changes {
	n := release.Count(changes)
	return event.Changes{Added: int32(n.Added), Removed: int32(n.Removed), Changed: int32(n.Changed)} //nolint:gosec // at most 20,000 assets
}

// changesText formats counts: +1 -2 ~3.
func changesText(c event.Changes) string {
	var parts []string
	for _, part := range []struct {
		sign string
		n    int32
	}{{"+", c.Added}, {"-", c.Removed}, {"~", c.Changed}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%s%d", part.sign, part.n))
		}
	}
	return strings.Join(parts, " ")
}

// maxDeployTries limits how often a local deployment is repeated because another process has
// deployed in the meantime.
const maxDeployTries = 5

// deployLocal deploys the project's files if they differ from the deployed release. It returns the project with the
// fingerprints of the release, and the hash of the release. It writes nothing if nothing has changed, or if the
// function check returns an error.
func (a *app) deployLocal(
	ctx context.Context, s *session, p *project.Project, check func(*snapshot.Snapshot) error,
) (*project.Project, string, error) {
	for try := 1; ; try++ {
		snap, err := s.Current(ctx)
		if err != nil {
			return nil, "", err
		}
		current := snap.State.Release()
		c, err := a.compile(ctx, s.Store(), p, current, false)
		if err != nil && current != "" {
			a.warn("cannot compare with the deployed release: %v", err)
			c, err = a.compile(ctx, s.Store(), p, "", false)
		}
		if err != nil {
			return nil, "", err
		}
		if c.SHA == current {
			return c.project, c.SHA, nil
		}
		if err := errors.Join(c.foreign(), check(snap)); err != nil {
			return nil, "", err
		}
		a.warnOfEmptyRules(c)
		if err := s.SaveRelease(ctx, c.Compiled, nil); err != nil {
			return nil, "", err
		}
		_, err = s.Deploy(ctx, engine.DeployRequest{
			Release: c.SHA, Expects: current, Kind: event.DeployLocal, Environment: p.Environment.Name, Changes: countsOf(c.changes),
			Schedules: c.Schedules, Alerts: c.Alerts, Watched: c.Watched,
		})
		if _, conflict := errors.AsType[*engine.ReleaseConflictError](err); conflict && try < maxDeployTries {
			continue
		}
		return c.project, c.SHA, err
	}
}

// warnOfEmptyRules warns of alert rules that the release omits. Such a rule selects no asset of the release. Files with
// problems may declare the assets that it selects.
func (a *app) warnOfEmptyRules(c *candidate) {
	for i := range c.project.Alerts {
		r := &c.project.Alerts[i]
		if !slices.ContainsFunc(c.Alerts, func(kept event.AlertRule) bool { return kept.Name == r.Name }) {
			a.warn("the alert rule %s is not deployed: files with problems hide the assets that it selects (%s): run `servo validate`", r.Name, r.Select)
		}
	}
}

// deployment is the release that runs execute in an environment with explicit deployments.
type deployment struct {
	sha     string
	release *release.Release
	// project has the assets, variables and limits of the release, and all other settings of the folder.
	project *project.Project
}

// deployedRelease reads the deployed release of an environment with explicit deployments, and reports how the files
// of the folder differ from it.
func (a *app) deployedRelease(ctx context.Context, settings *project.Project) (d *deployment, err error) {
	parts, err := a.parts(ctx, settings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotDeployed(settings)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, parts.Close()) }()
	snap, err := parts.Reader().Current(ctx)
	if err != nil {
		return nil, err
	}
	if d, err = executableDeployment(ctx, parts.Store, settings, snap.State.Release()); err != nil {
		return nil, err
	}
	a.noteLocalChanges(ctx, parts.Store, settings, d.sha)
	return d, nil
}

func errNotDeployed(p *project.Project) error {
	return fmt.Errorf("no release is deployed to %s: deploy the project with `servo deploy%s`",
		environmentName(p.Environment.Name), envFlag(p.Environment.Name))
}

// executableDeployment reads a release of an environment with explicit deployments. It returns an error if the release
// has no archive of the project's files. Without an archive, workers would execute the release with the files of this
// machine, which may differ.
func executableDeployment(ctx context.Context, store blob.Store, settings *project.Project, sha string) (*deployment, error) {
	if sha == "" {
		return nil, errNotDeployed(settings)
	}
	d, err := readDeployment(ctx, store, settings, sha)
	if err == nil && d.release.Source == "" {
		return nil, fmt.Errorf("the deployed release %s has no archive of the project's files: deploy the project with `servo deploy%s`",
			release.Short(sha), envFlag(settings.Environment.Name))
	}
	return d, err
}

// readDeployment reads a release. The release need not have an archive of the project's files.
func readDeployment(ctx context.Context, store blob.Store, settings *project.Project, sha string) (*deployment, error) {
	r, code, err := engine.ReadRelease(ctx, store, settings.Domain, sha)
	if err != nil {
		return nil, err
	}
	p := *settings
	p.Assets, p.Data, p.Vars, p.Pools = code.Assets, r.Data, r.Vars, r.Pools
	p.MaxConcurrentTasks, p.MaxParallelism, p.Publish = r.MaxConcurrentTasks, r.MaxParallelism, r.Publish
	return &deployment{sha, r, &p}, nil
}

func environmentName(name string) string {
	if name == "" {
		return "the workspace"
	}
	return "environment " + name
}

// envFlag returns the flag that chooses an environment, for commands that a message suggests.
func envFlag(name string) string {
	if name == "" {
		return ""
	}
	return " --env " + name
}

// noteLocalChanges reports how the files of the project differ from the release that a run executes.
func (a *app) noteLocalChanges(ctx context.Context, store blob.Store, settings *project.Project, sha string) {
	p, err := a.loadProject(ctx, settings.Root)
	if p == nil || err != nil {
		a.warn("the deployed release is %s; the files of this folder differ, and have problems: `servo validate` shows them", release.Short(sha))
		return
	}
	c, err := a.compile(ctx, store, p, sha, false)
	switch {
	case err != nil:
		a.warn("cannot compare the files of this folder with release %s: %v", release.Short(sha), err)
	case c.SHA == sha:
	case len(c.changes) == 0:
		a.note("the deployed release is %s; the files of this folder differ, but not the assets", release.Short(sha))
	default:
		var keys []string
		for _, change := range c.changes {
			keys = append(keys, change.Asset)
		}
		a.note("the deployed release is %s; the files of this folder differ in %s: %s; deploy them with `servo deploy%s`",
			release.Short(sha), plural(len(keys), "asset"), someTexts(keys), envFlag(p.Environment.Name))
	}
}

// someTexts joins the first texts of a list.
func someTexts(texts []string) string {
	const most = 5
	if more := len(texts) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), more)
	}
	return strings.Join(texts, ", ")
}
