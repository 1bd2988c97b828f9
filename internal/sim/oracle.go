package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// oracle watches a world and records violations. It reads the store directly, without faults, and
// belongs to the driver.
type oracle struct {
	w          *world
	domains    map[ids.Domain]*followed
	violations []string
	minutes    int
	delays     time.Duration                // how long timers have waited so far: [world.delayedUntil]
	repaired   int                          // number of rebuilds and verifications
	plans      map[string]map[string]string // cached results of reads, by plan
}

// followed is a domain as its published revisions describe it.
type followed struct {
	domain    ids.Domain
	manifests *manifest.Store
	manifest  *manifest.Manifest // the newest committed one
	decoder   manifest.Decoder
	// state is the state of manifest, including history.
	state *state.State
	// past holds the states of recent revisions, to compare with those that readers load.
	past map[int64]revision
	// cancelled contains runs whose cancel was requested, or that timed out.
	cancelled map[string]bool
	entries   int
	waiting   []waiting
	broken    bool // the projections are damaged, and not rebuilt yet
	// unreadable contains files that only a damaged index names.
	unreadable map[string]bool
	unordered  bool // rebuilt after the order of the ledger was lost
	// dropped contains entries that appeared after a bare rebuild had listed the ledger. The next
	// full listing folds them.
	dropped map[string]bool
	// forgotten contains the tasks whose success is in an entry that an operator has skipped.
	forgotten map[state.Key2]bool
	// abandoned contains entries that appeared when listings may have been past their names. true:
	// their writer was prompt, so only clocks were off.
	abandoned map[string]bool
	named     map[string]span // state files, by the revisions that name them
	// durable contains the checksums of the appended entries, archived those of the archived
	// entries. cut is the highest history cutoff of any revision: nothing above it may be archived.
	durable, archived map[string]uint32
	cut               string
	// ahead contains the entries that are far ahead of the store's clock and have no effect. true:
	// the whole entry. false: perhaps a part of it.
	ahead map[string]bool
	// settings holds the commands that set or remove limits, by limit.
	settings map[state.Key2][]setting
	// keyCommands holds the commands that change key sets.
	keyCommands []keyCommand
	// markCommands holds the commands that mark outputs.
	markCommands []markCommand
	// held holds the revisions that people have pinned.
	held      map[int64]heldRevision
	lines     []lineCount
	floors    []floorAt
	pinned    map[string]floorAt // when each file was last seen in a pinned revision
	rebuiltAt time.Time
	unlisted  time.Duration // how long listings of the ledger have only failed
	// ended reports that a bare rebuild has raised the boundary above every revision, and has not yet
	// published the first revision of the new timeline. endedAt is when it raised the boundary.
	ended    bool
	endedAt  time.Time
	seenAt   map[string]time.Time              // when runs were first published
	deployed map[string]*event.ProjectDeployed // of the ledger, by id
	approved map[string]bool                   // materializations that commands of the ledger approve
	shown    map[string]string                 // outputs that a partition has shown: URIs by materialization
	ticks    map[instant]string                // ids of ticks
	runsOf   map[string]string                 // runs by tick
}

// revision is the state of a revision, including history, and its history cutoff.
type revision struct {
	whole *state.State
	cut   state.Cutoff
}

func (r revision) live() *state.State {
	live := r.whole.Copy()
	live.Evict(r.cut)
	return live
}

// span is a range of successive revisions.
type span struct {
	timeline    string
	first, last int64
}

func newOracle(w *world) *oracle {
	o := &oracle{w: w, domains: map[ids.Domain]*followed{}, plans: map[string]map[string]string{}}
	for _, d := range w.domains {
		o.domains[d] = &followed{
			domain: d, past: map[int64]revision{}, named: map[string]span{}, abandoned: map[string]bool{}, cancelled: map[string]bool{},
			durable: map[string]uint32{}, archived: map[string]uint32{}, unreadable: map[string]bool{}, ahead: map[string]bool{}, dropped: map[string]bool{}, seenAt: map[string]time.Time{},
			ticks: map[instant]string{}, runsOf: map[string]string{},
			shown: map[string]string{}, held: map[int64]heldRevision{}, pinned: map[string]floorAt{},
			deployed: map[string]*event.ProjectDeployed{}, approved: map[string]bool{}, forgotten: map[state.Key2]bool{},
			settings: map[state.Key2][]setting{},
			state:    state.New(d), decoder: manifest.Decoder{Domain: d},
			manifests: manifest.New(manifest.Config{Domain: d, Store: w.blobs, IDs: ids.NewSource(w.now, nil), Clock: w.clock}),
		}
	}
	return o
}

// violation records that an invariant does not hold.
func (o *oracle) violation(invariant, format string, args ...any) {
	text := invariant + ": " + fmt.Sprintf(format, args...)
	o.w.note("VIOLATION %s", text)
	if len(o.violations) < 10 {
		o.violations = append(o.violations, text)
	}
}

// published follows a new manifest.
func (o *oracle) published(key string) {
	d, revision, err := manifest.ParseKey(key)
	if err != nil {
		o.violation("one history", "manifest key %s: %v", key, err)
		return
	}
	f := o.domains[d]
	if f.broken {
		o.raiseCut(f, key, revision)
		return // the rebuild replaces whatever is published on a damaged state
	}
	ctx := context.Background()
	b, _, err := f.manifests.Boundary(ctx)
	if err != nil {
		o.violation("manifest", "boundary of %s: %v", d, err)
		return
	}
	data, _, err := o.w.blobs.Get(ctx, key)
	if err != nil {
		o.violation("manifest", "%s: %v", key, err)
		return
	}
	m, err := f.decoder.Decode(key, revision, data)
	if err != nil {
		o.violation("manifest", "%v", err)
		return
	}
	if b.Covers(revision) {
		o.w.note("%s is below the boundary", key)
		return
	}
	o.commit(f, m)
}

// raiseCut follows the history cutoff of a revision that was published on a damaged state. Its writer
// may archive up to it before the rebuild.
func (o *oracle) raiseCut(f *followed, key string, revision int64) {
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if err != nil {
		return
	}
	if m, err := f.decoder.Decode(key, revision, data); err == nil {
		f.cut = max(f.cut, m.BaseSnapshot.EntriesFrom)
	}
}

// commit follows a committed revision.
func (o *oracle) commit(f *followed, m *manifest.Manifest) {
	if f.manifest != nil && m.Timeline == f.manifest.Timeline {
		if m.Parent == nil || *m.Parent != f.manifest.Ref() {
			o.violation("one history", "revision %d of %s does not follow revision %d", m.Revision, f.domain, f.manifest.Revision)
			return
		}
	}
	o.files(f, m)
	before := f.state
	next, err := o.load(f, m)
	if err != nil {
		o.violation("whole revisions", "revision %d of %s: %v", m.Revision, f.domain, err)
		return
	}
	rebuilt := f.manifest == nil && m.Writer == bareWriter || f.manifest != nil && m.Timeline != f.manifest.Timeline
	o.liveRows(f, m)
	if rebuilt && m.Writer == onlineWriter {
		o.rebuiltOnline(f, m, before, next)
	}
	if rebuilt && m.Writer == bareWriter {
		o.rebuiltBare(f, before, next)
	}
	f.manifest, f.state, f.ended = m, next, false
	f.cut = max(f.cut, m.BaseSnapshot.EntriesFrom)
	f.past[m.Revision] = revision{next, snapshot.CutoffOf(m)}
	delete(f.past, m.Revision-200)
	for run := range next.Runs.All {
		if run.State == state.RunCancelling || run.State == state.RunCancelled || run.State == state.RunTimedOut {
			f.cancelled[run.RunID] = true
		}
	}
	o.check(f, m.Revision)
	o.wakeup(f, m)
	o.recorded(f, rebuilt)
	o.planned(f, rebuilt)
	o.show(f, rebuilt)
	o.lastSetting(f)
	o.keySets(f)
	o.marked(f)
	o.hold(f)
	o.scheduled(f, before, next, rebuilt)
	if !rebuilt {
		o.transitions(f, before, next)
	}
	// If the recorded order is lost, entries are folded in the order of their names, which depends on
	// clocks. A limit may then be folded after admissions that it should have bounded. The oracle
	// applies it to later admissions only.
	if !rebuilt || !f.unordered {
		o.limits(f, before, next)
	}
}

// checkRows is the size of a state up to which every revision is checked. In states n times as
// large, it is every n-th revision.
const checkRows = 100

func (o *oracle) check(f *followed, revision int64) {
	size := f.state.Tasks.Len() + f.state.Entries.Len()
	if revision%int64(1+size/checkRows) != 0 {
		return
	}
	if err := foldtest.Check(f.state.Copy()); err != nil {
		o.violation("state", "revision %d of %s: %v", revision, f.domain, err)
	}
}

// load returns the state of a manifest including history: the previous state with the new deltas
// applied, or all of it.
func (o *oracle) load(f *followed, m *manifest.Manifest) (*state.State, error) {
	ctx := context.Background()
	if f.manifest == nil || f.manifest.Timeline != m.Timeline || o.w.cfg.Parquet {
		return o.whole(f.manifests, m)
	}
	next := f.state.Copy()
	var fresh []manifest.Delta
	for _, d := range m.L0 {
		if d.Revision == m.Revision {
			fresh = append(fresh, d)
		}
	}
	rows, err := snapshot.LoadDeltas(ctx, o.w.codec, f.manifests, fresh)
	if err != nil {
		return nil, err
	}
	next.Load(rows)
	next.FoldSeq, next.FoldTime = m.FoldSeq, m.FoldTime
	if !merged(f.manifest, m) || m.Revision%int64(1+f.state.Entries.Len()/checkRows) != 0 {
		return next, nil
	}
	live, err := snapshot.Load(ctx, o.w.codec, f.manifests, m)
	if err != nil {
		return nil, err
	}
	closed, err := snapshot.LoadHistory(ctx, o.w.codec, f.manifests, m)
	if err != nil {
		return nil, err
	}
	wantLive, wantClosed, gotClosed := next.Copy(), state.New(f.domain), state.New(f.domain)
	cut := snapshot.CutoffOf(m)
	wantClosed.Load(wantLive.Evict(cut).KeptFrom(cut.Runs))
	gotClosed.Load(closed.Superseded(live).KeptFrom(cut.Runs))
	if diff := state.Diff(wantLive, live, 5); len(diff) > 0 {
		return nil, fmt.Errorf("the merged files and deltas contain another state: %s", strings.Join(diff, "; "))
	}
	if diff := state.Diff(wantClosed, gotClosed, 5); len(diff) > 0 {
		return nil, fmt.Errorf("history differs from the rows that the base left out: %s", strings.Join(diff, "; "))
	}
	return next, nil
}

// whole reads the state of a manifest including history.
func (o *oracle) whole(store *manifest.Store, m *manifest.Manifest) (*state.State, error) {
	ctx := context.Background()
	st, err := snapshot.Load(ctx, o.w.codec, store, m)
	if err != nil {
		return nil, err
	}
	closed, err := snapshot.LoadHistory(ctx, o.w.codec, store, m)
	if err != nil {
		return nil, err
	}
	st.Load(closed.Superseded(st))
	return st, nil
}

// merged reports whether a manifest has a base or a delta that was merged from deltas of the
// manifest before.
func merged(before, m *manifest.Manifest) bool {
	known := map[string]bool{}
	for _, d := range slices.Concat(before.L1, before.L0) {
		known[d.ID] = true
	}
	return m.BaseSnapshot.ID != before.BaseSnapshot.ID || slices.ContainsFunc(slices.Concat(m.L1, m.L0), func(d manifest.Delta) bool {
		return !known[d.ID] && d.Revision != m.Revision
	})
}

// files checks that the files of a manifest exist and are intact.
func (o *oracle) files(f *followed, m *manifest.Manifest) {
	old := map[string]bool{}
	if f.manifest != nil {
		for _, file := range o.filesOf(f, f.manifest) {
			old[file.Key] = true
		}
	}
	for _, file := range o.filesOf(f, m) {
		n := f.named[file.Key]
		if n.first == 0 {
			n = span{m.Timeline, m.Revision, 0}
		}
		n.last = m.Revision
		f.named[file.Key] = n
		if old[file.Key] {
			continue
		}
		data, _, err := o.w.blobs.Get(context.Background(), file.Key)
		if err != nil || int64(len(data)) != file.Size || blob.CRC32C(data) != file.CRC32C {
			o.violation("whole revisions", "revision %d of %s names %s, which is missing or damaged (%v)", m.Revision, f.domain, file.Key, err)
		}
	}
}

// filesOf returns all files that a manifest needs.
func (o *oracle) filesOf(f *followed, m *manifest.Manifest) []manifest.File {
	files, err := f.manifests.AllFiles(context.Background(), m)
	if err != nil && !f.broken {
		o.violation("whole revisions", "revision %d of %s: %v", m.Revision, f.domain, err)
	}
	return files
}

// transitions checks the changes of one revision.
func (o *oracle) transitions(f *followed, before, after *state.State) {
	o.deployments(f, before, after)
	o.audited(f, before, after)
	for was := range before.Runs.All {
		is := after.Runs.Get(was.RunID)
		if is == nil {
			o.violation("I-15 nothing is lost", "run %s has vanished", was.RunID)
			continue
		}
		if was.State.Terminal() && *was != *is {
			o.violation("I-18 finished is final", "run %s was %s and is %s", was.RunID, was.State, is.State)
		}
	}
	for is := range after.Tasks.All {
		was := before.Tasks.Get(is.Key())
		if was == nil {
			was = &state.Task{}
		} else if was == is || *was == *is {
			continue
		}
		o.transition(f, after, was, is)
		if run := before.Runs.Get(is.RunID); run != nil && run.State == state.RunCancelling && is.State == state.TaskSucceeded {
			o.violation("cancelled is cancelled", "task %s of run %s succeeds after the request to cancel it", is.TaskKey, is.RunID)
		}
	}
}

func (o *oracle) transition(f *followed, s *state.State, was, is *state.Task) {
	switch {
	case was.State.Terminal(): // base files omit partitions by the rows of ended tasks
		o.violation("I-18 finished is final", "task %s of run %s was %s and is %s", is.TaskKey, is.RunID, was.State, is.State)
	case is.Attempt < was.Attempt:
		o.violation("INV-8 attempts only grow", "task %s of run %s was at attempt %d and is at %d", is.TaskKey, is.RunID, was.Attempt, is.Attempt)
	case is.Attempt > is.MaxAttempts:
		o.violation("INV-8 attempts only grow", "task %s of run %s is at attempt %d of %d", is.TaskKey, is.RunID, is.Attempt, is.MaxAttempts)
	}
	begun := is.AdmittedAt != 0 && was.AdmittedAt == 0 || is.State == state.TaskRunning && was.State != state.TaskRunning
	if begun && !mayStart(s, is) {
		o.violation("INV-6 dependency order", "task %s of run %s is %s before its upstreams allow it", is.TaskKey, is.RunID, is.State)
	}
	if is.State == state.TaskSucceeded && was.State != state.TaskSucceeded {
		o.output(f, is)
	}
}

// mayStart reports whether a task may start. It is independent of the fold's rule.
func mayStart(s *state.State, t *state.Task) bool {
	ok := true
	s.Deps.Ascend(state.Key3{A: t.RunID}, func(d *state.Dep) bool {
		if d.RunID != t.RunID {
			return false
		}
		if d.Downstream != t.TaskKey {
			return true
		}
		up := s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream})
		switch t.TriggerRule {
		case event.RuleAllDone:
			ok = ok && up.State.Terminal()
		case event.RuleNoneFailed:
			ok = ok && (up.State == state.TaskSucceeded || up.State == state.TaskSkipped && !failedAbove(s, up))
		default:
			ok = ok && up.State == state.TaskSucceeded
		}
		return true
	})
	return ok
}

// failedAbove reports whether a failure led to the end of a task: its own, or an upstream failure
// that its trigger rule considers. It is independent of the fold's rule.
func failedAbove(s *state.State, t *state.Task) bool {
	if t.State == state.TaskFailed || t.State != state.TaskSkipped || t.TriggerRule == event.RuleAllDone {
		return t.State == state.TaskFailed
	}
	found := false
	s.Deps.Ascend(state.Key3{A: t.RunID}, func(d *state.Dep) bool {
		if d.RunID == t.RunID && d.Downstream == t.TaskKey {
			found = failedAbove(s, s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream}))
		}
		return d.RunID == t.RunID && !found
	})
	return found
}

// output compares a success with its commit marker and files: each task takes effect exactly once.
func (o *oracle) output(f *followed, t *state.Task) {
	if t.Kind == event.KindGroup {
		return
	}
	asset, err := ids.ParseAssetKey(t.AssetKey)
	if err != nil {
		o.violation("INV-4 effects once", "task %s: %v", t.TaskKey, err)
		return
	}
	o.succeeded(t)
	key := contract.CommitMarkerKey(f.domain, asset, t.PartitionKey, ids.MaterializationID(f.domain, t.RunID, t.TaskKey))
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if o.w.load.bare(t.AssetKey) {
		if err == nil || t.OutputURI != "" {
			o.violation("INV-4 effects once", "task %s of run %s has no output, but the row says %q", t.TaskKey, t.RunID, t.OutputURI)
		}
		return
	}
	if err != nil {
		o.violation("INV-4 effects once", "task %s of run %s succeeded without a commit marker: %v", t.TaskKey, t.RunID, err)
		return
	}
	var marker contract.CommitMarker
	if err := json.Unmarshal(data, &marker); err != nil || marker.URI != t.OutputURI {
		o.violation("INV-4 effects once", "task %s of run %s has the output %s, but its marker names %s (%v)",
			t.TaskKey, t.RunID, t.OutputURI, marker.URI, err)
		return
	}
	row := f.state.Partitions.Get(state.Key2{A: t.AssetKey, B: t.PartitionKey})
	if t.SchemaHash != marker.SchemaHash || row != nil && row.MaterializationID == t.MaterializationID && row.SchemaHash != marker.SchemaHash {
		o.violation("INV-4 effects once", "task %s of run %s has schema %q, its partition %+v, its marker %q",
			t.TaskKey, t.RunID, t.SchemaHash, row, marker.SchemaHash)
	}
	for _, file := range marker.Files {
		data, _, err := o.w.blobs.Get(context.Background(), marker.URI+file.Name)
		if (err != nil || blob.CRC32C(data) != file.CRC32C) && !o.w.damaged[marker.URI+file.Name] {
			o.violation("INV-4 effects once", "file %s of task %s of run %s differs from its marker (%v)", file.Name, t.TaskKey, t.RunID, err)
		}
	}
}

// succeeded checks that the workload lets the attempt of a task succeed.
func (o *oracle) succeeded(t *state.Task) {
	if b := o.w.load.behave(assetOf(t.TaskKey)); b.failures >= t.Attempt {
		o.violation("reference model", "task %s of run %s succeeded at attempt %d, but the first %d attempts fail", t.TaskKey, t.RunID, t.Attempt, b.failures)
	}
}

// limits checks that the admissions of a revision exceed no limit.
func (o *oracle) limits(f *followed, before, after *state.State) {
	now, then := slotsOf(after), slotsOf(before)
	var admitted []*state.Task
	// If the order is lost, the lost timeline may have admitted an attempt that reports, whatever
	// the limits are in the new one.
	reported := slotCount{run: map[string]int32{}, pool: map[string]int32{}}
	for t := range after.Tasks.All {
		switch was := before.Tasks.Get(t.Key()); {
		case t == was || t.AdmittedAt == 0 || was != nil && was.AdmittedAt == t.AdmittedAt && was.Attempt == t.Attempt:
		case f.unordered && t.State == state.TaskRunning:
			reported.count(t)
		default:
			admitted = append(admitted, t)
		}
	}
	for _, t := range admitted {
		run := after.Runs.Get(t.RunID)
		workspace := limit(before, after, event.ScopeWorkspace, "")
		pool := limit(before, after, event.ScopePool, t.Pool)
		switch {
		case reported.all == 0 && now.all > max(workspace, then.all):
			o.violation("limits", "%d tasks of %s hold slots; the limit is %d", now.all, f.domain, workspace)
		case reported.run[t.RunID] == 0 && run.MaxParallelism > 0 && now.run[t.RunID] > run.MaxParallelism:
			o.violation("limits", "%d tasks of run %s hold slots; the limit is %d", now.run[t.RunID], t.RunID, run.MaxParallelism)
		case reported.pool[t.Pool] == 0 && now.pool[t.Pool] > max(pool, then.pool[t.Pool]):
			o.violation("limits", "%d tasks of pool %s hold slots; the limit is %d", now.pool[t.Pool], t.Pool, pool)
		}
	}
}

// limit returns the higher of the limits before and after, since one revision may admit under both.
func limit(before, after *state.State, scope, name string) int32 {
	most := int32(math.MaxInt32)
	if slots, limited := after.SlotLimit(scope, name); limited {
		most = slots
	}
	if slots, limited := before.SlotLimit(scope, name); !limited {
		return math.MaxInt32
	} else if slots > most {
		return slots
	}
	return most
}

// slotCount counts the slots that tasks occupy.
type slotCount struct {
	all       int32
	run, pool map[string]int32
}

func (h *slotCount) count(t *state.Task) {
	h.all++
	h.run[t.RunID]++
	h.pool[t.Pool]++
}

func slotsOf(s *state.State) slotCount {
	h := slotCount{run: map[string]int32{}, pool: map[string]int32{}}
	for t := range s.Tasks.All {
		if t.AdmittedAt != 0 {
			h.count(t)
		}
	}
	return h
}

// checkRead compares the state that a reader loaded with the published one.
func (o *oracle) checkRead(p *process, d ids.Domain, snap *snapshot.Snapshot) {
	f := o.domains[d]
	if snap.Revision == 0 || f.broken {
		return // a compactor that finds no projections starts a timeline, which the rebuild ends
	}
	published, ok := f.past[snap.Revision]
	if !ok {
		return // too old to be kept
	}
	if diff := state.Diff(published.live(), snap.State, 3); len(diff) > 0 {
		o.violation("whole revisions", "%s reads revision %d of %s, which differs from the published one: %s", p.id, snap.Revision, d, strings.Join(diff, "; "))
	}
}

// restartTime is the longest time in which a domain may have no revision, between the end of the old
// timeline and the first revision of the new one. It allows for a few requests of four minutes each.
const restartTime = 20 * time.Minute

// damaged follows a reader that finds the state damaged. A bare rebuild of a domain without
// manifests ends its revision numbers first: until it publishes, the domain has no revision.
func (o *oracle) damaged(p *process, d ids.Domain, err error) {
	f := o.domains[d]
	restarting := f.ended || !f.endedAt.IsZero() && o.w.now().Sub(f.endedAt) < restartTime
	if o.w.counts["under repair"] == 0 && o.w.counts["wiped"] == 0 && !restarting {
		o.violation("retention", "%s finds the state of %s damaged: %v", p.id, d, err)
	}
}

// deleting checks the deletion of an existing object.
func (o *oracle) deleting(p *process, key string) {
	switch {
	case strings.HasPrefix(key, "ledger/"):
		o.deletingEntry(p, key)
	case strings.HasPrefix(key, "archive/"), strings.HasPrefix(key, "plans/"):
		o.violation("I-15 nothing is lost", "%s deletes %s", p.id, key)
	case strings.HasPrefix(key, "state/"):
		o.deletingState(p, key)
	case strings.HasPrefix(key, "assets/"):
		o.deletingOutput(p, key)
	case strings.HasPrefix(key, "logs/"):
		o.deletingLog(p, key)
	case strings.HasPrefix(key, wakeup.Prefix):
		o.deletingWakeup(p, key)
	case strings.HasPrefix(key, "manifests/"):
		d, revision, err := manifest.ParseKey(key)
		if err != nil {
			return
		}
		b, _, err := o.domains[d].manifests.Boundary(context.Background())
		if err == nil && revision > b.DeletedThrough {
			o.violation("retention", "%s deletes revision %d, above the boundary %d", p.id, revision, b.DeletedThrough)
		}
	}
}

// deletingState checks that no readable revision names a file.
func (o *oracle) deletingState(p *process, key string) {
	for _, d := range o.w.domains {
		if !strings.HasPrefix(key, manifest.StatePrefix(d)) {
			continue
		}
		f := o.domains[d]
		named, ok := f.named[key]
		if !ok {
			return
		}
		ctx := context.Background()
		b, _, err := f.manifests.Boundary(ctx)
		if err != nil || named.last > b.DeletedThrough {
			o.violation("retention", "%s deletes %s, which revision %d names (%v)", p.id, key, named.last, err)
			return
		}
		for object, err := range o.w.blobs.List(ctx, blob.ListOptions{Prefix: manifest.PinPrefix(d)}) {
			var revision int64
			if _, scanErr := fmt.Sscanf(path.Base(object.Key), "%d", &revision); err != nil || scanErr != nil {
				continue
			}
			if named.first <= revision && revision <= named.last && !f.unreadable[key] {
				o.violation("retention", "%s deletes %s, which the pinned revision %d names", p.id, key, revision)
			}
		}
	}
}

// atRest reports whether every run has ended, and every request that must end.
func (o *oracle) atRest() bool {
	for _, d := range o.w.domains {
		if s := o.domains[d].state; s.LiveRuns() > 0 || len(o.unfinished(s)) > 0 {
			return false
		}
	}
	return true
}

// stuck reports the runs that have not ended.
func (o *oracle) stuck() {
	for _, d := range o.w.domains {
		s := o.domains[d].state
		for run := range s.Runs.All {
			if run.State.Terminal() {
				continue
			}
			var waiting []string
			s.TasksOf(run.RunID, func(t *state.Task) bool {
				if !t.State.Terminal() {
					waiting = append(waiting, fmt.Sprintf("%s=%s/%d", t.TaskKey, t.State, t.Attempt))
				}
				return len(waiting) < 10
			})
			o.violation("liveness", "run %s of %s is %s: %s", run.RunID, d, run.State, strings.Join(waiting, " "))
		}
	}
	for _, d := range o.w.domains {
		for _, left := range o.unfinished(o.domains[d].state) {
			o.violation("liveness", "%s of %s", left, d)
		}
	}
	if !o.w.load.done() {
		o.violation("liveness", "the clients have not made all their requests")
	}
	if len(o.violations) == 0 {
		o.violation("liveness", "the world does not come to rest")
	}
}
