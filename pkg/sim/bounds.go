package sim

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Upper bounds that hold while a world runs. They are generous, because faults delay
// everything; what feeds on itself, or never ends, exceeds any bound.
const (
	// slack is by how much faults may delay what should happen at once: a stalled queue,
	// a store that is full, processes that are down, and clocks that differ.
	slack = 55 * time.Minute
	// calmSlack is the same where nothing goes wrong: a sweep comes every 10 minutes.
	calmSlack = 30 * time.Minute
	// some is how much of anything there may always be.
	some = 25
	// filesEvery is how often state files are counted, which reads all pins.
	filesEvery = 10
)

// appendage is a moment at which an entry became durable, and how many lines the ledger
// had then.
type appendage struct {
	at    time.Time
	lines int
}

// noteLines counts the lines of an entry that was appended.
func (f *followed) noteLines(at time.Time, lines int) {
	if n := len(f.lines); n > 0 {
		lines += f.lines[n-1].lines
	}
	f.lines = append(f.lines, appendage{at, lines})
}

// linesSince is how many lines were appended after a time.
func (f *followed) linesSince(t time.Time) int {
	if len(f.lines) == 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(f.lines, t, func(a appendage, t time.Time) int { return a.at.Compare(t) })
	all := f.lines[len(f.lines)-1].lines
	if i == 0 {
		return all
	}
	return all - f.lines[i-1].lines
}

// entriesSince is how many entries were appended after a time.
func (f *followed) entriesSince(t time.Time) int {
	i, _ := slices.BinarySearchFunc(f.lines, t, func(a appendage, t time.Time) int { return a.at.Compare(t) })
	return len(f.lines) - i
}

func (o *oracle) slack() time.Duration {
	if o.w.cfg.Faults.spares() {
		return calmSlack
	}
	return slack
}

// disturbed reports whether something big ended less than the slack ago: a time without
// any process, or a rebuild. What it delayed may be late.
func (o *oracle) disturbed(f *followed) bool {
	return f.broken || o.w.counts["under repair"] > 0 || o.w.now().Sub(f.rebuiltAt) < o.slack() ||
		o.w.now().Sub(o.w.absentUntil) < o.slack()
}

// minute checks the bounds that hold at any time.
func (o *oracle) minute() {
	o.minutes++
	if o.w.now().Before(o.w.delayedUntil) {
		o.delays += time.Minute
	}
	for _, d := range o.w.domains {
		f := o.domains[d]
		if f.manifest == nil || f.broken {
			continue
		}
		o.timeBounds(f)
		if o.disturbed(f) {
			continue
		}
		o.listing(f)
		o.lateness(f)
		if o.minutes%filesEvery == 0 {
			o.stateFiles(f)
		}
	}
}

// timeBounds checks that no clock but the store's moves the time of a domain: what is
// folded, and what watermarks say, is at most an hour ahead.
func (o *oracle) timeBounds(f *followed) {
	limit := o.w.now().Add(ids.MaxAhead)
	m := f.manifest
	for name, at := range map[string]time.Time{
		"fold_time": m.FoldTime.Time(), "events_processed_through": ids.Time(m.Watermarks.EventsProcessedThrough),
		"complete_through": ids.Time(m.Watermarks.CompleteThrough), "entries_from": ids.Time(m.BaseSnapshot.EntriesFrom),
		"orphan_floor": ids.Time(m.OrphanFloor),
	} {
		if at.After(limit) {
			o.violation("clocks", "%s of revision %d of %s is %s ahead", name, m.Revision, f.domain, at.Sub(o.w.now()))
		}
	}
}

// liveRows checks, when a base was published, that entries have left the live state that
// were old enough when it was begun.
func (o *oracle) liveRows(f *followed, m *manifest.Manifest) {
	if f.manifest == nil || f.manifest.Lineage != m.Lineage || m.BaseSnapshot.ID == f.manifest.BaseSnapshot.ID || o.disturbed(f) {
		return
	}
	since := m.BaseSnapshot.FoldTime.Time().Add(-time.Duration(o.w.cfg.KeepEntries)*time.Minute - o.slack())
	rows, most := int(m.RowCounts["ledger_entries"]), some+len(f.ahead)+f.linesSince(since)
	if rows > most {
		o.violation("I-16 bounded work", "revision %d of %s has %d live rows of entries, and at most %d are young", m.Revision, f.domain, rows, most)
	}
}

// listing checks how many entries a barrier has to list. They are counted back from the
// last append that a sweep has had the time to follow: nobody lists an idle domain.
func (o *oracle) listing(f *followed) {
	last := len(f.lines) - f.entriesSince(o.w.now().Add(-calmSlack)) - 1
	if last < 0 {
		return
	}
	listed := 0
	opts := blob.ListOptions{Prefix: ledger.Prefix(f.domain)}
	if through := f.manifest.Watermarks.CompleteThrough; through != "" {
		opts.StartAfter = ledger.Key(f.domain, through)
	}
	for _, err := range o.w.blobs.List(context.Background(), opts) {
		if err == nil {
			listed++
		}
	}
	since := f.lines[last].at.Add(-o.slack())
	if most := some + len(f.ahead) + f.entriesSince(since); listed > most {
		o.violation("I-16 bounded work", "a barrier of %s lists %d entries, and at most %d are young", f.domain, listed, most)
	}
}

// lateness checks that nothing waits for much longer than it should: retries, timeouts
// and dispatches. Timers wait while an object
// cannot be read or the queue delivers nothing, so these minutes are added.
func (o *oracle) lateness(f *followed) {
	late := event.At(o.w.now().Add(-o.slack() - o.delays))
	for t := range f.state.Tasks.All {
		if t.State == state.TaskRetryWait && t.RetryNotBefore < late {
			o.violation("lateness", "task %s of run %s was to be retried at %s", t.TaskKey, t.RunID, t.RetryNotBefore)
			return
		}
	}
	for _, d := range f.state.Due(late) {
		if run := f.state.Runs.Get(d.RunID); run != nil && !run.State.Terminal() {
			o.violation("lateness", "the timeout of %s %s was at %s", d.RunID, d.TaskKey, d.At)
			return
		}
	}
	for row := range f.state.Outbox.All {
		t := f.state.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
		if t != nil && t.State == state.TaskReady && t.AdmittedAt != 0 && row.Attempt == t.Attempt && max(row.CreatedAt, t.AdmittedAt) < late {
			o.violation("lateness", "task %s of run %s was to be dispatched at %s", t.TaskKey, t.RunID, row.CreatedAt)
			return
		}
	}
}

// enoughPublishes is after how many publishes collection must have come to its end once:
// it runs after publishes, and a fault may end it.
const enoughPublishes = 10

// floorAt is the orphan floor of the oldest revision that existed at some time.
type floorAt struct {
	at       time.Time
	revision int64 // the newest one then
	floor    string
}

// stateFiles checks that files that no revision needs are deleted, as long as the domain
// publishes: those named below what was the orphan floor of the oldest revision long ago,
// and those named far ahead, which no floor would reach. It looks away where so many
// requests fail that collection, which begins again after each failure, hardly ever ends.
func (o *oracle) stateFiles(f *followed) {
	const onePage, few = 1000, 20
	faults := o.w.cfg.Faults
	if o.w.cfg.PageSize < onePage && faults != (Faults{}) || faults.Refused+faults.Late+faults.Lost > few {
		return
	}
	ctx := context.Background()
	b, _, err := f.manifests.Boundary(ctx)
	if err != nil {
		return
	}
	if oldest, err := f.manifests.LoadAt(ctx, b.DeletedThrough+1); err == nil {
		f.floors = append(f.floors, floorAt{o.w.now(), f.manifest.Revision, oldest.OrphanFloor})
	}
	below := ""
	for _, then := range f.floors {
		if o.w.now().Sub(then.at) >= o.slack() && f.manifest.Revision-then.revision >= enoughPublishes && then.at.After(f.rebuiltAt) {
			below = max(below, then.floor)
		}
	}
	if below != "" { // a pass begins only when the floor has risen by so much since the last one
		below = ids.AtTime(ids.Time(below).Add(-o.w.cfg.retention().Orphans))
	}
	ahead := ids.AtTime(o.w.now().Add(ids.MaxAhead))
	needed := o.needed(f, b)
	left, all, example := 0, 0, ""
	for object, err := range o.w.blobs.List(ctx, blob.ListOptions{Prefix: manifest.StatePrefix(f.domain)}) {
		if err != nil {
			return
		}
		all++
		name, _, _ := strings.Cut(path.Base(object.Key), ".")
		if !needed(object.Key) && (name < below || name > ahead) {
			left, example = left+1, object.Key
		}
	}
	if left > some {
		o.violation("I-16 bounded work", "%d of %d state files of %s are old and needed by no revision, such as %s", left, all, f.domain, example)
	}
}

// needed returns which state files a revision that exists, or a pinned one, names.
func (o *oracle) needed(f *followed, b manifest.Boundary) func(key string) bool {
	pinned := map[string]bool{}
	for object, err := range o.w.blobs.List(context.Background(), blob.ListOptions{Prefix: manifest.PinPrefix(f.domain)}) {
		if err == nil {
			maps.Copy(pinned, o.pinned(f, object.Key))
		}
	}
	return func(key string) bool {
		named, ok := f.named[key]
		return pinned[key] || ok && named.last > b.DeletedThrough
	}
}

// pinned returns the keys of the files that a pinned revision needs, with those that only
// an index of history names.
func (o *oracle) pinned(f *followed, key string) map[string]bool {
	files := map[string]bool{}
	var revision int64
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if _, scanErr := fmt.Sscanf(path.Base(key), "%d", &revision); err != nil || scanErr != nil {
		return files
	}
	m, err := (&manifest.Decoder{Domain: f.domain}).Decode(key, revision, data)
	if err != nil {
		return files
	}
	all, err := f.manifests.AllFiles(context.Background(), m)
	if err != nil {
		return files
	}
	for _, file := range all {
		files[file.Key] = true
	}
	return files
}
