package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Defaults of backfills.
const (
	// BackfillPriority is the priority of the tasks of a backfill. It is low, so that other tasks are admitted first.
	BackfillPriority = -100
	// BackfillParallel is the default number of chunks that run at once.
	BackfillParallel = 3
	// BackfillStop is the default share of failed partitions at which a backfill pauses.
	BackfillStop = "10%"
)

// BackfillRequest describes a backfill to be created.
type BackfillRequest struct {
	// Plan selects assets and partitions.
	Plan plan.Request
	// Need restricts the selected partitions to those with a status; "": no restriction.
	Need Need
	// Chunk is the number of partitions of a chunk; 0: a default.
	Chunk int
	// MaxParallel is how many chunks run at once; 0: BackfillParallel.
	MaxParallel int32
	// With Newest, the backfill begins with the newest partitions. With Ordered, it runs one chunk at a time, and pauses
	// after a failure.
	Newest, Ordered bool
	// StopAfter is the number or the share of failed partitions at which the backfill pauses, such as "100" or "10%".
	// "never": it never pauses. "": BackfillStop.
	StopAfter string
	// Priority is the priority of the tasks. Pool is the pool of the tasks; "": the pools of their assets.
	Priority int32
	Pool     string
	// Release is the release on which all chunks are planned. "": each chunk is planned on the release that is current
	// when the chunk is planned.
	Release string
}

// PlannedBackfill is a backfill that is not created yet.
type PlannedBackfill struct {
	Chunks *backfill.Chunks
	// Assets are the assets in the order of their keys. Tasks maps each asset to the number of its partitions.
	Assets   []ids.AssetKey
	Tasks    map[ids.AssetKey]int
	Selected []string
	StopAt   int64
	Warnings []string
	// Ordered means that the chunks run one after the other, and that a failure pauses the backfill.
	Ordered bool

	event *event.BackfillCreated
	graph *plan.Graph
}

// PlanBackfill chooses the partitions of a backfill, and divides them into chunks. It changes nothing.
func PlanBackfill(ctx context.Context, snap *snapshot.Snapshot, r BackfillRequest, now time.Time) (*PlannedBackfill, error) {
	choice, warnings, err := chooseCells(ctx, snap, &r, now)
	if err != nil {
		return nil, err
	}
	g, err := r.Plan.AssetGraph()
	if err != nil {
		return nil, err
	}
	chunks, err := backfill.Split(g, view.Calendar(snap.State, now), choice.Partitions, backfill.Options{Size: r.Chunk, Newest: r.Newest, Form: r.Plan.Form})
	if err != nil {
		return nil, &InvalidError{err}
	}
	p := &PlannedBackfill{Chunks: chunks, Tasks: map[ids.AssetKey]int{}, Selected: choice.Selected, Warnings: append(warnings, choice.Warnings...)}
	for key, keys := range choice.Partitions {
		if len(keys) > 0 {
			p.Assets, p.Tasks[key] = append(p.Assets, key), len(keys)
		}
	}
	slices.SortFunc(p.Assets, plan.CompareKeys)
	p.graph = g
	if err := p.checkInputs(ctx, snap, r, choice.Partitions, now); err != nil {
		return nil, err
	}
	if p.StopAt, err = stopAt(cmp.Or(r.StopAfter, BackfillStop), chunks.Total()); err != nil {
		return nil, err
	}
	itself, form := chunks.Ordered != ids.AssetKey{}, r.Plan.Form
	switch p.Ordered = r.Ordered || itself; {
	case r.Ordered && (r.Newest || r.MaxParallel > 1):
		return nil, &InvalidError{fmt.Errorf("an ordered backfill runs one chunk at a time, the oldest first: remove %s and %s, or %s",
			form.Name(plan.OptionMaxParallel), form.Name(plan.OptionNewest), form.Name(plan.OptionOrdered))}
	case itself && r.MaxParallel > 1:
		return nil, &InvalidError{fmt.Errorf("asset %s reads its own earlier partitions, so one chunk runs at a time: remove %s", chunks.Ordered, form.Name(plan.OptionMaxParallel))}
	}
	parallel := cmp.Or(r.MaxParallel, BackfillParallel)
	order := event.OldestFirst
	switch {
	case p.Ordered:
		parallel = 1
	case r.Newest:
		order = event.NewestFirst
	}
	p.event = &event.BackfillCreated{
		Assets: atMost(keyTexts(p.Assets)), Partitions: shortened(choice.Selected[:min(len(choice.Selected), event.MaxSelections)], event.MaxSelectionText), Only: string(r.Need), Sizes: chunks.Sizes(), Ordered: p.Ordered,
		Order: order, MaxParallel: parallel, StopAt: p.StopAt, Priority: r.Priority, Pool: r.Pool, Release: r.Release,
		AllowIncomplete: r.Plan.AllowIncomplete,
	}
	if !p.Ordered {
		p.event.Stages = chunks.Stages
	}
	return p, nil
}

// maxChecked is the maximum number of partitions of a backfill whose inputs are checked before the backfill is
// created.
const maxChecked = 200_000

// checkInputs warns of partitions that cannot run, because an input does not exist and the backfill does not
// materialize it. It returns an error if no partition can run.
func (p *PlannedBackfill) checkInputs(
	ctx context.Context, snap *snapshot.Snapshot, r BackfillRequest, selected map[ids.AssetKey][]string, now time.Time,
) error {
	if p.Chunks.Total() > maxChecked {
		return nil
	}
	e, err := evaluated(ctx, snap, &r.Plan, now)
	if err != nil {
		return err
	}
	e.AllowIncomplete(r.Plan.AllowIncomplete)
	runnable, err := e.Runnable(selected, nil)
	if err != nil {
		return err
	}
	blocked, first := 0, ids.AssetKey{}
	for _, key := range p.Assets {
		lacking := p.Tasks[key] - len(runnable[key])
		if blocked += lacking; lacking > 0 && first == (ids.AssetKey{}) {
			first = key
		}
	}
	advice := fmt.Sprintf("also select their upstream assets, with +%s", first)
	switch total := p.Chunks.Total(); {
	case blocked == total:
		return &InvalidError{fmt.Errorf("no selected partition can run, because inputs are missing, for example of asset %s: %s", first, advice)}
	case blocked > 0:
		p.Warnings = append(p.Warnings, fmt.Sprintf("%d of %d partitions cannot run and will be skipped, because inputs are missing, for example of asset %s: %s",
			blocked, total, first, advice))
	}
	return nil
}

func keyTexts(keys []ids.AssetKey) []string {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = key.String()
	}
	return texts
}

// shortened cuts each selection to a number of bytes, so that the selections fit into an event. Events contain
// selections only for display: the exact partitions are in the plan of the run, or in the chunks document of the
// backfill.
func shortened(selections []string, limit int) []string {
	short := slices.Clone(selections)
	for i, text := range short {
		if len(text) > limit {
			text = text[:limit-len("…")] // the cut may be inside a character
			short[i] = strings.ToValidUTF8(text, "") + "…"
		}
	}
	return short
}

// stopAt converts a threshold, such as 10%, into a number of failed partitions.
func stopAt(text string, total int) (int64, error) {
	if text == "never" {
		return 0, nil
	}
	n, share := 0, 0.0
	var rest string
	if number, ok := strings.CutSuffix(text, "%"); ok {
		if count, _ := fmt.Sscanf(number+" ", "%g%s", &share, &rest); count != 1 || share <= 0 || share > 100 {
			return 0, &InvalidError{fmt.Errorf("stop after %q: a share is more than 0%% and at most 100%%", text)}
		}
		return max(1, int64(math.Ceil(share/100*float64(total)))), nil
	}
	if count, _ := fmt.Sscanf(text+" ", "%d%s", &n, &rest); count != 1 || n < 1 {
		return 0, &InvalidError{fmt.Errorf("stop after %q: write a number of partitions such as 100, a share such as 10%%, or never", text)}
	}
	return int64(n), nil
}

// chooseCells chooses the partitions that a backfill materializes.
func chooseCells(ctx context.Context, snap *snapshot.Snapshot, r *BackfillRequest, now time.Time) (*plan.Choice, []string, error) {
	r.Plan.Calendar = view.Calendar(snap.State, now)
	if r.Need == "" {
		choice, err := plan.Choose(r.Plan, backfill.MaxCells)
		if err != nil {
			return nil, nil, &InvalidError{err}
		}
		return choice, nil, nil
	}
	selections := r.Plan.Partitions
	run := RunRequest{Plan: r.Plan, Need: r.Need}
	run.Plan.Partitions = nil
	warnings, err := Choose(ctx, snap, &run, now)
	if err != nil {
		return nil, nil, err
	}
	choice := &plan.Choice{Partitions: run.Plan.Only}
	for _, s := range selections {
		choice.Selected = append(choice.Selected, s.String())
	}
	if len(selections) > 0 {
		if err := restrict(&r.Plan, choice.Partitions, selections); err != nil {
			return nil, nil, &InvalidError{err}
		}
	}
	for _, keys := range choice.Partitions {
		if len(keys) > 0 {
			return choice, warnings, nil
		}
	}
	return nil, nil, fmt.Errorf("%w: no selected partition is %s", ErrNothing, r.Need)
}

// restrict removes the partitions that match none of the selections. A selection applies only to assets that have all
// dimensions which it mentions.
func restrict(r *plan.Request, partitions map[ids.AssetKey][]string, selections []plan.Selection) error {
	used := make([]bool, len(selections))
	for i := range r.Assets {
		a := &r.Assets[i]
		if a.Partitions == nil || len(partitions[a.Key]) == 0 {
			continue
		}
		var filters []func(string) bool
		for n, s := range selections {
			if slices.ContainsFunc(s.Clauses, func(k space.Clause) bool { return !a.Partitions.Has(k) }) {
				continue
			}
			keep, err := r.Calendar.Filter(a.Partitions, s)
			if err != nil {
				return fmt.Errorf("asset %s: %w", a.Key, err)
			}
			filters, used[n] = append(filters, keep), true
		}
		if len(filters) == 0 {
			continue
		}
		partitions[a.Key] = slices.DeleteFunc(slices.Clone(partitions[a.Key]), func(key string) bool {
			return !slices.ContainsFunc(filters, func(keep func(string) bool) bool { return keep(key) })
		})
	}
	if n := slices.Index(used, false); n >= 0 && len(partitions) > 0 {
		return fmt.Errorf("no selected asset has the dimensions of %s: select other partitions", r.Form.Select(selections[n].String()))
	}
	return nil
}

// CreatedBefore returns the id of the backfill that an earlier call with the same command key created, or "".
func (e *Engine) CreatedBefore(ctx context.Context) (string, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return "", err
	}
	return e.repeated(snap)
}

// CreateBackfill creates a planned backfill, and returns its id.
func (e *Engine) CreateBackfill(ctx context.Context, p *PlannedBackfill) (string, error) {
	data, sha, err := p.Chunks.Encode()
	if err != nil {
		return "", err
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return "", fmt.Errorf("store the chunks of a backfill: %w", err)
	}
	created := *p.event
	created.ChunksRef = backfill.Ref(e.cfg.Domain, sha)
	if err := e.createObject(ctx, created.ChunksRef, encoder.EncodeAll(data, nil)); err != nil {
		return "", fmt.Errorf("store the chunks of a backfill: %w", err)
	}
	created.BackfillID = e.cfg.IDs.New()
	created.CommandKey, created.Fingerprint = e.conditions.Key, e.conditions.Fingerprint
	snap, group, err := e.append(ctx, "", &created)
	if err != nil {
		return "", fmt.Errorf("create a backfill: %w", err)
	}
	if snap.State.Backfills.Get(created.BackfillID) == nil {
		if id, err := e.repeated(snap); err != nil || id != "" {
			return id, err // a concurrent call with the same key came first
		}
		row := groupRow(snap, group)
		if row != nil && row.Outcome == state.Conflict {
			return "", fmt.Errorf("create a backfill: %w: %s", ErrConflict, row.Detail)
		}
		return "", fmt.Errorf("create a backfill: %s", entryOutcome(snap, group))
	}
	return created.BackfillID, nil
}

// ReadChunks reads the document that lists the chunks of a backfill. It returns a [*DamagedError] if the document is
// missing or damaged.
func ReadChunks(ctx context.Context, store blob.Store, ref string) (*backfill.Document, error) {
	const what = "the chunks of a backfill"
	name := ref[strings.LastIndexByte(ref, '/')+1:]
	packed, _, err := blob.Get(ctx, store, ref, backfill.MaxBytes)
	if err != nil {
		return nil, unreadable(what, err)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(backfill.MaxBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer decoder.Close()
	data, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, &DamagedError{fmt.Errorf("read %s: %s is damaged: %w", what, ref, err)}
	}
	sha, _, _ := strings.Cut(name, ".")
	doc, err := backfill.Decode(data, sha)
	if err != nil {
		return nil, &DamagedError{fmt.Errorf("read %s: %s: %w", what, ref, err)}
	}
	return doc, nil
}
