package sim

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// underway is for how long a world keeps versions that were superseded. It is longer than a plan takes from its state to
// the ledger: a client waits for three minutes, may be frozen for four, its requests may take four each and come two
// late, and the clocks of two machines differ.
func (f Faults) underway() time.Duration {
	d := asking + time.Minute + 2*time.Duration(f.MaxSkew)*time.Second
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

// outputs returns which outputs of an asset a world keeps. It is a [gc.Rule].
func (c World) outputs(asset string) (gc.Keep, bool) {
	unseen := time.Duration(c.KeepUnseen) * time.Minute
	keep := gc.Keep{
		Versions: c.KeepVersions, For: time.Duration(c.KeepOutputs) * time.Minute, Superseded: c.Faults.underway(), Unseen: unseen, Logs: unseen,
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

// manyVersions is more versions than a partition has in a world.
const manyVersions = 10_000

// drawCollectors has outputs collected in some worlds, and assets run without what they depend on: such runs read the
// outputs of earlier ones.
func (c *World) drawCollectors() {
	r := random(c.Seed, "collectors", 0)
	if r.IntN(3) > 0 {
		return
	}
	c.Collectors = 1 + r.IntN(2)
	c.KeepVersions, c.KeepOutputs, c.KeepUnseen = 1+r.IntN(2), 1+r.IntN(30), 1+r.IntN(20)
	c.Alone = 100 + r.IntN(600)
	if r.IntN(3) > 0 { // the same is run again and again
		c.Spread, c.Tasks = true, min(c.Tasks, 2+r.IntN(8))
		c.Minutes, c.Requests = max(c.Minutes, 30+r.IntN(40)), max(c.Requests, 20+r.IntN(20))
	}
	c.KeepEach = r.IntN(2) == 0
}

// maxCollectWait is the longest time between two passes.
const maxCollectWait = 3 * time.Minute

// runCollector makes passes at any moment, small ones and whole ones.
func runCollector(ctx context.Context, p *process) {
	w := p.machine.w
	r := random(w.cfg.Seed, "collect "+p.id, 0)
	configs := make([]gc.Config, len(w.domains))
	for i, d := range w.domains {
		manifests := manifest.New(manifest.Config{Domain: d, Store: store{p}, IDs: ids.NewSource(p.now, p.entropy), Clock: machineClock{p}})
		configs[i] = gc.Config{
			Domain: d, Store: store{p}, Manifests: manifests, Codec: w.codec, Clock: machineClock{p},
			Keep: w.cfg.outputs,
		}
	}
	next := make([]string, len(configs))
	wait := int64(maxCollectWait)
	if r.IntN(2) == 0 { // hardly any time
		wait /= 12
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

// passBegins notes when a pass began: what is published later it need not know.
func (w *world) passBegins(p *process) *call {
	k := &call{proc: p, label: "collect"}
	k.begin = func() {
		p.began = w.now()
		close(k.done)
	}
	return k
}

// stored takes the key of an output apart.
func (f *followed) stored(key string) (materialization, name string) {
	const deep = 3 // namespace, name, partition
	parts := strings.SplitN(strings.TrimPrefix(key, contract.AssetsPrefix(f.domain)), "/", deep+2)
	if len(parts) < deep+2 {
		return "", ""
	}
	return parts[deep], parts[deep+1]
}

// deletingOutput checks that a partition does not show what is about to be deleted, and that no live run makes or reads
// it. A retry names what it likes: one that is published while a pass is under way may miss what it reads.
func (o *oracle) deletingOutput(p *process, key string) {
	if p.machine.kind == "gc" {
		o.w.fault("output collected")
	}
	for _, f := range o.domains {
		if f.manifest == nil || !strings.HasPrefix(key, contract.AssetsPrefix(f.domain)) {
			continue
		}
		id, name := f.stored(key)
		if p.machine.kind == "gc" {
			o.deletingKept(p, f, key, id)
		}
		for row := range f.state.Partitions.All {
			if row.MaterializationID == id && (!strings.Contains(name, "/") || strings.HasPrefix(key, row.OutputURI)) {
				o.violation("collection", "%s deletes %s, which %s[%s] shows", p.id, key, row.AssetKey, row.PartitionKey)
			}
		}
		for run := range f.state.Runs.All {
			if run.State.Terminal() {
				continue
			}
			if p.machine.kind == "gc" && o.makes(f, run, id) { // a worker deletes what it made when another was faster
				o.violation("collection", "%s deletes %s, which the live run %s makes", p.id, key, run.RunID)
			}
			late := run.ParentRunID != "" && f.seenAt[run.RunID].After(p.began)
			if uri := o.reads(run)[id]; strings.HasPrefix(uri, path.Dir(key)) && !late {
				o.violation("collection", "%s deletes %s, which the live run %s reads", p.id, key, run.RunID)
			}
		}
	}
}

// deletingKept checks that the rule of an asset does not keep what the collector is about to delete.
func (o *oracle) deletingKept(p *process, f *followed, key, materialization string) {
	parts := strings.SplitN(strings.TrimPrefix(key, contract.AssetsPrefix(f.domain)), "/", 3) //nolint:mnd // namespace, name, rest
	keep, ok := o.w.cfg.outputs(parts[0] + "/" + parts[1])
	if !ok {
		o.violation("collection", "%s deletes %s, of an asset that keeps everything", p.id, key)
	}
	uri := f.shown[materialization]
	if keep.Versions == manyVersions && uri != "" && (strings.HasPrefix(key, uri) || key == contract.MarkerKeyOf(uri)) {
		o.violation("collection", "%s deletes %s, a version that its asset keeps", p.id, key)
	}
}

// show notes which materializations partitions have shown in this history.
func (o *oracle) show(f *followed, rebuilt bool) {
	if rebuilt {
		clear(f.shown)
	}
	for row := range f.state.Partitions.All {
		f.shown[row.MaterializationID] = row.OutputURI
	}
}

// deletingLog checks that a log is not of a live run.
func (o *oracle) deletingLog(p *process, key string) {
	for _, f := range o.domains {
		rest, ours := strings.CutPrefix(key, contract.LogsPrefix(f.domain))
		run, _, _ := strings.Cut(rest, "/")
		if row := f.state.Runs.Get(run); ours && row != nil && !row.State.Terminal() {
			o.violation("collection", "%s deletes %s, of the live run %s", p.id, key, run)
		}
	}
}

func (o *oracle) makes(f *followed, run *state.Run, materialization string) (found bool) {
	f.state.TasksOf(run.RunID, func(t *state.Task) bool {
		found = found || ids.MaterializationID(f.domain, t.RunID, t.TaskKey) == materialization
		return !found
	})
	return found
}

// reads are the outputs of earlier runs that a run's plan names: their URIs by materialization.
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

// planned notes which runs are new, and checks that what their plans read is still there. A retry may be too late.
func (o *oracle) planned(f *followed, rebuilt bool) {
	for run := range f.state.Runs.All {
		if _, known := f.seenAt[run.RunID]; known {
			continue
		}
		f.seenAt[run.RunID] = o.w.now()
		if o.w.cfg.Collectors == 0 || run.State.Terminal() || run.ParentRunID != "" || rebuilt {
			continue
		}
		for _, uri := range o.reads(run) {
			o.w.fault("output read by a later run")
			if _, err := o.w.blobs.Head(context.Background(), contract.MarkerKeyOf(uri)); err != nil {
				o.violation("collection", "run %s begins, and reads %s, which was collected (%v)", run.RunID, uri, err)
			}
		}
	}
}

// garbageGoes checks that the collector deletes, in the end, all outputs and logs that nothing names: long after the last
// run, only what partitions show is left. It does so with a copy.
func (o *oracle) garbageGoes(f *followed) {
	if f.manifest == nil {
		return
	}
	const long = 60 * 24 * time.Hour
	ctx := context.Background()
	blobs, now := o.w.blobs.Copy(), &later{Clock: o.w.clock}
	source := ids.NewSource(now.Now, &entropy{rng: random(o.w.cfg.Seed, "garbage", 0)})
	manifests := manifest.New(manifest.Config{Domain: f.domain, Store: blobs, IDs: source, Clock: now})
	cfg := gc.Config{Domain: f.domain, Store: aged{blobs, now}, Manifests: manifests, Codec: o.w.codec, Clock: now}
	m := f.manifest
	for range 3 {
		now.by += long
		m = m.Successor("oracle")
		m.PublishedAt, m.Watermarks.CompleteThrough = event.At(now.Now()), ids.AtTime(now.Now())
		if err := manifests.Publish(ctx, m); err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
		if _, err := gc.Run(ctx, cfg, gc.Options{}); err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
	}
	o.onlyShown(f, blobs)
}

// aged is a store whose manifests are as young as the clock says: memory tells the time of the bubble.
type aged struct {
	blob.Store

	clock *later
}

func (a aged) Head(ctx context.Context, key string) (blob.Object, error) {
	o, err := a.Store.Head(ctx, key)
	o.Updated = a.clock.Now()
	return o, err
}

// onlyShown checks that nothing is left of outputs but what partitions show, and that this is whole.
func (o *oracle) onlyShown(f *followed, blobs blob.Store) {
	ctx := context.Background()
	shown, cells := map[string]string{}, map[string]bool{}
	for row := range f.state.Partitions.All {
		if row.OutputURI == "" {
			continue
		}
		shown[row.MaterializationID] = row.OutputURI
		cells[path.Dir(path.Dir(path.Dir(row.OutputURI)))] = true
	}
	there := map[string]bool{}
	for object, err := range blobs.List(ctx, blob.ListOptions{Prefix: contract.AssetsPrefix(f.domain)}) {
		if err != nil {
			o.violation("collection", "of %s: %v", f.domain, err)
			return
		}
		id, name := f.stored(object.Key)
		uri, ok := shown[id]
		switch {
		case ok && !strings.Contains(name, "/"):
			there[id] = true
		case ok && strings.HasPrefix(object.Key, uri):
		case ok && o.w.lost(blobs, uri):
			// The collector reads a commit marker only where several executions left files. If the winner's
			// were deleted, it takes a loser's for them, until another version supersedes both.
		case !ok && id < f.manifest.BaseSnapshot.RunsFrom && !cells[path.Dir(path.Dir(path.Dir(object.Key)))]:
			// Its run is not kept any more, and nothing says what it was.
		default:
			o.violation("collection", "%s is left, and no partition shows it", object.Key)
			return
		}
	}
	for id, uri := range shown {
		if !there[id] {
			o.violation("collection", "the commit marker of %s was collected, which a partition shows", uri)
		}
	}
	for object, err := range blobs.List(ctx, blob.ListOptions{Prefix: contract.LogsPrefix(f.domain)}) {
		if err != nil || object.Key != "" {
			o.violation("collection", "%s is left (%v)", object.Key, err)
			return
		}
	}
}
