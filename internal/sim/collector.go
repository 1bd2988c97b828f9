package sim

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// keepSuperseded returns how long a world keeps superseded versions. A client plans a run on the state that it has
// read, and may append the run to the ledger much later. Until the append, the inputs of the run must be kept. The
// result is the sum of all possible delays: a client waits for three minutes, and may be frozen for four. Its
// requests may take four minutes each, and take effect two minutes late. It also allows for the difference between
// the clocks of two machines.
func (f Faults) keepSuperseded() time.Duration {
	d := clientTimeout + time.Minute + 2*time.Duration(f.MaxSkew)*time.Second
	if f.Freeze > 0 {
		d += 4 * time.Minute
	}
	if f.Slow > 0 {
		d += 8 * time.Minute
	}
	if f.Late > 0 {
		d += 2 * time.Minute
	}
	return d
}

// outputs is a [gc.Rule]: it returns the rules by which a world keeps the outputs of an asset.
func (c World) outputs(asset string) (gc.Keep, bool) {
	unseen := time.Duration(c.KeepUnseen) * time.Minute
	keep := gc.Keep{
		Versions: c.KeepVersions, For: time.Duration(c.KeepOutputs) * time.Minute, Superseded: c.Faults.keepSuperseded(), Unseen: unseen, Logs: unseen,
	}
	if c.KeepEach && asset != "" {
		switch hashOf("keep "+asset) % 3 {
		case 0:
			return gc.Keep{}, false
		case 1:
			keep.Versions, keep.For = manyVersions, 365*24*time.Hour
		}
	}
	return keep, true
}

// manyVersions is greater than the number of versions of any partition in a world.
const manyVersions = 10_000

// drawCollectors adds collectors of outputs to some worlds, and runs of assets without their
// upstreams. Such runs read the outputs of earlier runs.
func (c *World) drawCollectors() {
	r := random(c.Seed, "collectors", 0)
	if r.IntN(3) > 0 {
		return
	}
	c.Collectors = 1 + r.IntN(2)
	c.KeepVersions, c.KeepOutputs, c.KeepUnseen = 1+r.IntN(2), 1+r.IntN(30), 1+r.IntN(20)
	c.Alone = 100 + r.IntN(600)
	if r.IntN(3) > 0 { // few assets and many requests, so that the same assets run repeatedly
		c.Spread, c.Tasks = true, min(c.Tasks, 2+r.IntN(8))
		c.Minutes, c.Requests = max(c.Minutes, 30+r.IntN(40)), max(c.Requests, 20+r.IntN(20))
	}
	c.KeepEach = r.IntN(2) == 0
}

// maxCollectWait is the longest time between two passes.
const maxCollectWait = 3 * time.Minute

// runCollector runs bounded and full passes at random times.
func runCollector(ctx context.Context, p *process) {
	w := p.machine.w
	r := random(w.cfg.Seed, "collect "+p.id, 0)
	configs := make([]gc.Config, len(w.domains))
	for i, d := range w.domains {
		configs[i] = gc.Config{Handle: p.handle(d), Keep: w.cfg.outputs}
	}
	next := make([]string, len(configs))
	wait := int64(maxCollectWait)
	if short := r.IntN(2) == 0; short {
		wait /= 12
	}
	if w.cfg.Slowed > 0 || w.cfg.Merging > 0 && wait < int64(maxCollectWait) { // fewer passes, because each one reads the whole state
		wait *= 4
	}
	for i := 0; ; i++ {
		if (machineClock{p}).Sleep(ctx, time.Second+time.Duration(r.Int64N(wait))) != nil {
			return
		}
		if w.park(ctx, w.passBegins(p)) != nil {
			return
		}
		opts := gc.Options{After: next[i%len(next)], DryRun: r.IntN(10) == 0}
		if r.IntN(2) == 0 {
			opts.MaxDeletes = 1 + r.IntN(10)
		}
		report, err := gc.Run(ctx, configs[i%len(configs)], opts)
		if next[i%len(next)] = report.Next; err != nil {
			next[i%len(next)] = ""
		}
	}
}

// passBegins records when a pass starts. The pass need not consider revisions that are published later.
func (w *world) passBegins(p *process) *call {
	k := &call{proc: p, label: "collect"}
	k.begin = func() {
		p.began = w.now()
		close(k.done)
	}
	return k
}

// stored returns the materialization and the file name in the key of an output.
func (f *followed) stored(key string) (materialization, name string) {
	const deep = 3 // namespace, name, partition
	parts := strings.SplitN(strings.TrimPrefix(key, contract.AssetsPrefix(f.domain)), "/", deep+2)
	if len(parts) < deep+2 {
		return "", ""
	}
	return parts[deep], parts[deep+1]
}

// deletingOutput checks an output that is about to be deleted: no partition may show it, and no live run may make or
// read it. One exception: if a retry is published during the pass, the outputs that it reads may be deleted.
func (o *oracle) deletingOutput(p *process, key string) {
	if p.machine.kind == "gc" {
		o.w.fault("output collected")
		o.collectedAt[key] = o.w.now()
	}
	for _, f := range o.domains {
		if f.manifest == nil || !strings.HasPrefix(key, contract.AssetsPrefix(f.domain)) {
			continue
		}
		if prefix, _ := merged.AssetOf(f.domain, key); prefix != "" {
			o.deletingMerged(p, f, prefix, key)
			continue
		}
		id, name := f.stored(key)
		if p.machine.kind == "gc" {
			o.deletingKept(p, f, key, id)
			o.deletingCandidate(p, f, key, id)
			o.deletingPinned(p, f, key, id, name)
			o.deletingCopied(p, key)
		}
		for _, row := range f.shows(id) {
			if !o.deletable(f, row) && (!strings.Contains(name, "/") || strings.HasPrefix(key, row.OutputURI)) {
				o.violation("collection", "%s deletes %s, which %s[%s] shows", p.id, key, row.AssetKey, row.PartitionKey)
			}
		}
		for _, runID := range slices.Sorted(maps.Keys(f.index.liveRuns)) {
			run := f.state.Runs.Get(runID)
			if p.machine.kind == "gc" && f.index.makers[id] == runID { // a worker may delete its own output
				o.violation("collection", "%s deletes %s, which the live run %s makes", p.id, key, run.RunID)
			}
			late := run.ParentRunID != "" && f.seenAt[run.RunID].After(p.began)
			if uri := o.reads(run)[id]; strings.HasPrefix(uri, path.Dir(key)) && !late {
				o.violation("collection", "%s deletes %s, which the live run %s reads", p.id, key, run.RunID)
			}
		}
	}
}

// raced reports whether a task of a retry failed because an input was deleted after the retry had been
// planned. The planner refuses inputs that are gone already.
func (o *oracle) raced(run *state.Run, code, message string) bool {
	if code != worker.CodeMissingInput || run.ParentRunID == "" {
		return false
	}
	planned := ids.Time(run.RunID).Add(-clientTimeout)
	for _, word := range wordsOf(message) {
		if at, collected := o.collectedAt[word]; collected && at.After(planned) {
			return true
		}
	}
	return false
}

// deletingKept checks that the rule of the asset allows the deletion of the object.
func (o *oracle) deletingKept(p *process, f *followed, key, materialization string) {
	parts := strings.SplitN(strings.TrimPrefix(key, contract.AssetsPrefix(f.domain)), "/", 3) //nolint:mnd // namespace, name, rest
	keep, ok := o.w.cfg.outputs(parts[0] + "/" + parts[1])
	if !ok {
		o.violation("collection", "%s deletes %s, although its asset keeps everything", p.id, key)
	}
	uri := f.shown[materialization]
	if keep.Versions == manyVersions && uri != "" && (strings.HasPrefix(key, uri) || key == contract.CommitMarkerKeyOf(uri)) {
		o.violation("collection", "%s deletes %s, a version that its asset keeps", p.id, key)
	}
}

// noteShown records each materialization that a partition has shown in this timeline, with its output directory.
func (o *oracle) noteShown(f *followed, rebuilt bool) {
	if rebuilt {
		clear(f.shown)
	}
	for row := range changed(f, f.state.Partitions) {
		f.shown[row.MaterializationID] = directoryOf(row.OutputURI)
	}
}

// deletingLog checks that the log belongs to no live run.
func (o *oracle) deletingLog(p *process, key string) {
	for _, f := range o.domains {
		rest, ours := strings.CutPrefix(key, contract.LogsPrefix(f.domain))
		run, _, _ := strings.Cut(rest, "/")
		if row := f.state.Runs.Get(run); ours && row != nil && !row.State.Terminal() {
			o.violation("collection", "%s deletes %s, a log of the live run %s", p.id, key, run)
		}
	}
}

// reads returns the outputs of earlier runs that a run reads according to its plan: their URIs by materialization.
func (o *oracle) reads(run *state.Run) map[string]string {
	if uris, ok := o.plans[run.PlanRef]; ok || run.PlanRef == "" {
		return uris
	}
	uris := map[string]string{}
	data, _, err := o.w.blobs.Get(context.Background(), run.PlanRef)
	var built *plan.Plan
	if err == nil {
		built, err = plan.Decode(data)
	}
	if err != nil {
		o.violation("I-15 nothing is lost", "the plan of run %s: %v", run.RunID, err)
		return nil
	}
	note := func(items []plan.Input) {
		for _, item := range items {
			if item.MaterializationID != "" {
				uris[item.MaterializationID] = item.URI
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
	o.plans[run.PlanRef] = uris
	return uris
}

// checkPlanned records new runs, and checks that the outputs that their plans read exist. A retry is an exception: an
// output that it reads may be deleted before the retry is published.
func (o *oracle) checkPlanned(f *followed, rebuilt bool) {
	for run := range changed(f, f.state.Runs) {
		if _, known := f.seenAt[run.RunID]; known {
			continue
		}
		f.seenAt[run.RunID] = o.w.now()
		o.checkChainedRun(f, run)
		if o.w.cfg.Collectors == 0 || run.State.Terminal() || run.ParentRunID != "" || rebuilt {
			continue
		}
		for _, uri := range o.reads(run) {
			o.w.fault("output read by a later run")
			if o.markerOf(uri) == nil {
				o.violation("collection", "new run %s reads %s, which was collected", run.RunID, uri)
			}
		}
	}
}

// checkOutputCollection checks, on a copy, that the collector deletes all unreferenced outputs and logs in the end. A
// long time after the last run, only the visible outputs of partitions may be left.
func (o *oracle) checkOutputCollection(f *followed) {
	if f.manifest == nil {
		return
	}
	const long = 60 * 24 * time.Hour
	ctx := context.Background()
	blobs, now := o.w.blobs.Copy(), &aheadClock{Clock: o.w.clock}
	source := ids.NewSource(now.Now, &entropy{rng: random(o.w.cfg.Seed, "garbage", 0)})
	cfg := gc.Config{
		Handle: domain.Open(domain.Handle{Domain: f.domain, Store: headAhead{blobs, now}, Codec: o.w.codec, IDs: source, Clock: now}),
	}
	m := f.manifest
	for range 3 {
		now.by += long
		m = m.Successor("oracle")
		m.PublishedAt, m.Watermarks.CompleteThrough = event.At(now.Now()), ids.AtTime(now.Now())
		if err := cfg.Manifests.Publish(ctx, m); err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
		if _, err := gc.Run(ctx, cfg, gc.Options{}); err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
	}
	o.checkOnlyShown(f, blobs)
}

// headAhead is a store whose Head reports the time of a clock that is ahead. The collector takes the current time from
// Head, so the listed objects, which keep their own times, seem old to it.
type headAhead struct {
	blob.Store

	clock *aheadClock
}

func (a headAhead) Head(ctx context.Context, key string) (blob.Object, error) {
	o, err := a.Store.Head(ctx, key)
	o.Updated = a.clock.Now()
	return o, err
}

// checkOnlyShown checks that only the visible outputs of partitions are left, and that they are
// complete.
func (o *oracle) checkOnlyShown(f *followed, blobs blob.Store) {
	ctx := context.Background()
	shown, cells, pending := map[string]string{}, map[string]bool{}, pendingOutputs(f.state)
	for row := range f.state.Partitions.All {
		if row.OutputURI == "" || f.state.Hidden(row) {
			continue
		}
		shown[row.MaterializationID] = directoryOf(row.OutputURI) // the directory of a batch is collected as a whole
		asset, _ := ids.ParseAssetKey(row.AssetKey)
		cells[strings.TrimSuffix(contract.AssetPrefix(f.domain, asset, row.PartitionKey), "/")] = true
	}
	there := map[string]bool{}
	for object, err := range blobs.List(ctx, blob.ListOptions{Prefix: contract.AssetsPrefix(f.domain)}) {
		if err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
		if prefix, _ := merged.AssetOf(f.domain, object.Key); prefix != "" {
			if !o.leftMerged(blobs, prefix, object.Key) {
				o.violation("collection", "%s was not deleted, but its merged file is not in the index, is damaged, or contains a deleted output", object.Key)
				return
			}
			continue
		}
		id, name := f.stored(object.Key)
		uri, ok := shown[id]
		switch {
		case pending[id]:
		case ok && !strings.Contains(name, "/"):
			there[id] = true
		case ok && strings.HasPrefix(object.Key, uri):
		case ok && o.w.lost(blobs, uri):
			// The collector reads commit markers only if several executions have files. So if the winner's files were
			// deleted and only a loser's files are left, the collector keeps the loser's files as if they were the
			// winner's, until a later version supersedes the output.
		case !ok && id < f.manifest.BaseSnapshot.RunsFrom && !cells[path.Dir(path.Dir(path.Dir(object.Key)))]:
			// Accept the object: the row of its run was deleted, so it is unknown whether the object belongs to an
			// output.
		default:
			o.violation("collection", "%s is left, but no partition shows it", object.Key)
			return
		}
	}
	for id, uri := range shown {
		if !there[id] {
			o.violation("collection", "the commit marker of %s was collected, although a partition shows the output", uri)
		}
	}
	for object, err := range blobs.List(ctx, blob.ListOptions{Prefix: contract.LogsPrefix(f.domain)}) {
		if err != nil || object.Key != "" {
			o.violation("collection", "%s is left (%v)", object.Key, err)
			return
		}
	}
}
