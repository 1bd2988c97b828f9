package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// planReport says what a deployment of the project would change.
type planReport struct {
	Environment string `json:"environment,omitempty"`
	Workspace   string `json:"workspace"`
	// Release is the hash of the compiled project. Against is the hash of the deployed release that the project is
	// compared with; "": no release is deployed.
	Release string `json:"release"`
	Against string `json:"against,omitempty"`
	// Changes are the assets that differ.
	Changes []plannedChange `json:"changes"`
	// Schedules are the schedules that differ.
	Schedules []release.ScheduleChange `json:"schedules,omitempty"`
	// Alerts are the alert rules, channels, deadlines, freshness and SLAs that differ.
	Alerts []release.AlertChange `json:"alerts,omitempty"`
	// FilesDiffer means that the archives of the project's files differ.
	FilesDiffer bool `json:"files_differ,omitempty"`
	// Stale lists the partitions that the deployment makes stale. Run lists the partitions that `servo run --stale`
	// would materialize after the deployment: the missing and the stale partitions, and the partitions that read them.
	Stale []plannedPartitions `json:"stale,omitempty"`
	Run   []plannedPartitions `json:"run,omitempty"`
	// Estimate predicts the run of the partitions in Run; nil: there are none, or the run cannot be planned.
	Estimate *planEstimate `json:"estimate,omitempty"`
	// Facts are sentences that a person should read before the deployment.
	Facts []string `json:"facts,omitempty"`
}

// plannedChange is a change of an asset, and the assets that read it.
type plannedChange struct {
	release.Change
	// Downstream are the assets that read the changed one, directly or indirectly.
	Downstream []string `json:"downstream,omitempty"`
}

// errBreaking means that `servo plan --check` found breaking changes.
var errBreaking = errors.New("breaking changes or removed assets")

func (a *app) planCommand() *cobra.Command {
	var against string
	var check bool
	cmd := &cobra.Command{
		Use:         "plan",
		Annotations: writesDocument,
		Short:       "Show what a deployment of the project would change",
		Long: "Compile the project, compare it with the current release, and print the differences. Nothing changes.\n" +
			"A breaking change may change the data of an asset. A non-breaking change only adds columns. A policy change\n" +
			"concerns retries, limits, descriptions and the like, and makes nothing stale.",
		Example: "  servo plan --env prod\n  servo plan --env prod --check      for a pull request: exit code 4 for breaking changes",
		Args:    takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.plan(cmd.Context(), against, check)
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "a deployed release to compare with: current, or at least 4 digits of its hash (default: the current one)")
	cmd.Flags().BoolVar(&check, "check", false, "bind the queries, and exit with 4 if there are breaking changes or removed assets")
	return cmd
}

func (a *app) plan(ctx context.Context, against string, check bool) error {
	dir, err := a.projectDir()
	if err != nil {
		return err
	}
	p, err := a.loadProject(ctx, dir)
	if err != nil {
		return a.problems(dir, err)
	}
	report, err := a.planReport(ctx, p, against)
	if err != nil {
		return err
	}
	if err := a.document(report, func() string { return a.planText(report) }); err != nil {
		return err
	}
	breaking := 0
	for _, c := range report.Changes {
		if c.Kind == release.Breaking || c.Kind == release.Removed {
			breaking++
		}
	}
	if check {
		if err := a.checkQueries(ctx, p); err != nil {
			return err
		}
	}
	if check && report.Against == "" {
		return fmt.Errorf("no release is deployed to %s, so there are no changes to check: name its state with --state, or check a new project with `servo validate`",
			environmentName(p.Environment.Name))
	}
	if check && breaking > 0 {
		return fmt.Errorf("%w: %s: --check exits with %d", errBreaking, plural(breaking, "asset"), exitBreaking)
	}
	return nil
}

// planReport compares a project with a deployed release.
func (a *app) planReport(ctx context.Context, p *project.Project, against string) (report *planReport, err error) {
	parts, err := a.parts(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		if against != "" {
			return nil, fmt.Errorf("compare with release %s: %w", against, err)
		}
		c, err := a.compile(ctx, nil, p, "", false)
		if err != nil {
			return nil, err
		}
		return reportOf(c, nil), nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, parts.Close()) }()
	snap, err := parts.Reader().Current(ctx)
	if err != nil {
		return nil, err
	}
	sha := snap.State.Release()
	if against != "" {
		all, err := engine.ListDeployments(ctx, snap, 0)
		if err != nil {
			return nil, err
		}
		if sha, err = findRelease(all, against); err != nil {
			return nil, err
		}
	}
	c, err := a.compile(ctx, parts.Store, p, sha, false)
	if err != nil {
		return nil, err
	}
	report = reportOf(c, snap)
	toRun, err := report.addStaleness(ctx, c, snap, a.Clock.Now())
	if err != nil {
		return nil, err
	}
	return report, a.addEstimate(ctx, report, c, snap, toRun)
}

// reportOf describes what a deployment of c would change.
func reportOf(c *candidate, snap *snapshot.Snapshot) *planReport {
	p := c.project
	r := &planReport{
		Environment: p.Environment.Name, Workspace: p.Domain.Workspace, Release: c.SHA, Against: c.against, Changes: []plannedChange{},
		FilesDiffer: c.summary != nil && c.archive != nil && c.summary.Source != c.archive.SHA,
	}
	readers := readersOf(c.Code.Assets)
	for _, change := range c.changes {
		planned := plannedChange{Change: change}
		if change.Kind == release.Breaking || change.Kind == release.NonBreaking {
			planned.Downstream = downstreamOf(change.Asset, readers)
		}
		r.Changes = append(r.Changes, planned)
	}
	if c.summary != nil || c.against == "" {
		var before []event.Schedule
		if c.summary != nil {
			before = c.summary.Schedules
		}
		r.Schedules = release.DiffSchedules(before, c.Schedules)
		var settings *release.Settings
		if c.summary != nil {
			settings = &c.summary.Settings
		}
		r.Alerts = release.DiffAlerts(settings, &c.Settings)
	}
	if snap != nil {
		r.Facts = facts(c, snap.State)
	}
	return r
}

// readersOf returns, for each asset, the assets that read it directly.
func readersOf(assets []plan.Asset) map[string][]string {
	readers := map[string][]string{}
	for i := range assets {
		for _, dep := range assets[i].Deps {
			if dep == assets[i].Key {
				continue // the asset reads its own earlier partitions
			}
			readers[dep.String()] = append(readers[dep.String()], assets[i].Key.String())
		}
	}
	return readers
}

// downstreamOf returns the assets that read an asset, directly or indirectly, sorted by key.
func downstreamOf(asset string, readers map[string][]string) []string {
	found, next := map[string]bool{}, []string{asset}
	var list []string
	for len(next) > 0 {
		asset, next = next[0], next[1:]
		for _, reader := range readers[asset] {
			if !found[reader] {
				found[reader] = true
				list, next = append(list, reader), append(next, reader)
			}
		}
	}
	slices.Sort(list)
	return list
}

// facts describes how the changes affect the current state: which removed assets have running tasks,
// and which partitions become unreadable because the dimensions of their asset change.
func facts(c *candidate, s *state.State) (texts []string) {
	changed := map[string]release.Change{}
	for _, change := range c.changes {
		changed[change.Asset] = change
	}
	running := map[string]int{}
	for run := range s.Runs.All {
		if run.State.Terminal() {
			continue
		}
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			if changed[t.AssetKey].Kind == release.Removed && !t.State.Terminal() {
				running[t.AssetKey]++
			}
			return true
		})
	}
	for _, change := range c.changes {
		if n := running[change.Asset]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s is removed, and %d of its tasks have not ended: they keep the code of their run",
				change.Asset, n))
		}
		if c.otherDimensions(change.Asset) {
			texts = append(texts, fmt.Sprintf("the dimensions of %s change: its existing partitions are no longer read", change.Asset))
		}
	}
	return texts
}

// otherDimensions reports whether an asset is in both releases, and has different dimensions in them.
func (c *candidate) otherDimensions(asset string) bool {
	if c.summary == nil {
		return false
	}
	named := func(a release.Asset) bool { return a.Key == asset }
	old, now := slices.IndexFunc(c.summary.Assets, named), slices.IndexFunc(c.Assets, named)
	return old >= 0 && now >= 0 && c.summary.Assets[old].Space != c.Assets[now].Space
}

// planText formats a report for people.
func (a *app) planText(r *planReport) string {
	var b strings.Builder
	of := environmentName(r.Environment)
	switch r.Against {
	case "":
		fmt.Fprintf(&b, "release %s for %s: no release is deployed\n", release.Short(r.Release), of)
	case r.Release:
		fmt.Fprintf(&b, "nothing to deploy: the files are the same as in release %s\n", release.Short(r.Release))
		partitionsText(&b, "servo run --stale would materialize", r.Run)
		r.Estimate.text(&b)
		a.factsText(&b, r)
		return b.String()
	default:
		fmt.Fprintf(&b, "release %s for %s, compared with %s\n", release.Short(r.Release), of, release.Short(r.Against))
	}
	width := 0
	for _, c := range r.Changes {
		width = max(width, len(c.Asset))
	}
	for _, c := range r.Changes {
		fmt.Fprintf(&b, "  %s  %s\n", pad(c.Asset, width), strings.Join(c.details(), "; "))
	}
	if len(r.Changes) == 0 {
		b.WriteString("  no asset has changed, so nothing becomes stale\n")
	}
	partitionsText(&b, "become stale", r.Stale)
	partitionsText(&b, "servo run --stale would then materialize", r.Run)
	r.Estimate.text(&b)
	for _, s := range r.Schedules {
		fmt.Fprintf(&b, "schedule %s: %s\n", s.Schedule, s.Kind)
	}
	for _, x := range r.Alerts {
		fmt.Fprintf(&b, "%s %s: %s\n", x.What, x.Name, x.Kind)
	}
	if r.FilesDiffer && len(r.Changes) == 0 {
		b.WriteString("other files of the project have changed\n")
	}
	a.factsText(&b, r)
	return b.String()
}

func (a *app) factsText(b *strings.Builder, r *planReport) {
	for _, fact := range r.Facts {
		fmt.Fprintf(b, "%s %s\n", a.style.paint(yellow, "note:"), fact)
	}
}

// details returns the parts of a line that describes a change.
func (c plannedChange) details() []string {
	parts := []string{c.Kind}
	columns := map[string][]string{}
	for _, column := range c.Columns {
		columns[column.Kind] = append(columns[column.Kind], column.Name)
	}
	for _, kind := range []string{"changed", release.Added, release.Removed} {
		if names := columns[kind]; len(names) > 0 {
			word := "column"
			if len(names) > 1 {
				word = "columns"
			}
			parts = append(parts, fmt.Sprintf("%s %s %s", word, someTexts(names), kind))
		}
	}
	if len(c.Reasons) > 0 {
		parts = append(parts, "changed: "+someTexts(c.Reasons))
	}
	if len(c.Downstream) > 0 {
		parts = append(parts, "read by "+someTexts(c.Downstream))
	}
	return parts
}

func (a *app) diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "diff RELEASE RELEASE",
		Annotations: writesRows,
		Short:       "Show the differences between two deployed releases",
		Example:     "  servo diff 3f9ac1 current",
		Args:        takes("RELEASE", "RELEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(v published) error {
				all, err := engine.ListDeployments(cmd.Context(), v.Snapshot, 0)
				if err != nil {
					return err
				}
				var codes [2]*release.Code
				for i, name := range args {
					sha, err := findRelease(all, name)
					if err != nil {
						return err
					}
					if _, codes[i], err = engine.ReadRelease(cmd.Context(), v.Store, v.Domain, sha); err != nil {
						return err
					}
				}
				changes, err := a.diff(cmd.Context(), codes[0], codes[1])
				if err != nil {
					return err
				}
				if len(changes) == 0 && a.table() {
					a.note("no asset differs")
				}
				return list(a, changeColumns, changes)
			})
		},
	}
}

// diff returns the differences between two releases. If another version of the parser has parsed the queries of a
// release, diff parses them again, so that only differences between the queries themselves count.
func (a *app) diff(ctx context.Context, before, after *release.Code) ([]release.Change, error) {
	for _, code := range []**release.Code{&before, &after} {
		trees, err := a.reparse(ctx, *code)
		if err != nil {
			return nil, err
		}
		*code = (*code).WithTrees(duckparse.Version, trees)
	}
	return release.Diff(before, after), nil
}

var changeColumns = []column[release.Change]{
	{Name: "asset", Value: func(c release.Change) any { return c.Asset }},
	{Name: "change", Value: func(c release.Change) any { return c.Kind }},
	{Name: "details", Value: func(c release.Change) any { return orNil(strings.Join(plannedChange{Change: c}.details()[1:], "; ")) }},
	{Name: "old_code", Value: func(c release.Change) any { return orNil(c.OldCode) }},
	{Name: "new_code", Value: func(c release.Change) any { return orNil(c.NewCode) }},
}
