package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
)

// confirmAbove is the number of partitions beyond which a backfill has to be confirmed.
const confirmAbove = 10_000

// createBackfillFlags are the flags of servo backfill create.
type createBackfillFlags struct {
	backfillFlags
	assets          assetFlags
	partitions      []string
	only, order     string
	request         engine.BackfillRequest
	followDeploys   bool
	dry, yes        bool
	allowIncomplete bool
	fullRefresh     bool
}

func (a *app) createBackfillCommand() *cobra.Command {
	var f createBackfillFlags
	cmd := &cobra.Command{
		Use:         "create [SELECTION…]",
		Annotations: writesRows,
		Short:       "Materialize many partitions in chunks: plan them, ask for confirmation, and start the first chunks",
		Long: "Materialize many partitions in chunks. A chunk is one run. Partitions that depend on each other are in one\n" +
			"chunk, or in chunks that run one after the other. The process that owns the state folder executes the chunks\n" +
			"(`servo dev`). Without such a process, this command executes them until the backfill has ended.",
		Example: "  servo backfill create clean/daily --downstream -p date=2020-01-01..2024-12-31\n" +
			"  servo backfill create --all -p all --only missing --dry-run\n" +
			"  servo backfill create report/yearly -p all --ordered",
		Args: takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := errors.Join(exclusive(cmd, "dry-run", "detach"), exclusive(cmd, "dry-run", "yes"), exclusive(cmd, "ordered", "order"))
			if err != nil {
				return err
			}
			if f.fullRefresh {
				return usagef("--full-refresh is for incremental assets, which servo does not support yet: remove the flag; a backfill computes each partition from all of its inputs anyway")
			}
			return a.createBackfill(cmd.Context(), &f, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.assets.all, "all", false, "every asset of the project")
	f.assets.add(cmd, "materialize")
	flags.StringArrayVarP(&f.partitions, "partition", "p", nil, "partitions: date=2020-01-01..2024-12-31, 2024 or all (repeatable)")
	flags.StringVar(&f.only, "only", "", "only the partitions of the selection that are missing, failed or stale")
	flags.IntVar(&f.request.Chunk, "chunk", 0, "partitions of a chunk (default: 100; more if there would be over 10,000 chunks)")
	flags.Int32Var(&f.request.MaxParallel, "max-parallel", 0, fmt.Sprintf("how many chunks run at once (default %d)", engine.BackfillParallel))
	flags.StringVar(&f.order, "order", event.OldestFirst, "which partitions come first: oldest or newest")
	flags.BoolVar(&f.request.Ordered, "ordered", false, "one chunk after the other, the oldest first; pause if one does not succeed")
	flags.StringVar(&f.request.StopAfter, "stop-after", engine.BackfillStop, "pause when this many partitions have failed: a number, a share such as 10%, or never")
	flags.Int32Var(&f.request.Priority, "priority", engine.BackfillPriority, "priority of the tasks: tasks with a greater priority start first (default of other tasks: the priority of their asset, or 0)")
	flags.StringVar(&f.request.Pool, "pool", "", "pool of the tasks, instead of the pools of their assets")
	flags.BoolVar(&f.followDeploys, "follow-deploys", false, "plan each chunk with the code that is deployed when the chunk starts, not with the current code")
	flags.BoolVar(&f.allowIncomplete, "allow-incomplete", false, "accept missing partitions of upstream assets where an asset requires all (requires: complete)")
	flags.BoolVar(&f.fullRefresh, "full-refresh", false, "not supported yet: this flag will come with incremental assets")
	_ = flags.MarkHidden("full-refresh") // cannot fail: the flag exists
	flags.BoolVar(&f.dry, "dry-run", false, "show the partitions and chunks, with an estimate; create nothing")
	flags.BoolVar(&f.yes, "yes", false, fmt.Sprintf("create a backfill of more than %s partitions without asking", view.Grouped(confirmAbove)))
	f.add(cmd)
	return cmd
}

// read checks the flags and completes the request. It does not need the project.
func (f *createBackfillFlags) read(args []string) error {
	r := &f.request
	switch {
	case f.assets.all && len(args) > 0:
		return usagef("--all already includes every asset: remove %s, or --all", strings.Join(args, " "))
	case !f.assets.all && len(args) == 0:
		return usagef("no assets selected: name assets, or select all of them with --all; list them with `servo assets`")
	case !slices.Contains([]string{"", event.OnlyMissing, event.OnlyFailed, event.OnlyStale}, f.only):
		return usagef("--only %q: choose from missing, failed, stale", f.only)
	case f.order != event.OldestFirst && f.order != event.NewestFirst:
		return usagef("--order %q: choose from oldest, newest", f.order)
	case r.Chunk < 0 || r.Chunk > event.MaxChunkCells:
		return usagef("--chunk is %d; must be 1 to %d", r.Chunk, event.MaxChunkCells)
	case r.MaxParallel < 0 || r.MaxParallel > event.MaxParallelRuns:
		return usagef("--max-parallel is %d; must be 1 to %d", r.MaxParallel, event.MaxParallelRuns)
	}
	r.Need, r.Newest, r.Plan.AllowIncomplete = engine.Need(f.only), f.order == event.NewestFirst, f.allowIncomplete
	for _, text := range f.partitions {
		s, err := plan.ParseSelection(text)
		if err != nil {
			return &usageError{err}
		}
		r.Plan.Partitions = append(r.Plan.Partitions, s)
	}
	return nil
}

func (a *app) createBackfill(ctx context.Context, f *createBackfillFlags, args []string) error {
	if err := f.read(args); err != nil {
		return err
	}
	choice, err := f.assets.parse(args)
	if err != nil {
		return err
	}
	dir, err := a.projectDir()
	if err != nil {
		return err
	}
	choose := func(assets []plan.Asset) ([]ids.AssetKey, error) {
		chosen, err := choice.resolve(assets)
		f.request.Plan.Select, f.request.Plan.Matched = chosen.Named, chosen.Matched
		return chosen.Named, err
	}
	var p *project.Project
	sha := ""
	if settings, err := project.LoadSettings(dir, a.projectOptions()); err == nil && explicit(settings) {
		d, err := a.deployedRelease(ctx, settings)
		if err != nil {
			return err
		}
		if _, err := choose(d.project.Assets); err != nil {
			return err
		}
		p, sha = d.project, d.sha
	} else if p, err = a.usableProject(ctx, choose); err != nil {
		return err
	}
	f.request.Plan.Assets = p.Assets
	if err := engine.CheckPool(f.request.Pool, p.Pools); err != nil {
		return &usageError{fmt.Errorf("--pool: %w", err)}
	}
	if f.dry {
		return a.orNothing(a.withSnapshot(ctx, p, func(snap *snapshot.Snapshot) error { return a.dryBackfill(ctx, p, snap, f) }))
	}
	return a.orNothing(a.do(ctx, p, func(ctx context.Context, s *session) error { return a.createIn(ctx, s, p, sha, f) }))
}

// createIn creates a backfill. Unless the environment deploys explicitly, it deploys the project first.
func (a *app) createIn(ctx context.Context, s *session, p *project.Project, sha string, f *createBackfillFlags) error {
	planned := func(snap *snapshot.Snapshot) (*engine.PlannedBackfill, error) {
		made, err := engine.PlanBackfill(ctx, snap, f.request, a.Clock.Now())
		return made, asUsage(err)
	}
	if sha == "" {
		current, deployed, err := a.deployLocal(ctx, s, p, func(snap *snapshot.Snapshot) error {
			_, err := planned(snap)
			return err
		})
		if err != nil {
			return err
		}
		sha, f.request.Plan.Assets = deployed, current.Assets
	}
	if !f.followDeploys {
		f.request.Release = sha
	}
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	made, err := planned(snap)
	if err != nil {
		return err
	}
	a.warnings(made.Warnings)
	total := made.Chunks.Total()
	text := fmt.Sprintf("%s of %s in %s", plural(total, "partition"), plural(len(made.Assets), "asset"), plural(len(made.Chunks.Lists), "chunk"))
	if err := a.noteEstimate(snap, p, made); err != nil {
		return err
	}
	if total > confirmAbove && !f.yes {
		if err := a.confirmBackfill(text); err != nil {
			return err
		}
	}
	if err := a.limits(ctx, s, p); err != nil {
		return err
	}
	id, err := s.CreateBackfill(ctx, made)
	if err != nil {
		return err
	}
	a.note("backfill %s: %s", a.style.bold(id), text)
	if err := a.printBackfill(ctx, s, id); err != nil {
		return err
	}
	return a.followBackfill(ctx, s, id, &f.backfillFlags)
}

// noteEstimate prints how long a backfill will take, how much it will write, and what it will cost.
func (a *app) noteEstimate(snap *snapshot.Snapshot, p *project.Project, made *engine.PlannedBackfill) error {
	limits, err := a.slots(snap.State, p, 0)
	if err != nil {
		return err
	}
	expected, err := engine.EstimateBackfill(snap.State, made, limits)
	if err != nil {
		return err
	}
	of := estimateOf(&expected, p.Pricing)
	for _, text := range of.texts(&expected) {
		a.note("%s", text)
	}
	return nil
}

// printBackfill writes a new backfill as a row.
func (a *app) printBackfill(ctx context.Context, s *session, id string) error {
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	b, err := engine.FindBackfill(ctx, snap, id, a.Clock.Now())
	if err != nil {
		return err
	}
	return list(a, backfillColumns(), []engine.Backfill{b})
}

// asUsage converts an error about the request into a usage error, and returns all other errors unchanged.
func asUsage(err error) error {
	if invalid := new(engine.InvalidError); errors.As(err, &invalid) {
		return &usageError{err}
	}
	return err
}

func (a *app) confirmBackfill(text string) error {
	if _, terminal := a.width(a.Stdin); !terminal {
		return fmt.Errorf("create a backfill of %s: a backfill of more than %s partitions must be confirmed: check the plan with --dry-run, then confirm with --yes", text, view.Grouped(confirmAbove))
	}
	fmt.Fprintf(a.Stderr, "Create a backfill of %s? [yes/no] ", text)
	answer, err := bufio.NewReader(a.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("create a backfill: not confirmed, so nothing has changed: answer yes, or use --yes")
	}
	return nil
}

// dryBackfillResult describes the backfill that a command would create without --dry-run.
type dryBackfillResult struct {
	Partitions int                `json:"partitions"`
	Chunks     int                `json:"chunks"`
	Stages     int                `json:"stages"`
	Ordered    bool               `json:"ordered"`
	StopAt     int64              `json:"stop_at"`
	Assets     []dryBackfillAsset `json:"assets"`
	Warnings   []string           `json:"warnings"`
	Estimate   dryRunEstimate     `json:"estimate"`
}

// dryBackfillAsset describes the partitions of one asset.
type dryBackfillAsset struct {
	Asset      string   `json:"asset"`
	Tasks      int      `json:"tasks"`
	Partitions []string `json:"partitions"`
	Samples    int      `json:"samples"`
	Duration   float64  `json:"duration"`
	Bytes      int64    `json:"bytes"`
	// Cost is the estimated cost of all tasks, in nano-dollars. Absent: the cost is unknown, or there are no prices.
	Cost *int64 `json:"cost_nanousd,omitempty"`
}

// dryBackfill prints what a backfill would do, without changing anything.
func (a *app) dryBackfill(ctx context.Context, p *project.Project, snap *snapshot.Snapshot, f *createBackfillFlags) error {
	made, err := engine.PlanBackfill(ctx, snap, f.request, a.Clock.Now())
	if err != nil {
		return asUsage(err)
	}
	limits, err := a.slots(snap.State, p, 0)
	if err != nil {
		return err
	}
	expected, err := engine.EstimateBackfill(snap.State, made, limits)
	if err != nil {
		return err
	}
	d := describeBackfill(made, p, &expected)
	d.Ordered = made.Ordered
	a.warnings(d.Warnings)
	if a.format == render.JSON || a.format == render.YAML {
		return render.Document(a.Stdout, a.format, d)
	}
	if err := list(a, dryBackfillColumns(), d.Assets); err != nil {
		return err
	}
	stages := ""
	switch {
	case made.Chunks.Ordered != ids.AssetKey{}:
		stages = fmt.Sprintf(" that run one after the other, because asset %s reads itself", made.Chunks.Ordered)
	case d.Ordered:
		stages = " that run one after the other"
	case d.Stages > 1:
		stages = fmt.Sprintf(", in %d stages that run one after the other", d.Stages)
	}
	a.note("dry run: %s in %s%s; nothing was created", plural(d.Partitions, "partition"), plural(d.Chunks, "chunk"), stages)
	for _, text := range d.Estimate.texts(&expected) {
		a.note("%s", text)
	}
	return nil
}

func describeBackfill(made *engine.PlannedBackfill, p *project.Project, e *estimate.Estimate) dryBackfillResult {
	d := dryBackfillResult{
		Partitions: made.Chunks.Total(), Chunks: len(made.Chunks.Lists), Stages: len(made.Chunks.Stages) + 1, StopAt: made.StopAt,
		Warnings: append([]string{}, made.Warnings...), Estimate: estimateOf(e, p.Pricing),
	}
	keys := map[ids.AssetKey][]string{}
	for _, chunk := range made.Chunks.Lists {
		for _, cell := range chunk {
			keys[cell.Asset] = append(keys[cell.Asset], cell.Partition)
		}
	}
	spaces := map[ids.AssetKey]*space.Space{}
	for i := range p.Assets {
		spaces[p.Assets[i].Key] = p.Assets[i].Partitions
	}
	for _, key := range made.Assets {
		one := dryBackfillAsset{Asset: key.String(), Tasks: made.Tasks[key], Partitions: append([]string{}, spaces[key].Selections(keys[key])...)}
		if at, ok := slices.BinarySearchFunc(e.Assets, one.Asset, func(a estimate.Asset, key string) int { return strings.Compare(a.Asset, key) }); ok {
			past := e.Assets[at]
			one.Tasks = past.Tasks
			one.Samples, one.Duration, one.Bytes, one.Cost = past.Samples, past.Median.Duration.Seconds(), past.Median.Bytes, costOf(&past)
		}
		d.Assets = append(d.Assets, one)
	}
	return d
}

func dryBackfillColumns() []column[dryBackfillAsset] {
	return []column[dryBackfillAsset]{
		{Name: "asset", Value: func(d dryBackfillAsset) any { return d.Asset }},
		{Name: "tasks", Value: func(d dryBackfillAsset) any { return d.Tasks }, Text: func(d dryBackfillAsset) any { return number(view.Grouped(int64(d.Tasks))) }},
		{Name: "partitions", Value: func(d dryBackfillAsset) any { return cells(d.Partitions) }, Text: func(d dryBackfillAsset) any { return view.Some(d.Partitions) }},
		{Name: "samples", Machine: true, Value: func(d dryBackfillAsset) any { return d.Samples }},
		{Name: "duration", Value: func(d dryBackfillAsset) any {
			if d.Samples == 0 {
				return nil
			}
			return d.Duration
		}, Text: func(d dryBackfillAsset) any {
			if d.Samples == 0 {
				return "unknown"
			}
			return number(view.Span(time.Duration(d.Duration * float64(time.Second))))
		}},
		{Name: "cost_nanousd", Machine: true, Value: func(d dryBackfillAsset) any { return numberOrNil(d.Cost) }},
	}
}
