package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// known contains the parts of a published state that a pass has read.
type known struct {
	manifest *manifest.Manifest
	state    *state.State
	snap     *snapshot.Snapshot
	now      event.Time
	runs     map[string]bool // the live runs
	named    map[string]bool // materializations that live runs write or read, that are in quarantine, or that are published
	// visible holds the visible materializations of the partitions in the current page, by prefix.
	visible map[string]Success
	// hidden says which of the visible materializations a person has hidden.
	hidden map[string]Hidden
	// successes holds the successes of loaded partitions, by partition prefix.
	successes map[string][]Success
	failed    map[string]bool // materializations in loaded partitions whose tasks did not succeed
	// approved contains, by materialization, the URI of the output that a decision has published from quarantine. Among
	// these outputs are the visible ones of the partitions in the current page, and those of all versions of loaded
	// partitions.
	approved map[string]string
	loaded   map[string]bool
	// through is the time up to which the ledger is known to be folded. 0: unknown.
	through event.Time
	settled map[time.Duration]int64 // the values of Rows.Settled, by Keep.Superseded
	pinned  []*snapshot.Snapshot    // the revisions that people have pinned
}

// loadState reads the newest published state unless the pass has read it already. It returns the
// time to measure ages from.
func (p *pass) loadState(ctx context.Context) (event.Time, error) {
	m, err := p.Manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		return 0, nil // without a state, no object is known to be garbage
	}
	if err != nil {
		return 0, err
	}
	if p.known != nil && p.known.manifest.Ref() == m.Ref() {
		return p.known.now, nil
	}
	object, err := p.Store.Head(ctx, manifest.Key(p.Domain, m.Revision))
	if err != nil {
		return 0, err
	}
	s, err := snapshot.Load(ctx, p.Codec, p.Manifests, m)
	if err != nil {
		return 0, err
	}
	k := &known{
		manifest: m, state: s, snap: &snapshot.Snapshot{State: s, History: snapshot.HistoryOf(p.Codec, p.Manifests, m)},
		now: p.now(object.Updated), runs: map[string]bool{}, named: map[string]bool{}, visible: map[string]Success{},
		successes: map[string][]Success{}, failed: map[string]bool{}, loaded: map[string]bool{}, approved: map[string]string{}, settled: map[time.Duration]int64{},
	}
	if through := m.Watermarks.CompleteThrough; through != "" {
		k.through = min(k.now, event.At(ids.Time(through)))
	}
	if err := k.noteLive(ctx, p); err != nil {
		return 0, err
	}
	for row := range s.Candidates.All {
		if row.State == state.CandidatePending {
			k.named[row.MaterializationID] = true
		}
	}
	if err := k.loadPinned(ctx, p); err != nil {
		return 0, err
	}
	// A published place that changes after this call shows versions that are visible now or later. Such versions are
	// kept for at least an hour, so they need not be listed here.
	if p.Published != nil {
		published, err := p.Published()
		if err != nil {
			return 0, err
		}
		maps.Copy(k.named, published)
	}
	p.known = k
	return k.now, nil
}

func prefixOf(d ids.Domain, asset, partition string) string {
	return contract.AssetsPrefix(d) + asset + "/" + contract.PartitionSegment(partition) + "/"
}

// noteLive records the materializations that live runs write, and the materializations that their plans read. An
// unreadable plan ends the pass, because its inputs are unknown.
func (k *known) noteLive(ctx context.Context, p *pass) error {
	plans := map[string]bool{}
	for run := range k.state.Runs.All {
		if run.State.Terminal() {
			continue
		}
		k.runs[run.RunID] = true
		if run.PlanRef != "" {
			plans[run.PlanRef] = true
		}
	}
	for t := range k.state.Tasks.All {
		if k.runs[t.RunID] {
			k.named[ids.MaterializationID(p.Domain, t.RunID, t.TaskKey)] = true
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(plans)) { // sorted, so that simulated worlds are reproducible
		data, _, err := blob.Get(ctx, p.Store, ref, plan.MaxBytes)
		if err != nil {
			return fmt.Errorf("read the plan of a live run: %w", err)
		}
		built, err := plan.Open(ref, data)
		if err != nil {
			return fmt.Errorf("read the plan %s of a live run: %w", ref, err)
		}
		k.reads(built)
	}
	return nil
}

// loadPinned loads the pinned revisions, whose outputs are kept. A revision that no longer exists was collected
// before its pin took effect.
func (k *known) loadPinned(ctx context.Context, p *pass) error {
	for _, revision := range slices.Sorted(maps.Keys(k.state.PinnedAt(k.now))) {
		m, err := p.Manifests.LoadAt(ctx, revision)
		if errors.Is(err, manifest.ErrAbsent) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the pinned revision %d: %w", revision, err)
		}
		s, err := snapshot.Load(ctx, p.Codec, p.Manifests, m)
		if err != nil {
			return fmt.Errorf("read the pinned revision %d: %w", revision, err)
		}
		k.pinned = append(k.pinned, &snapshot.Snapshot{Revision: revision, State: s, History: snapshot.HistoryOf(p.Codec, p.Manifests, m)})
	}
	return nil
}

func (k *known) reads(built *plan.Plan) {
	note := func(items []plan.Input) {
		for _, item := range items {
			if item.MaterializationID != "" {
				k.named[item.MaterializationID] = true
			}
		}
	}
	for _, items := range built.Groups {
		note(items)
	}
	for i := range built.Tasks {
		for _, set := range built.Tasks[i].Inputs {
			note(set.Items)
		}
	}
}

// recorded returns the earliest time at which a success can have been recorded. This may be later than the completion
// time that the worker reported: the worker's clock may be behind, or the worker may have paused before it reported.
func recorded(completed event.Time, version string) event.Time {
	if !ids.Valid(version) {
		return completed
	}
	return max(completed, event.At(ids.Time(version)))
}

// loadVisible reads the visible materializations of the partitions in a page. If a row cannot be read, the pass ends:
// the output in that row would look superseded.
func (k *known) loadVisible(ctx context.Context, p *pass, cells []*cell) error {
	wanted, assets := map[string]bool{}, map[string]bool{}
	for _, c := range cells {
		wanted[c.prefix], assets[p.assetOf(c.prefix)] = true, true
	}
	k.visible, k.hidden = map[string]Success{}, map[string]Hidden{}
	for _, asset := range slices.Sorted(maps.Keys(assets)) {
		for row, err := range k.snap.WithHidden(ctx, asset) {
			if err != nil {
				return fmt.Errorf("read the partitions of %s: %w", asset, err)
			}
			if prefix := prefixOf(p.Domain, row.AssetKey, row.PartitionKey); wanted[prefix] {
				k.visible[prefix] = Success{
					row.RunID, row.TaskKey, row.MaterializationID, recorded(row.MaterializedAt, row.Version), row.Seq,
				}
				if m := k.snap.State.MarkOf(row); m != nil && m.Mark == event.MarkMissing {
					k.hidden[prefix] = Hidden{recorded(m.MarkedAt, m.Version), m.Seq}
				}
				if row.Quality == state.Approved {
					k.approved[row.MaterializationID] = row.OutputURI
				}
			}
		}
	}
	return nil
}

// load reads the successes of the partitions that may have garbage. It also reads the outputs that pinned revisions
// show for these partitions. A partition may have garbage if it stores more than its visible output, or if its visible
// output is hidden.
func (k *known) load(ctx context.Context, p *pass, cells []*cell) error {
	if err := k.loadVisible(ctx, p, cells); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, c := range cells {
		only := len(c.stored) == 1 && c.stored[0].ID == k.visible[c.prefix].MaterializationID && k.hidden[c.prefix].Seq == 0
		if len(c.stored) > 0 && !k.loaded[c.prefix] && !only {
			wanted[c.prefix], k.loaded[c.prefix] = true, true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := k.keepPinned(ctx, p, wanted); err != nil {
		return err
	}
	noteOne := func(t *state.Task, partition string) {
		prefix := prefixOf(p.Domain, t.AssetKey, partition)
		switch {
		case t.AssetKey == "" || !wanted[prefix]:
		case t.State == state.TaskSucceeded && t.MaterializationID != "":
			k.successes[prefix] = append(k.successes[prefix], Success{
				t.RunID, t.TaskKey, t.MaterializationID, recorded(t.CompletedAt, t.Version), t.Seq,
			})
		default:
			k.failed[ids.MaterializationID(p.Domain, t.RunID, t.TaskKey)] = true
		}
	}
	note := func(t *state.Task, partitions []string) {
		for _, partition := range partitions {
			noteOne(t, partition)
		}
		if partitions == nil {
			noteOne(t, t.PartitionKey)
		}
	}
	for t := range k.state.Tasks.All {
		note(t, k.state.BatchOf(t.RunID, t.TaskKey))
	}
	batches, err := k.batchesInHistory(ctx, p)
	if err != nil {
		return err
	}
	for rows, err := range snapshot.Segments(ctx, p.Codec, p.Manifests, k.manifest, "tasks") {
		if err != nil {
			return err
		}
		for _, t := range state.List[state.Task](rows) {
			note(t, batches[t.Key()])
		}
	}
	return k.loadApproved(ctx, p, wanted)
}

// keepPinned protects the outputs that pinned revisions show for the wanted partitions.
func (k *known) keepPinned(ctx context.Context, p *pass, wanted map[string]bool) error {
	assets := map[string]bool{}
	for prefix := range wanted {
		assets[p.assetOf(prefix)] = true
	}
	for _, snap := range k.pinned {
		for _, asset := range slices.Sorted(maps.Keys(assets)) {
			for row, err := range snap.Partitions(ctx, asset, "") {
				if err != nil {
					return fmt.Errorf("read the partitions of %s in the pinned revision %d: %w", asset, snap.Revision, err)
				}
				if wanted[prefixOf(p.Domain, row.AssetKey, row.PartitionKey)] {
					k.named[row.MaterializationID] = true
				}
			}
		}
	}
	return nil
}

// loadApproved reads the approvals of candidates of partitions. An approved output is a version of
// its partition although its task has failed.
func (k *known) loadApproved(ctx context.Context, p *pass, wanted map[string]bool) error {
	note := func(c *state.Candidate) {
		prefix := prefixOf(p.Domain, c.AssetKey, c.PartitionKey)
		if c.State == state.CandidateApproved && wanted[prefix] {
			k.approved[c.MaterializationID] = c.OutputURI
			k.successes[prefix] = append(k.successes[prefix], Success{c.RunID, c.TaskKey, c.MaterializationID, recorded(c.ResolvedAt, c.Version), c.Seq})
		}
	}
	for c := range k.state.Candidates.All {
		note(c)
	}
	for rows, err := range snapshot.Segments(ctx, p.Codec, p.Manifests, k.manifest, "quarantine") {
		if err != nil {
			return err
		}
		for _, c := range state.List[state.Candidate](rows) {
			note(c)
		}
	}
	return nil
}

// rows returns the known rows of a partition, for [Decide].
func (k *known) rows(c *cell, settled int64) Rows {
	return Rows{
		Visible: k.visible[c.prefix], Hidden: k.hidden[c.prefix], Successes: k.successes[c.prefix], Settled: settled, RunsFrom: k.manifest.BaseSnapshot.RunsFrom,
		Failed: func(m string) bool { return k.failed[m] }, Live: func(m string) bool { return k.named[m] },
	}
}

// settledSeq returns the FoldSeq of the newest kept revision that was published at or before the time k.through minus
// superseded. It returns 0 if there is no such revision in this timeline, for example after a rebuild, which starts a
// new one.
func (k *known) settledSeq(ctx context.Context, p *pass, superseded time.Duration) (int64, error) {
	if seq, ok := k.settled[superseded]; ok || k.through == 0 {
		return seq, nil
	}
	m, err := p.Manifests.LoadAsOf(ctx, k.through.Add(-superseded).Time())
	switch {
	case errors.Is(err, manifest.ErrAbsent):
		k.settled[superseded] = 0
	case err != nil:
		return 0, err
	case m.Timeline != k.manifest.Timeline:
		k.settled[superseded] = 0
	default:
		k.settled[superseded] = m.FoldSeq
	}
	return k.settled[superseded], nil
}

// delete deletes garbage and counts it. The next pass retries what could not be deleted.
func (p *pass) delete(ctx context.Context, asset string, g Garbage) error {
	if p.full() {
		return nil
	}
	gone := g.Objects
	// Delete the merged copies first. The files of an execution that lost have no copies.
	if asset != "" && g.Reason != Merged && (g.Reason != Lost || contract.IsMarker(g.Objects[0].Key)) {
		if err := p.unmergeOutput(ctx, asset, g.Version); err != nil {
			return p.noteFailure(ctx, err) // a copy must not outlive its output
		}
	}
	if !p.opts.DryRun {
		var err error
		if gone, err = p.remove(ctx, g.Objects); err != nil {
			if err := p.noteFailure(ctx, err); err != nil {
				return err
			}
		}
	}
	if len(gone) > 0 {
		p.count(asset, g, gone)
	}
	return nil
}

// count counts deleted objects of garbage.
func (p *pass) count(asset string, g Garbage, gone []Object) {
	key := Count{Asset: asset, Reason: g.Reason}
	if p.counts[key] == nil {
		p.counts[key] = &Count{Asset: asset, Reason: g.Reason}
	}
	count := p.counts[key]
	if g.Reason != Log && g.Reason != Merged {
		count.Versions++
	}
	if p.opts.DryRun {
		p.report.Items = append(p.report.Items, p.item(asset, g))
	}
	for _, o := range gone {
		count.Files++
		count.Bytes += o.Size
		p.report.Files++
		p.report.Bytes += o.Size
	}
}

// item describes garbage.
func (p *pass) item(asset string, g Garbage) Item {
	item := Item{Asset: asset, Reason: g.Reason, Version: g.Version, Files: len(g.Objects)}
	if cell, id, _ := p.split(g.Objects[0].Key); id != "" && path.Base(cell) != contract.PartitionSegment("") {
		item.Partition = path.Base(cell)
	}
	for _, o := range g.Objects {
		item.StoredAt = max(item.StoredAt, o.Updated)
		item.Bytes += o.Size
	}
	return item
}

// remove deletes the first object and the markers directly after it, one at a time and in this order. Then it deletes
// the other objects concurrently. It returns the objects that it deleted.
func (p *pass) remove(ctx context.Context, objects []Object) (gone []Object, err error) {
	done := make([]bool, len(objects))
	first := 0
	for first == 0 || first < len(objects) && contract.IsMarker(objects[first].Key) {
		if err := p.Store.Delete(ctx, objects[first].Key); err != nil {
			return objects[:first], fmt.Errorf("delete %s: %w", objects[first].Key, err)
		}
		done[first] = true
		first++
	}
	var group errgroup.Group
	group.SetLimit(deletes)
	for i, o := range objects[first:] {
		group.Go(func() error {
			if err := p.Store.Delete(ctx, o.Key); err != nil {
				return fmt.Errorf("delete %s: %w", o.Key, err)
			}
			done[first+i] = true
			return nil
		})
	}
	err = group.Wait()
	for i, o := range objects {
		if done[i] {
			gone = append(gone, o)
		}
	}
	return gone, err
}

func (p *pass) sorted() []Count {
	counts := []Count{}
	for _, c := range p.counts {
		counts = append(counts, *c)
	}
	slices.SortFunc(counts, func(a, b Count) int { return cmp.Or(cmp.Compare(a.Asset, b.Asset), cmp.Compare(a.Reason, b.Reason)) })
	return counts
}
