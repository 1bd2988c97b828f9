package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// partitionNamed returns the asset and the partition that a text names. The text is the key of an asset. If the asset
// is partitioned, the partition follows in brackets, as in a task key or in a selection. partitionNamed returns nil for
// any other text, such as a part of a task key.
func partitionNamed(text string, assets []plan.Asset) (*plan.Asset, ids.Partition, error) {
	name, rest, bracket := strings.Cut(text, "[")
	at := slices.IndexFunc(assets, func(a plan.Asset) bool { return a.Key.String() == name })
	closed := strings.HasSuffix(rest, "]")
	if at < 0 || bracket != closed || bracket != (assets[at].Partitions != nil) {
		return nil, nil, nil
	}
	asset := &assets[at]
	if !bracket {
		return asset, nil, nil
	}
	_, partition, err := ids.ParseTaskKey(text)
	if err != nil {
		return nil, nil, nil //nolint:nilerr // the text may be a part of a task key, for which the caller searches
	}
	for dimension := range partition {
		if asset.Partitions.Dimension(dimension) == nil {
			return nil, nil, nil
		}
	}
	if len(partition) != len(asset.Partitions.Dimensions) {
		return nil, nil, nil
	}
	if _, err := asset.Partitions.Parse(partition.Key()); err != nil {
		return nil, nil, fmt.Errorf("explain a partition of %s: %w", name, err)
	}
	return asset, partition, nil
}

// explainPartition explains a partition of an asset. If done is false, it has explained nothing and returns the name of
// a task, which the caller must explain instead. This happens if the text names no partition, or if the project cannot
// be read. It also happens if the newest task of the partition explains more, because its run is live or the task did
// not succeed.
func (a *app) explainPartition(ctx context.Context, v published, text string) (done bool, task string, err error) {
	if !strings.Contains(text, "/") {
		return false, text, nil
	}
	p, err := a.definedProject(ctx, func([]plan.Asset) ([]ids.AssetKey, error) { return nil, nil })
	if err != nil {
		return false, text, nil //nolint:nilerr // without a usable project, only the task can be explained
	}
	asset, partition, err := partitionNamed(text, p.Assets)
	if asset == nil || err != nil {
		return err != nil, text, err
	}
	text = ids.TaskKey(asset.Key, partition)
	s, newest, err := engine.FindTaskAnywhere(ctx, v.Snapshot, "", text)
	if err == nil {
		shown, err := engine.Shows(ctx, v.Snapshot, newest, partition.Key())
		if err != nil {
			return true, text, err
		}
		if !slices.Contains(s.PartitionsOf(newest), partition.Key()) || newest.State != state.TaskSucceeded && !shown ||
			!s.Runs.Get(newest.RunID).State.Terminal() {
			return false, text, nil
		}
	}
	e, err := engine.Staleness(ctx, v.Snapshot, p.Assets, a.Clock.Now())
	if err != nil {
		return true, text, err
	}
	x, err := engine.ExplainPartition(ctx, v.Snapshot, e, asset.Key, partition.Key())
	if err != nil {
		return true, text, err
	}
	if x.CodeChanged && x.Holds != nil {
		if x.CodeDetails, err = a.codeDetails(ctx, v, p, asset.Key, x.Holds.RunID); err != nil {
			a.warn("cannot compare the code with the code of run %s: %v", x.Holds.RunID, err)
		}
	}
	backfills, err := engine.BackfillsOf(ctx, v.Store, v.State, asset.Key, partition.Key())
	if err != nil {
		return true, text, err
	}
	automations, err := engine.Automations(ctx, v.Snapshot, selecting(p.Assets, asset.Key))
	if err != nil {
		return true, text, err
	}
	with := struct {
		*view.PartitionExplanation

		Backfills   []engine.PartitionBackfill `json:"backfills,omitempty"`
		Automations []engine.Automation        `json:"automations,omitempty"`
		Typical     *typical                   `json:"typical,omitempty"`
	}{x, backfills, automations, nil}
	if with.Typical, err = typicalOf(v.State, asset.Key); err != nil {
		return true, text, err
	}
	return true, text, a.document(with, func() string {
		return a.partitionText(x, backfills, automations, with.Typical, asset.Key, partition)
	})
}

// selecting returns a function that reports whether runs with a given specification include the asset. Schedules and
// requests contain such specifications.
func selecting(assets []plan.Asset, asset ids.AssetKey) func(*event.RunSpec) bool {
	catalog := selector.NewCatalog(assets)
	return func(spec *event.RunSpec) bool {
		texts := spec.Assets
		if spec.All {
			texts = []string{"*"}
		}
		q := selector.Query{Upstream: spec.Upstream, Downstream: spec.Downstream}
		var err error
		if q.Include, err = selector.ParseAll(texts); err == nil && len(spec.Exclude) > 0 {
			q.Exclude, err = selector.ParseAll(spec.Exclude)
		}
		if err != nil {
			return false
		}
		chosen, err := catalog.Select(q)
		return err == nil && slices.Contains(chosen.Keys, asset)
	}
}

// codeDetails describes how the current code of an asset differs from the code of a run. It returns nothing if the run
// no longer exists, or has no release.
func (a *app) codeDetails(ctx context.Context, v published, p *project.Project, asset ids.AssetKey, runID string) ([]string, error) {
	s, err := v.WithRun(ctx, runID)
	if err != nil || s == nil {
		return nil, err
	}
	run := s.Runs.Get(runID)
	if run == nil || run.Release == "" {
		return nil, nil
	}
	var texts []string
	if run.Vars != "" {
		texts = append(texts, "its run had other variables: "+run.Vars)
	}
	var changes []release.Change
	if explicit(p) {
		_, before, err := engine.ReadRelease(ctx, v.Store, p.Domain, run.Release)
		if err != nil {
			return nil, err
		}
		_, after, err := engine.ReadRelease(ctx, v.Store, p.Domain, v.State.Release())
		if err != nil {
			return nil, err
		}
		if changes, err = a.diff(ctx, before, after); err != nil {
			return nil, err
		}
	} else {
		c, err := a.compile(ctx, v.Store, p, run.Release, false)
		if err != nil {
			return nil, err
		}
		changes = c.changes
	}
	at := slices.IndexFunc(changes, func(c release.Change) bool { return c.Asset == asset.String() })
	if at >= 0 {
		texts = append(texts, plannedChange{Change: changes[at]}.details()[1:]...)
	}
	return texts, nil
}

// partitionText formats the explanation of a partition for people.
func (a *app) partitionText(
	x *view.PartitionExplanation, backfills []engine.PartitionBackfill, automations []engine.Automation, usual *typical,
	asset ids.AssetKey, partition ids.Partition,
) string {
	t := &outline{style: a.style}
	fmt.Fprintf(&t.b, "%s %s\n", a.style.bold(readable(x.Partition)), x.Headline)
	t.section("holds")
	if x.Holds != nil {
		t.line("%s", holdingText(x.Holds))
		if x.Quarantine.Approved() {
			t.line("a check blocked the output; it was %s", x.Quarantine)
		}
		if x.Holds.Code != "" {
			t.line("code %s", x.Holds.Code)
		}
	}
	t.section("code")
	if x.CodeChanged {
		t.line("now %s", x.Code)
		for _, text := range x.CodeDetails {
			t.line("%s", text)
		}
	}
	t.section("upstream")
	for _, up := range x.Newer {
		if up.Mark != nil {
			t.line("%s: %s", up.Name(), up.Mark)
		} else {
			t.line("%s: now %s", up.Name(), holdingText(up.Holds))
		}
	}
	for _, up := range x.Pending {
		t.line("%s: %s", up.Name(), up.Status)
	}
	t.section("backfill")
	for _, b := range backfills {
		t.line("%s is %s%s; chunk %d is %s", b.ID, b.State, prefixed(": ", b.PauseReason), b.Chunk, b.ChunkState)
	}
	a.automationText(t, x, automations)
	t.section("one task")
	if usual != nil {
		t.line("%s", usual)
	}
	t.section("next")
	for _, b := range backfills {
		if b.Next != "" {
			t.line("%s", b.Next)
		}
	}
	if command := runCommand(x, asset, partition); command != "" {
		t.line("%s", command)
	}
	if x.Holds != nil {
		t.line("the task: servo explain %s '%s'", x.Holds.RunID, readable(x.Holds.TaskKey))
	}
	return t.b.String()
}

// runCommand returns the command that materializes a stale or missing partition, or "". If an upstream partition is
// missing, the command includes the upstreams, because a run of the partition alone could not be planned.
func runCommand(x *view.PartitionExplanation, asset ids.AssetKey, partition ids.Partition) string {
	if x.Status != staleness.Stale && x.Status != staleness.Missing {
		return ""
	}
	command := "servo run " + asset.String() + " --stale"
	if len(partition) > 0 {
		command = "servo run " + asset.String() + " -p " + quoted(partition.Text())
	}
	if slices.ContainsFunc(x.Pending, func(up view.UpstreamPartition) bool { return up.Status == staleness.Missing }) {
		command += " --upstream"
	}
	return command
}

// automationText lists the schedules and requests that run the asset, and says why they have not
// run it.
func (a *app) automationText(t *outline, x *view.PartitionExplanation, automations []engine.Automation) {
	t.section("automation")
	for _, m := range automations {
		what := "request " + m.Request
		if m.Schedule != "" {
			what = "schedule " + m.Schedule
		}
		t.line("%s: %s", what, m.Status)
		if m.Next != "" {
			t.line("   %s", m.Next)
		}
	}
	if len(automations) == 0 && x.Status != staleness.Fresh {
		t.line("no schedule of the deployed release, and no request, runs this asset")
	}
}

func holdingText(h *view.Holding) string {
	return fmt.Sprintf("%s by run %s, %s, %s", h.MaterializationID, h.RunID, stamp(h.At), plural(int(h.RowCount), "row"))
}
