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

// Upper bounds that hold while a world runs. They are generous, because faults delay everything. Even so, they detect
// work that never ends, and work that causes ever more work: such work exceeds every bound.
const (
	// slack limits how long work that is due may be delayed by faults: a stalled queue, a full store, dead processes,
	// and clock skew.
	slack = 55 * time.Minute
	// calmSlack is the slack of worlds without faults. There, a domain is swept every 10 minutes.
	calmSlack = 30 * time.Minute
	// allowance is the constant part of each bound on objects, rows or entries.
	allowance = 25
	// filesEvery is the number of minutes between two counts of the state files. Counting is slow, because it reads all
	// pins.
	filesEvery = 10
)

// lineCount is the number of lines in the ledger when an entry became durable.
type lineCount struct {
	at    time.Time
	lines int
}

// noteLines counts the lines of an appended entry.
func (f *followed) noteLines(at time.Time, lines int) {
	if n := len(f.lines); n > 0 {
		lines += f.lines[n-1].lines
	}
	f.lines = append(f.lines, lineCount{at, lines})
}

// linesSince returns the number of lines appended after a time.
func (f *followed) linesSince(t time.Time) int {
	if len(f.lines) == 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(f.lines, t, func(a lineCount, t time.Time) int { return a.at.Compare(t) })
	all := f.lines[len(f.lines)-1].lines
	if i == 0 {
		return all
	}
	return all - f.lines[i-1].lines
}

// entriesSince returns the number of entries appended after a time.
func (f *followed) entriesSince(t time.Time) int {
	i, _ := slices.BinarySearchFunc(f.lines, t, func(a lineCount, t time.Time) int { return a.at.Compare(t) })
	return len(f.lines) - i
}

func (o *oracle) slack() time.Duration {
	if o.w.cfg.Faults.calm() {
		return calmSlack
	}
	return slack
}

// disturbed reports whether an outage or a rebuild has not ended, or has ended so recently that the slack is not over.
// In this case, work that the outage or the rebuild delayed may still be late.
func (o *oracle) disturbed(f *followed) bool {
	return f.broken || f.ended || o.w.counts["under repair"] > 0 || o.w.now().Sub(f.rebuiltAt) < o.slack() ||
		o.w.now().Sub(o.w.outageUntil) < o.slack()
}

// checkBounds checks the bounds that always hold.
func (o *oracle) checkBounds() {
	o.minutes++
	if o.w.now().Before(o.w.delayedUntil) {
		o.delays += time.Minute
	}
	for _, d := range o.w.domains {
		f := o.domains[d]
		if o.w.listings.onlyFailed(ledger.Prefix(d)) {
			f.unlisted += time.Minute
		}
		if f.manifest == nil || f.broken {
			continue
		}
		f.follow(o.w.now())
		o.checkTimeBounds(f)
		if o.disturbed(f) {
			continue
		}
		o.checkListing(f)
		o.checkLateness(f)
		if o.minutes%filesEvery == 0 {
			o.checkStateFiles(f)
		}
	}
}

// checkTimeBounds checks that only the store's clock advances the time of a domain: folded times and watermarks are at
// most an hour ahead of the world's time.
func (o *oracle) checkTimeBounds(f *followed) {
	limit := o.w.now().Add(ids.MaxAhead)
	m := f.manifest
	for name, at := range map[string]time.Time{
		"fold_time": m.FoldTime.Time(), "events_processed_through": ids.Time(m.Watermarks.EventsProcessedThrough),
		"complete_through": ids.Time(m.Watermarks.CompleteThrough), "entries_from": ids.Time(m.BaseSnapshot.EntriesFrom),
		"orphan_floor": ids.Time(m.OrphanFloor),
	} {
		if at.After(limit) {
			o.violation("clocks", "revision %d of %s: %s is %s ahead of the time of the world", m.Revision, f.domain, name, at.Sub(o.w.now()))
		}
	}
}

// checkLiveRows runs when a base is published. It checks that rows of entries have left the live state if they were old
// enough when the fold of the base began. An entry leaves the live state only after a barrier has listed it. So
// checkLiveRows also treats an entry as young if sweeps have not had enough time to list it: if it was appended after
// followedUpTo, or less than the slack before the last append up to followedUpTo.
func (o *oracle) checkLiveRows(f *followed, m *manifest.Manifest) {
	if f.manifest == nil || f.manifest.Timeline != m.Timeline || m.BaseSnapshot.ID == f.manifest.BaseSnapshot.ID || o.disturbed(f) {
		return
	}
	since := m.BaseSnapshot.FoldTime.Time().Add(-time.Duration(o.w.cfg.KeepEntries)*time.Minute - o.slack())
	if last := f.lastFollowed(); last >= 0 && f.lines[last].at.Add(-o.slack()).Before(since) {
		since = f.lines[last].at.Add(-o.slack())
	}
	rows, most := int(m.RowCounts["ledger_entries"]), allowance+len(f.ahead)+f.linesSince(since)
	if rows > most {
		o.violation("I-16 bounded work", "revision %d of %s has %d live rows of entries, but at most %d are young", m.Revision, f.domain, rows, most)
	}
}

// follow sets followedUpTo: sweeps have had enough time (calmSlack) to list all entries that were appended up to then.
// A domain without a wakeup is listed only by the daily full sweep, even if entries are appended to it. So the time
// counts only while the domain has a wakeup, or from an instant at which a wakeup was due.
func (f *followed) follow(now time.Time) {
	at := f.manifest.Wakeup.At
	switch {
	case at == 0:
		f.waitsSince = time.Time{}
	case f.waitsSince.IsZero():
		f.waitsSince = now
	case now.Sub(f.waitsSince) >= calmSlack:
		f.followedUpTo = now.Add(-calmSlack)
	}
	if at != 0 && !at.Time().After(now) {
		f.due = append(f.due, now)
	}
	for len(f.due) > 0 && now.Sub(f.due[0]) >= calmSlack {
		f.followedUpTo, f.due = latest(f.followedUpTo, f.due[0]), f.due[1:]
	}
}

// lastFollowed returns the index of the last append up to followedUpTo, or -1. The bounds on listings are relative to
// this append.
func (f *followed) lastFollowed() int {
	return len(f.lines) - f.entriesSince(f.followedUpTo) - 1
}

// checkListing checks how many entries a barrier has to list.
func (o *oracle) checkListing(f *followed) {
	last := f.lastFollowed()
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
	if most := allowance + len(f.ahead) + f.entriesSince(since); listed > most {
		o.violation("I-16 bounded work", "a barrier of %s lists %d entries, but at most %d are young", f.domain, listed, most)
	}
}

// checkLateness checks the delays of retries, timeouts and dispatches. Timers wait while an object cannot be read,
// while the queue delivers nothing, and while no listing of the ledger completes. So the length of these faults is
// added to the allowed delay.
func (o *oracle) checkLateness(f *followed) {
	late := event.At(o.w.now().Add(-o.slack() - o.delays - f.unlisted))
	o.checkLatePromises(f, late)
	for t := range f.state.Tasks.All {
		if t.State == state.TaskRetryWait && t.RetryNotBefore < late {
			o.violation("lateness", "task %s of run %s should have been retried at %s", t.TaskKey, t.RunID, t.RetryNotBefore)
			return
		}
	}
	for _, d := range f.state.Due(late) {
		if run := f.state.Runs.Get(d.RunID); run != nil && !run.State.Terminal() && f.dueAt(d.RunID, d.At) < late {
			o.violation("lateness", "run %s, task %q should have timed out at %s", d.RunID, d.TaskKey, d.At)
			return
		}
	}
	for row := range f.state.Outbox.All {
		t := f.state.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
		if t != nil && t.State == state.TaskReady && t.AdmittedAt != 0 && row.Attempt == t.Attempt && max(row.CreatedAt, t.AdmittedAt) < late {
			o.violation("lateness", "task %s of run %s should have been dispatched at %s", t.TaskKey, t.RunID, row.CreatedAt)
			return
		}
	}
}

// dueAt returns the time from which the delay of due work on a run is measured. This is the time at which the work is
// due or, if that is later, the time of the first revision that contains the run. Work can be due before the run is
// folded, because deadlines count from the run's trigger, and the trigger may be folded late. Suppose that the
// announcement of the trigger is lost, and that its client does not wait (ADR 053). Only the next daily full sweep then
// lists the idle domain (ADR 049). After the fold, the domain has wakeups, and due work happens within the slack.
func (f *followed) dueAt(runID string, due event.Time) event.Time {
	return max(due, event.At(f.seenAt[runID]))
}

// enoughPublishes is the number of publishes after which one collection must have finished. A
// collection runs after publishes, and a fault may interrupt it.
const enoughPublishes = 10

// floorAt records which orphan floor the oldest revision had at some time.
type floorAt struct {
	at       time.Time
	revision int64 // the newest revision at that time
	floor    string
}

// checkStateFiles checks that a domain deletes the state files that no revision needs, as long as it publishes. It
// checks two kinds of files: files whose names have been below the orphan floor for a long time, and files whose names
// are so far ahead of the current time that the floor would not reach them. It skips worlds in which many requests
// fail: a collection starts over after each failure, and hardly ever finishes there.
func (o *oracle) checkStateFiles(f *followed) {
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
		if o.collectedSince(f, then) && then.at.After(f.rebuiltAt) {
			below = max(below, then.floor)
		}
	}
	if below != "" { // a collection begins only after the floor has risen by Policy.Orphans since the last collection
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
	// If a process wrote a base but another process published first, the files of this base may wait for the next
	// collection.
	if left > allowance+len(state.Declarations()) {
		o.violation("I-16 bounded work", "%d of %d state files of %s are old, and no revision needs them; an example is %s", left, all, f.domain, example)
	}
}

// collectedSince reports whether a collection must have finished since a time.
func (o *oracle) collectedSince(f *followed, then floorAt) bool {
	return o.w.now().Sub(then.at) >= o.slack() && f.manifest.Revision-then.revision >= enoughPublishes
}

// needed returns a function that reports whether a state file may still be needed: an existing or a pinned revision
// names the file, or the pin of a revision that names the file was deleted recently. The deleted pin may have kept the
// file in the last collection.
func (o *oracle) needed(f *followed, b manifest.Boundary) func(key string) bool {
	for object, err := range o.w.blobs.List(context.Background(), blob.ListOptions{Prefix: manifest.PinPrefix(f.domain)}) {
		if err == nil {
			for key := range o.pinned(f, object.Key) {
				f.pinned[key] = floorAt{at: o.w.now(), revision: f.manifest.Revision}
			}
		}
	}
	maps.DeleteFunc(f.pinned, func(_ string, last floorAt) bool { return o.collectedSince(f, last) })
	return func(key string) bool {
		_, pinned := f.pinned[key]
		named, ok := f.named[key]
		return pinned || ok && named.last > b.DeletedThrough
	}
}

// pinned returns the keys of the files that a pinned revision needs, including files that only an
// index of history names.
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
