package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// dryRun describes a run that is not started.
type dryRun struct {
	// Tasks counts the tasks that workers execute. GroupNodes counts the nodes that only order these tasks.
	Tasks      int            `json:"tasks"`
	GroupNodes int            `json:"group_nodes"`
	Assets     []dryAsset     `json:"assets"`
	Warnings   []string       `json:"warnings"`
	LeftOut    []string       `json:"left_out"`
	Estimate   dryRunEstimate `json:"estimate"`
}

// dryAsset describes the tasks of one asset.
type dryAsset struct {
	Asset string `json:"asset"`
	Tasks int    `json:"tasks"`
	// Partitions are the partitions of the tasks, as ranges; none for an unpartitioned asset.
	Partitions []string `json:"partitions"`
	// Replaces is the number of these partitions that already have an output.
	Replaces int        `json:"replaces"`
	Inputs   []dryInput `json:"inputs"`
	// Samples is the number of earlier attempts on which the estimate of a task is based. The durations are in seconds.
	Samples  int     `json:"samples"`
	Duration float64 `json:"duration"`
	P95      float64 `json:"duration_p95"`
	CPU      float64 `json:"cpu"`
	Rows     int64   `json:"rows"`
	Bytes    int64   `json:"bytes"`
	// Cost is the estimated cost of all tasks, in nano-dollars. Absent: the cost is unknown, or there are no prices.
	Cost *int64 `json:"cost_nanousd,omitempty"`
}

// dryInput counts the partitions of an upstream asset that the tasks read.
type dryInput struct {
	Asset    string `json:"asset"`
	ThisRun  int    `json:"this_run"`
	Existing int    `json:"existing"`
}

// dryRun prints what a run would do, and writes nothing.
func (a *app) dryRun(ctx context.Context, p *project.Project, r engine.RunRequest) error {
	return a.withSnapshot(ctx, p, func(snap *snapshot.Snapshot) error {
		warnings, err := engine.Choose(ctx, snap, &r, a.Clock.Now())
		if err != nil {
			return err
		}
		built, err := engine.Prepare(ctx, snap, r.Plan, a.Clock.Now())
		if err != nil {
			return err
		}
		built.Warnings = append(warnings, built.Warnings...)
		limits, err := a.slots(snap.State, p, r.MaxParallelism)
		if err != nil {
			return err
		}
		expected, err := engine.Estimate(snap.State, built, limits)
		if err != nil {
			return err
		}
		d, err := describeRun(ctx, snap, built, &expected, p.Pricing)
		if err != nil {
			return err
		}
		d.joinPartitions(built, r.Plan.Assets)
		if err := a.showDryRun(&d, &expected); err != nil {
			return err
		}
		if len(d.LeftOut) > 0 {
			return errReported // the run itself would fail, too; a warning has named the omitted assets
		}
		return nil
	})
}

// withSnapshot calls f with the newest published state, or with an empty one if nothing was ever published.
func (a *app) withSnapshot(ctx context.Context, p *project.Project, f func(*snapshot.Snapshot) error) error {
	dir := a.options(p).Dir
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !inCloud(dir) {
		return f(&snapshot.Snapshot{State: state.New(p.Domain)})
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return err
	}
	snap, err := parts.Reader().Current(ctx)
	if err == nil {
		err = f(snap)
	}
	return errors.Join(err, parts.Close())
}

// slots returns the limits on how many tasks of a run would execute at once. In a cloud, the number of workers is
// unknown, so it is not one of these limits.
func (a *app) slots(s *state.State, p *project.Project, parallelism int32) (estimate.Limits, error) {
	dir := a.options(p).Dir
	limits := engine.LimitsOf(s)
	tasks := []int32{parallelism}
	if !inCloud(dir) {
		tasks = append(tasks, cmp.Or(int32(p.Workers.Concurrency), int32(2*runtime.GOMAXPROCS(0)))) //nolint:gosec,mnd // the workers' default
		root, err := filepath.EvalSymlinks(p.Root)
		if err != nil {
			return estimate.Limits{}, fmt.Errorf("find the project's folder: %w", err)
		}
		if filepath.Dir(dir) == p.Root || filepath.Dir(dir) == root {
			limits = limitsOf(p) // `servo run` would apply the project's limits before the run
		}
	}
	tasks = append(tasks, cmp.Or(limits.Workspace, state.DefaultWorkspaceSlots))
	l := estimate.Limits{Pools: make(map[string]int, len(limits.Pools))}
	for _, n := range tasks {
		if n > 0 && (l.Tasks == 0 || int(n) < l.Tasks) {
			l.Tasks = int(n)
		}
	}
	for name, n := range limits.Pools {
		l.Pools[name] = int(n)
	}
	return l, nil
}

// describeRun returns the description of a planned run.
func describeRun(ctx context.Context, snap *snapshot.Snapshot, p *plan.Plan, e *estimate.Estimate, prices *estimate.Prices) (dryRun, error) {
	d := dryRun{Warnings: append([]string{}, p.Warnings...), LeftOut: append([]string{}, p.LeftOut...), Estimate: estimateOf(e, prices)}
	for _, in := range p.Incomplete {
		d.Warnings = append(d.Warnings, in.String())
	}
	tasks := map[string][]*plan.Task{}
	var order []string
	for i := range p.Tasks {
		t := &p.Tasks[i]
		if t.Kind == event.KindGroup {
			d.GroupNodes++
			continue
		}
		if tasks[t.AssetKey] == nil {
			order = append(order, t.AssetKey)
		}
		tasks[t.AssetKey] = append(tasks[t.AssetKey], t)
		d.Tasks++
	}
	for _, key := range order {
		at, _ := slices.BinarySearchFunc(e.Assets, key, func(a estimate.Asset, key string) int { return strings.Compare(a.Asset, key) })
		past := e.Assets[at]
		asset := dryAsset{
			Asset: key, Tasks: len(tasks[key]), Inputs: inputsOf(p, tasks[key]), Samples: past.Samples, Duration: past.Median.Duration.Seconds(),
			P95: past.P95.Duration.Seconds(), CPU: max(past.Median.CPU, 0).Seconds(), Rows: past.Median.Rows, Bytes: past.Median.Bytes, Cost: costOf(&past),
		}
		for _, t := range tasks[key] {
			for _, partition := range t.EachPartition() {
				row, err := snap.Partition(ctx, key, partition)
				if err != nil {
					return d, fmt.Errorf("read the output of %s: %w", t.TaskKey, err)
				}
				if row != nil {
					asset.Replaces++
				}
			}
		}
		d.Assets = append(d.Assets, asset)
	}
	return d, nil
}

// inputsOf counts, for each upstream asset, the partitions that the tasks of one asset read.
func inputsOf(p *plan.Plan, tasks []*plan.Task) []dryInput {
	type reads struct {
		this, existing map[string]bool
		groups         map[string]bool
	}
	found := map[string]*reads{}
	var names []string
	for _, t := range tasks {
		for name, set := range t.Inputs {
			r := found[name]
			if r == nil {
				r = &reads{map[string]bool{}, map[string]bool{}, map[string]bool{}}
				found[name], names = r, append(names, name)
			}
			items := set.Items
			if set.Group != "" {
				if r.groups[set.Group] {
					continue
				}
				r.groups[set.Group], items = true, p.Groups[set.Group]
			}
			for _, in := range items {
				if in.TaskKey != "" {
					r.this[in.PartitionKey] = true
				} else {
					r.existing[in.PartitionKey] = true
				}
			}
		}
	}
	slices.Sort(names)
	inputs := make([]dryInput, 0, len(names))
	for _, name := range names {
		inputs = append(inputs, dryInput{name, len(found[name].this), len(found[name].existing)})
	}
	return inputs
}

// joinPartitions sets the partitions of the tasks of each asset, as ranges.
func (d *dryRun) joinPartitions(p *plan.Plan, assets []plan.Asset) {
	keys := map[string][]string{}
	for i := range p.Tasks {
		keys[p.Tasks[i].AssetKey] = append(keys[p.Tasks[i].AssetKey], p.Tasks[i].EachPartition()...)
	}
	spaces := map[string]*space.Space{}
	for i := range assets {
		spaces[assets[i].Key.String()] = assets[i].Partitions
	}
	for i := range d.Assets {
		name := d.Assets[i].Asset
		d.Assets[i].Partitions = append([]string{}, spaces[name].Selections(keys[name])...)
	}
}

// showDryRun prints the description of a run.
func (a *app) showDryRun(d *dryRun, e *estimate.Estimate) error {
	a.warnings(d.Warnings)
	if a.format == render.JSON || a.format == render.YAML {
		return render.Document(a.Stdout, a.format, d)
	}
	if err := list(a, dryRunColumns, d.Assets); err != nil {
		return err
	}
	a.note("dry run: %s of %s; nothing was started", plural(d.Tasks, "task"), plural(len(d.Assets), "asset"))
	for _, text := range d.Estimate.texts(e) {
		a.note("%s", text)
	}
	return nil
}

var dryRunColumns = []column[dryAsset]{
	{Name: "asset", Value: func(d dryAsset) any { return d.Asset }},
	{Name: "tasks", Value: func(d dryAsset) any { return d.Tasks }, Text: func(d dryAsset) any { return number(view.Grouped(int64(d.Tasks))) }},
	{Name: "partitions", Value: func(d dryAsset) any { return cells(d.Partitions) }, Text: func(d dryAsset) any { return view.Some(d.Partitions) }},
	{Name: "replaces", Value: func(d dryAsset) any { return d.Replaces }, Text: func(d dryAsset) any { return number(view.Grouped(int64(d.Replaces))) }},
	{Name: "reads", Value: func(d dryAsset) any { return cells(readTexts(d)) }, Text: func(d dryAsset) any { return view.Some(readTexts(d)) }},
	{Name: "samples", Machine: true, Value: func(d dryAsset) any { return d.Samples }},
	{Name: "duration", Value: func(d dryAsset) any {
		if d.Samples == 0 {
			return nil
		}
		return d.Duration
	}, Text: func(d dryAsset) any {
		if d.Samples == 0 {
			return "unknown"
		}
		return number(view.Span(time.Duration(d.Duration * float64(time.Second))))
	}},
	{Name: "cost_nanousd", Machine: true, Value: func(d dryAsset) any { return numberOrNil(d.Cost) }},
}

// readTexts describes the inputs of an asset's tasks.
func readTexts(d dryAsset) []string {
	texts := make([]string, 0, len(d.Inputs))
	for _, in := range d.Inputs {
		switch {
		case in.Existing == 0:
			texts = append(texts, in.Asset)
		case in.ThisRun == 0:
			texts = append(texts, in.Asset+" (existing)")
		default:
			texts = append(texts, fmt.Sprintf("%s (%d existing)", in.Asset, in.Existing))
		}
	}
	return texts
}
