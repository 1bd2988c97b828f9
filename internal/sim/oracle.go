package sim

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// oracle watches a world and records violations. It reads the store directly, without faults. Only the driver's
// goroutine uses it.
type oracle struct {
	w          *world
	domains    map[ids.Domain]*followed
	violations []string
	minutes    int
	delays     time.Duration                 // how long timers have been delayed so far: see [world.delayedUntil]
	repaired   int                           // number of rebuilds and verifications
	plans      map[string]map[string]string  // cached results of oracle.reads, by plan
	decoded    map[string]*plannedRun        // decoded plans
	chunks     map[string]*backfill.Document // decoded documents of backfills
	// collectedAt maps a deleted object to the time at which a collector of outputs deleted it.
	collectedAt map[string]time.Time
	// merged holds the merged files that indexes have named, by id.
	merged map[string]*mergedFile
}

func newOracle(w *world) *oracle {
	o := &oracle{w: w, domains: map[ids.Domain]*followed{}, plans: map[string]map[string]string{}, decoded: map[string]*plannedRun{}, chunks: map[string]*backfill.Document{}, collectedAt: map[string]time.Time{}, merged: map[string]*mergedFile{}}
	for _, d := range w.domains {
		o.domains[d] = &followed{
			domain: d, past: map[int64]*revision{}, compared: map[string]comparison{}, named: map[string]span{}, abandoned: map[string]bool{}, cancelled: map[string]bool{},
			durable: map[string]uint32{}, archived: map[string]uint32{}, unreadable: map[string]bool{}, ahead: map[string]bool{}, dropped: map[string]bool{}, seenAt: map[string]time.Time{},
			ticks: map[instant]string{}, runsOf: map[string]string{}, triggers: map[string][]state.Key2{},
			shown: map[string]string{}, pinnedRevisions: map[int64]heldRevision{}, recreated: map[int64]bool{}, pinned: map[string]floorAt{},
			deployed: map[string]*event.ProjectDeployed{}, approved: map[string]bool{}, forgotten: map[state.Key2]bool{},
			settings: map[state.Key2][]setting{}, index: newIndex(),
			state: state.New(d), decoder: &manifest.Decoder{Domain: d},
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

// notePublished updates the oracle for a new manifest.
func (o *oracle) notePublished(key string) {
	d, revision, err := manifest.ParseKey(key)
	if err != nil {
		o.violation("one history", "manifest key %s: %v", key, err)
		return
	}
	f := o.domains[d]
	if f.broken {
		o.raiseCut(f, key, revision)
		return // a rebuild will replace all revisions that are published on a damaged state
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
		f.recreated[revision] = true
		return
	}
	o.commit(f, m)
}

// raiseCut records the history cutoff of a revision that was published while the domain was damaged. Until a rebuild
// repairs the domain, the writer of this revision may archive entries up to this cutoff.
func (o *oracle) raiseCut(f *followed, key string, revision int64) {
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if err != nil {
		return
	}
	if m, err := f.decoder.Decode(key, revision, data); err == nil {
		f.cut = max(f.cut, m.BaseSnapshot.EntriesFrom)
	}
}

// commit updates the oracle for a committed revision, and checks the revision.
func (o *oracle) commit(f *followed, m *manifest.Manifest) {
	if f.manifest != nil && m.Timeline == f.manifest.Timeline {
		if m.Parent == nil || *m.Parent != f.manifest.Ref() {
			o.violation("one history", "revision %d of %s does not follow revision %d", m.Revision, f.domain, f.manifest.Revision)
			return
		}
	}
	o.checkFiles(f, m)
	before := f.state
	next, rows, err := o.load(f, m)
	if err != nil {
		o.violation("whole revisions", "revision %d of %s: %v", m.Revision, f.domain, err)
		return
	}
	rebuilt := f.manifest == nil && m.Writer == bareWriter || f.manifest != nil && m.Timeline != f.manifest.Timeline
	o.checkLiveRows(f, m)
	if rebuilt && m.Writer == onlineWriter {
		o.checkOnlineRebuild(f, m, before, next)
	}
	if rebuilt && m.Writer == bareWriter {
		o.checkBareRebuild(f, before, next)
	}
	f.manifest, f.state, f.rows, f.ended = m, next, rows, false
	slots := f.index.follow(f, before)
	f.cut = max(f.cut, m.BaseSnapshot.EntriesFrom)
	f.past[m.Revision] = &revision{whole: next, cut: snapshot.CutoffOf(m)}
	delete(f.past, m.Revision-200)
	for run := range changed(f, next.Runs) {
		if run.State == state.RunCancelling || run.State == state.RunCancelled || run.State == state.RunTimedOut {
			f.cancelled[run.RunID] = true
		}
	}
	o.check(f, m.Revision)
	o.checkWakeup(f, m)
	o.checkRecorded(f, rebuilt)
	o.checkPlanned(f, rebuilt)
	o.noteShown(f, rebuilt)
	o.checkSettings(f)
	o.checkKeySets(f)
	o.checkMarks(f)
	o.checkForgotten(f)
	o.notePins(f)
	o.checkSchedules(f, before, next, rebuilt)
	o.checkBackfills(f, before, next, rebuilt)
	o.checkAlerts(f, before, next, rebuilt)
	if !rebuilt {
		o.checkTransitions(f, before, next)
	}
	// If the recorded order is lost, entries are folded in the order of their names, which depends on clocks. A limit
	// may then be folded after admissions that it should have bounded. The oracle applies the limit to later admissions
	// only.
	if !rebuilt || !f.unordered {
		o.checkLimits(f, before, next, slots)
	}
}

// If a state has at most checkRows rows, every revision is checked. If a state has n times as many rows, only about
// every n-th revision is checked.
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

// load returns the state that a manifest describes, including history, and the rows that differ from the previous
// state. It applies the new deltas to the previous state, or reads the whole new state and returns no rows.
func (o *oracle) load(f *followed, m *manifest.Manifest) (*state.State, *state.Rows, error) {
	ctx := context.Background()
	if f.manifest == nil || f.manifest.Timeline != m.Timeline || o.w.cfg.Parquet {
		st, err := o.whole(f.manifests, m)
		return st, nil, err
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
		return nil, nil, err
	}
	next.Load(rows)
	next.FoldSeq, next.FoldTime = m.FoldSeq, m.FoldTime
	if !hasMerged(f.manifest, m) || m.Revision%int64(1+f.state.Entries.Len()/checkRows) != 0 {
		return next, rows, nil
	}
	live, err := snapshot.Load(ctx, o.w.codec, f.manifests, m)
	if err != nil {
		return nil, nil, err
	}
	closed, err := snapshot.LoadHistory(ctx, o.w.codec, f.manifests, m)
	if err != nil {
		return nil, nil, err
	}
	wantLive, wantClosed, gotClosed := next.Copy(), state.New(f.domain), state.New(f.domain)
	cut := snapshot.CutoffOf(m)
	wantClosed.Load(wantLive.Evict(cut).KeptFrom(cut.Runs))
	gotClosed.Load(closed.WithoutSuperseded(live).KeptFrom(cut.Runs))
	if diff := state.Diff(wantLive, live, 5); len(diff) > 0 {
		return nil, nil, fmt.Errorf("the merged files and deltas contain another state: %s", strings.Join(diff, "; "))
	}
	if diff := state.Diff(wantClosed, gotClosed, 5); len(diff) > 0 {
		return nil, nil, fmt.Errorf("history differs from the rows that the base left out: %s", strings.Join(diff, "; "))
	}
	return next, rows, nil
}

// whole reads the state that a manifest describes, including history.
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
	st.Load(closed.WithoutSuperseded(st))
	return st, nil
}

// hasMerged reports whether a manifest names a base or a delta into which deltas of the previous manifest were
// merged.
func hasMerged(before, m *manifest.Manifest) bool {
	known := map[string]bool{}
	for _, d := range slices.Concat(before.L1, before.L0) {
		known[d.ID] = true
	}
	return m.BaseSnapshot.ID != before.BaseSnapshot.ID || slices.ContainsFunc(slices.Concat(m.L1, m.L0), func(d manifest.Delta) bool {
		return !known[d.ID] && d.Revision != m.Revision
	})
}

// checkFiles checks that the files of a manifest exist and are intact.
func (o *oracle) checkFiles(f *followed, m *manifest.Manifest) {
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

// In large worlds, every revision that a reader reads is compared if its state has at most readRows rows. If the
// state has n times as many rows, only about every n-th revision is compared.
const readRows = 500

// checkRead compares the state that a reader has loaded with the published state of the same revision.
func (o *oracle) checkRead(p *process, d ids.Domain, snap *snapshot.Snapshot) {
	f := o.domains[d]
	if snap.Revision == 0 || f.broken {
		return // if projections are missing, a compactor may have started a timeline that a rebuild will end
	}
	published, ok := f.past[snap.Revision]
	if !ok {
		return // the oracle no longer keeps the state of this revision
	}
	if size := published.whole.Tasks.Len() + published.whole.Entries.Len(); o.w.cfg.Large > 0 && snap.Revision%int64(1+size/readRows) != 0 {
		return // skip the comparison, which would read all rows
	}
	this := comparison{snap.State, published}
	if f.compared[p.id] == this {
		return
	}
	f.compared[p.id] = this
	if f.recreated[snap.Revision] && !o.w.cfg.keepsLongEnough() {
		return
	}
	if diff := state.Diff(published.live(), snap.State, 3); len(diff) > 0 {
		o.violation("whole revisions", "%s reads revision %d of %s, which differs from the published one: %s", p.id, snap.Revision, d, strings.Join(diff, "; "))
	}
}

// restartTime is the longest time in which a domain may have no revision, between the end of the old
// timeline and the first revision of the new one. It allows for a few requests of four minutes each.
const restartTime = 20 * time.Minute

// handleDamaged handles a reader that reports a damaged state. This is a violation unless an operator repairs the
// domain. It is also allowed during a bare rebuild of a domain without manifests: the rebuild first raises the boundary
// above all old revisions, so the domain has no revision until the rebuild publishes.
func (o *oracle) handleDamaged(p *process, d ids.Domain, err error) {
	f := o.domains[d]
	restarting := f.ended || !f.endedAt.IsZero() && o.w.now().Sub(f.endedAt) < restartTime
	if o.w.counts["under repair"] == 0 && o.w.counts["wiped"] == 0 && !restarting {
		o.violation("retention", "%s finds the state of %s damaged: %v", p.id, d, err)
	}
}

// deleting checks that an existing object may be deleted.
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
	case strings.HasPrefix(key, "pins/"):
		o.deletingPin(key)
	case strings.HasPrefix(key, "manifests/"):
		d, revision, err := manifest.ParseKey(key)
		if err != nil {
			return
		}
		b, _, err := o.domains[d].manifests.Boundary(context.Background())
		if err == nil && revision > b.DeletedThrough {
			o.violation("retention", "%s deletes revision %d, which is above the boundary %d", p.id, revision, b.DeletedThrough)
		}
	}
}

// deletingState checks a state file that is about to be deleted: no readable or pinned revision may name it.
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

// atRest reports whether all runs, and all requests that must end, have ended.
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
