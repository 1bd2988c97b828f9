package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A writer of the ledger gives up the name of an entry when abandonedAsk has passed since the first request with this
// name, or when abandonedName has passed since the time in the name. It then appends the same events under another
// name.
const (
	abandonedAsk  = 30 * time.Second
	abandonedName = 60 * time.Second
)

// waiting is an entry of the ledger that no revision records yet.
type waiting struct {
	entry string
	nth   int  // position among the domain's entries, in the order in which they became durable
	timer bool // the entry records that a timer fired
}

// noteEntry updates the oracle for a new ledger entry.
func (o *oracle) noteEntry(key string) {
	d, entry, err := ledger.ParseKey(key)
	if err != nil {
		o.violation("ledger", "%v", err)
		return
	}
	f := o.domains[d]
	f.entries++
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if err != nil {
		o.violation("ledger", "%s: %v", key, err)
		return
	}
	f.durable[entry] = blob.CRC32C(data)
	f.noteLines(o.w.now(), bytes.Count(data, []byte("\n")))
	if _, rushed := o.w.rushed.Load(entry); rushed || ids.Time(entry).Sub(o.w.now()) > ids.MaxAhead {
		o.w.fault("entry far ahead")
		f.ahead[entry] = true
	} else if o.w.cfg.Faults.Leap > 0 && o.claimsAhead(entry, data) {
		f.ahead[entry] = false
	}
	// A search in the text suffices: no name in a world contains the name of an event type.
	has := func(p event.Payload) bool { return bytes.Contains(data, []byte(p.Type())) }
	if has((*event.RunCancelRequested)(nil)) || has((*event.DispatchRequested)(nil)) {
		for _, group := range event.Groups(event.DecodeEntry(data)) {
			for _, e := range group.Events {
				o.checkRequest(f, e.Payload)
			}
		}
	}
	if has((*event.RunTriggered)(nil)) {
		f.noteTriggers(entry, data)
	}
	if has((*event.ProjectDeployed)(nil)) {
		f.noteDeployments(data)
	}
	if has((*event.QuarantineResolved)(nil)) {
		f.noteApprovals(data)
	}
	if has((*event.LimitSet)(nil)) {
		f.noteLimits(entry, data)
	}
	if has((*event.PartitionsChanged)(nil)) {
		f.noteKeys(entry, data)
	}
	if has((*event.PartitionsMarked)(nil)) {
		f.noteMarks(entry, data)
	}
	if has((*event.AssetsForgotten)(nil)) {
		f.noteForgotten(entry, data)
	}
	prompt := o.w.now().Sub(o.w.firstCreate[key].at) <= abandonedAsk
	if !prompt || o.w.now().Sub(ids.Time(entry)) >= abandonedName {
		f.abandoned[entry] = prompt
		return
	}
	f.waiting = append(f.waiting, waiting{entry, f.entries, has((*event.TimerFired)(nil))})
}

// claimsAhead reports whether an entry contains a time that is far in the future. Such a time shows that the clock of a
// client was wrong, even if the clock was right again when the client appended the entry.
func (o *oracle) claimsAhead(entry string, data []byte) bool {
	return slices.ContainsFunc(event.Groups(event.DecodeEntry(data)), func(g event.Group) bool {
		at, _ := event.Latest(entry, g.Events)
		return at.Sub(o.w.now()) > ids.MaxAhead
	})
}

// After a task has been in the queue for longQueued, every sweep sees it there and must not request another dispatch.
// Clock skew and slow writes delay a sweep by less than longQueued.
const longQueued = 8 * time.Minute

// checkRequest handles a new event of the ledger. If the event requests a cancel, checkRequest remembers the run. If
// the event requests a second dispatch of a task, checkRequest reports a violation if the task has been in the queue
// for longQueued.
func (o *oracle) checkRequest(f *followed, p event.Payload) {
	if p, ok := p.(*event.RunCancelRequested); ok {
		f.cancelled[p.RunID] = true
	}
	if p, ok := p.(*event.DispatchRequested); ok {
		o.redispatched(f, p)
	}
}

func (o *oracle) redispatched(f *followed, p *event.DispatchRequested) {
	row := f.state.Outbox.Get(p.DispatchID)
	if row == nil || row.AttemptID != p.AttemptID || row.Generation+1 != p.Generation {
		return // the request is stale: the fold rejects it
	}
	for id, t := range o.w.queue.waiting {
		if strings.HasSuffix(id, "/"+row.QueueTaskName) && o.w.now().Sub(t.since) >= longQueued {
			o.violation("work is bounded", "task %s of run %s is dispatched again, although the queue has had it for %s",
				p.TaskKey, p.RunID, o.w.now().Sub(t.since))
		}
	}
}

// checkRecorded tracks which entries a revision records. It checks that the decision of a timer is folded after every
// fact that was durable before the timer fired. Only a rebuild may reorder the two.
func (o *oracle) checkRecorded(f *followed, rebuilt bool) {
	var left, now []waiting
	for _, w := range f.waiting {
		if lastSeq(f.state, w.entry) < 0 {
			left = append(left, w)
		} else {
			now = append(now, w)
		}
	}
	f.waiting = left
	o.checkBatchSize(f, now, rebuilt)
	for _, w := range left {
		if !rebuilt && w.entry < f.manifest.Watermarks.CompleteThrough {
			o.violation("I-15 nothing is lost", "revision %d of %s says that the ledger is folded through %s, but has not folded entry %s",
				f.manifest.Revision, f.domain, f.manifest.Watermarks.CompleteThrough, w.entry)
			return
		}
	}
	for _, timer := range now {
		if !timer.timer || rebuilt || isRefused(f.state, timer.entry) {
			continue
		}
		for _, w := range left {
			if !w.timer && w.nth < timer.nth {
				o.violation("INV-9 timers respect freshness", "entry %s, in which a timer fired, is folded, but the older entry %s is not", timer.entry, w.entry)
				return
			}
		}
		decided := lastSeq(f.state, timer.entry)
		for _, w := range now {
			if !w.timer && w.nth < timer.nth && decided > 0 && lastSeq(f.state, w.entry) > decided {
				o.violation("INV-9 timers respect freshness", "entry %s, in which a timer fired, is folded before the older entry %s", timer.entry, w.entry)
				return
			}
		}
	}
}

// checkAnswer checks each answer of a compactor. When a compactor answers, a published revision must record every
// announced entry, unless the answer lists the entry as unreadable.
func (o *oracle) checkAnswer(p *process, body, answer []byte) {
	var result compactor.Result
	_ = json.Unmarshal(answer, &result) // ignore the error: some answers are not results
	var direct struct {
		Tenant, Workspace string
		Entries           []string
	}
	keys := []string{}
	if err := json.Unmarshal(body, &direct); err == nil && len(direct.Entries) > 0 {
		for _, entry := range direct.Entries {
			keys = append(keys, ledger.Key(ids.Domain{Tenant: direct.Tenant, Workspace: direct.Workspace}, entry))
		}
	} else if key, err := remote.NotifiedObject(bytes.NewReader(body)); err == nil {
		keys = append(keys, key)
	}
	for _, key := range keys {
		d, entry, err := ledger.ParseKey(key)
		f := o.domains[d]
		if err != nil || f == nil || f.broken || lastSeq(f.state, entry) >= 0 || f.dropped[entry] || slices.Contains(result.Unreadable, entry) {
			continue
		}
		if _, late := f.abandoned[entry]; late && entry < f.cut { // checkEntries checks this entry at the end
			continue
		}
		o.violation("I-15 nothing is lost", "%s acknowledges entry %s of %s, which no revision records", p.id, entry, d)
	}
}

// checkBatchSize checks that a revision records no more entries than a batch may have. Entries with fired timers are
// not counted, because all of them wait for the last batch. Rebuilds have no batches.
func (o *oracle) checkBatchSize(f *followed, now []waiting, rebuilt bool) {
	most := o.w.cfg.MaxBatch
	if most == 0 || rebuilt {
		return
	}
	facts := 0
	for _, w := range now {
		if !w.timer {
			facts++
		}
	}
	if facts >= most {
		o.w.fault("batch at its limit")
	}
	if facts > most {
		o.violation("I-16 bounded work", "revision %d of %s records %d entries, but a batch has at most %d", f.manifest.Revision, f.domain, facts, most)
	}
}

// isRefused reports whether all groups of an entry are dead letters, for example because an operator has skipped the
// entry. The timers in such an entry have decided nothing.
func isRefused(s *state.State, entry string) bool {
	all := true
	s.Entries.Ascend(state.Key2{A: entry}, func(row *state.Entry) bool {
		if row.Entry == entry {
			all = all && row.Outcome == state.DeadLetter
		}
		return row.Entry == entry && all
	})
	return all
}

// lastSeq returns the greatest sequence number at which a group of an entry begins. It returns 0 if no group changed
// anything, and -1 if the entry is not recorded.
func lastSeq(s *state.State, entry string) int64 {
	last := int64(-1)
	s.Entries.Ascend(state.Key2{A: entry}, func(row *state.Entry) bool {
		if row.Entry != entry {
			return false
		}
		last = max(last, 0)
		if row.Outcome == state.Folded {
			last = max(last, row.FirstSeq)
		}
		return true
	})
	return last
}

// mayBeDead reports whether an entry may be a dead letter. This is so if an operator has skipped the entry, or if an
// older build refused the entry and the entry can no longer be read.
func (o *oracle) mayBeDead(f *followed, row *state.Entry) bool {
	switch row.Reason {
	case compactor.ReasonSkipped, event.ReasonClockAhead:
		return o.w.skipped[row.Entry]
	case event.ReasonUnsupported:
		return o.w.unreadable(ledger.Key(f.domain, row.Entry)) != nil
	}
	return false
}

// noteTriggers remembers which triggers in a ledger entry start the run of a request.
func (f *followed) noteTriggers(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.RunTriggered); ok && p.RequestID != "" {
				f.triggers[p.RunID] = append(f.triggers[p.RunID], state.Key2{A: entry, B: group.ID})
			}
		}
	}
}

// neverRan reports whether a row is a command about a run that does not exist after a rebuild from the bare ledger.
// The rebuild refused the run because it decided that the run's request had already ended. So the command waits
// forever for a run that does not exist.
func (f *followed) neverRan(row *state.Entry) bool {
	triggers := f.triggers[row.RunID]
	return f.unordered && row.Reason == fold.ReasonUnknownRun && len(triggers) > 0 && !slices.ContainsFunc(triggers, func(key state.Key2) bool {
		trigger := f.state.Entries.Get(key)
		return trigger == nil || trigger.Outcome != state.Stale
	})
}

// checkEntries checks that every entry of the ledger is recorded. A late entry may be missing if its writer appended
// the same events again, died before it could do so, or reported to its callers that the result is unknown.
func (o *oracle) checkEntries(f *followed) {
	recorded := map[string]bool{}
	for row := range f.state.Entries.All {
		recorded[row.Entry] = true
		if o.mayBeDead(f, row) {
			continue
		}
		refused := row.Outcome == state.DeadLetter && row.Reason == event.ReasonClockAhead
		must, may := f.ahead[row.Entry]
		if must && !refused || refused && !may {
			o.violation("clocks", "group %s of entry %s is %s %s; the whole entry is far ahead: %t", row.Group, row.Entry, row.Outcome, row.Reason, must)
		} else if row.Outcome == state.DeadLetter && !refused && !f.neverRan(row) {
			o.violation("I-15 nothing is lost", "group %s of entry %s is a dead letter: %s %s", row.Group, row.Entry, row.Reason, row.Detail)
		}
	}
	folded, lost := map[uint32]bool{}, map[string]uint32{}
	for entry, crc := range o.listedEntries(f) {
		if recorded[entry] {
			folded[crc] = true
		} else {
			lost[entry] = crc
		}
	}
	for _, entry := range slices.Sorted(maps.Keys(lost)) {
		if !folded[lost[entry]] && !o.excused(f, entry, lost[entry]) {
			o.violation("I-15 nothing is lost", "entry %s of %s was never folded", entry, f.domain)
		}
	}
}

func (o *oracle) excused(f *followed, entry string, crc uint32) bool {
	prompt, late := f.abandoned[entry]
	_, failed := o.w.failed.Load(crc)
	return late && (!prompt || failed || o.w.firstCreate[ledger.Key(f.domain, entry)].by.fell)
}
