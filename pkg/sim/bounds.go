package sim

import (
	"context"
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
	calmSlack = 15 * time.Minute
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
	if o.w.cfg.Faults == (Faults{}) {
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

// liveRows checks, when a base was written, that entries have left the live state that
// are old enough.
func (o *oracle) liveRows(f *followed, m *manifest.Manifest) {
	if f.manifest == nil || f.manifest.Lineage != m.Lineage || m.BaseSnapshot.ID == f.manifest.BaseSnapshot.ID || o.disturbed(f) {
		return
	}
	since := o.w.now().Add(-time.Duration(o.w.cfg.KeepEntries)*time.Minute - o.slack())
	rows, most := int(m.RowCounts["ledger_entries"]), some+len(f.ahead)+f.linesSince(since)
	if rows > most {
		o.violation("I-16 bounded work", "revision %d of %s has %d live rows of entries, and at most %d are young", m.Revision, f.domain, rows, most)
	}
}

// listing checks how many entries a barrier has to list. They are counted back from the
// last append: where nothing is appended nobody lists.
func (o *oracle) listing(f *followed) {
	if len(f.lines) == 0 {
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
	since := f.lines[len(f.lines)-1].at.Add(-o.slack())
	if most := some + len(f.ahead) + f.entriesSince(since); listed > most {
		o.violation("I-16 bounded work", "a barrier of %s lists %d entries, and at most %d are young", f.domain, listed, most)
	}
}

// lateness checks that nothing waits for much longer than it should: retries, timeouts
// and dispatches.
func (o *oracle) lateness(f *followed) {
	late := event.At(o.w.now().Add(-o.slack()))
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

// onePage is how many objects a page has in a world where a listing takes one request.
const onePage = 1000

// stateFiles checks that files that no revision needs are deleted, as long as the domain
// publishes. It looks away where a listing takes many requests and each may be refused:
// collection then hardly ever comes to its end.
func (o *oracle) stateFiles(f *followed) {
	if o.w.cfg.PageSize < onePage && o.w.cfg.Faults != (Faults{}) {
		return
	}
	ctx := context.Background()
	b, _, err := f.manifests.Boundary(ctx)
	if err != nil {
		return
	}
	pinned := map[string]bool{}
	for object, err := range o.w.blobs.List(ctx, blob.ListOptions{Prefix: manifest.PinPrefix(f.domain)}) {
		if err != nil {
			return
		}
		for file := range o.pinned(f, object.Key) {
			pinned[file] = true
		}
	}
	young := f.manifest.PublishedAt.Time().Add(-o.slack() - o.w.cfg.keep())
	left, all := 0, 0
	for object, err := range o.w.blobs.List(ctx, blob.ListOptions{Prefix: manifest.StatePrefix(f.domain)}) {
		if err != nil {
			return
		}
		all++
		named, ok := f.named[object.Key]
		needed := ok && named.last > b.DeletedThrough || pinned[object.Key]
		if !needed && object.Updated.Before(young) {
			left++
		}
	}
	if left > some {
		o.violation("I-16 bounded work", "%d of %d state files of %s are old and needed by no revision", left, all, f.domain)
	}
}

// pinned yields the keys of the files that a pinned revision names.
func (o *oracle) pinned(f *followed, key string) map[string]bool {
	files := map[string]bool{}
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if err != nil {
		return files
	}
	for part := range strings.SplitSeq(string(data), `"`) {
		if strings.HasPrefix(part, manifest.StatePrefix(f.domain)) {
			files[part] = true
		}
	}
	return files
}
