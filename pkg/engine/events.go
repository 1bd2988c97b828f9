package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits on reading the ledger.
const (
	maxReadEntries = 50_000
	parallelReads  = 16
	readChunk      = 1024
)

// Filter selects events.
type Filter struct {
	// RunID selects the events of a run; "": the events of all runs.
	RunID string
	// TaskKey selects the events of one task and those that concern the whole run. "" selects all events of the run.
	TaskKey string
	// Entry selects the events of one ledger entry.
	Entry string
	// Limit is the maximum number of returned events; 0: no maximum.
	Limit int
}

// Events returns the events of the ledger and the archive that match the filter, in the order of their entries. The
// parameter run is the row of the run that the filter names, or nil. The result more is true if a limit has truncated
// the result.
func Events(ctx context.Context, store blob.Store, d ids.Domain, run *state.Run, f Filter) (events []*RecordedEvent, more bool, err error) {
	l := &eventReader{entries: archive.NewReader(store, d), filter: f}
	if f.Entry != "" {
		l.names = []string{f.Entry}
		err = l.readNames(ctx)
	} else {
		more, err = l.all(ctx, entryRange(run, f))
	}
	if err != nil {
		return nil, false, err
	}
	if f.Limit > 0 && len(l.found) > f.Limit {
		return l.found[:f.Limit], true, nil
	}
	return l.found, more, nil
}

// RecordedEvent is an event with its position in the ledger.
type RecordedEvent struct {
	*event.Envelope
	Entry   string
	GroupID string
	// Line is the event as stored in the ledger.
	Line []byte
	// Err is set if the line is not a valid event. Envelope is then nil.
	Err *event.DecodeError
}

// entryRange returns the range of entries that may have events of the run. The range begins at the id of the run,
// because an entry's id is greater than all ids in the entry. For a run that has ended, the range ends at the time at
// which the run is closed, because later events of the run have no effect.
func entryRange(run *state.Run, f Filter) archive.Range {
	in := archive.Range{After: f.RunID, Most: maxReadEntries + 1}
	if run != nil && run.State.Terminal() {
		in.Until = ids.AtTime(run.CompletedAt.Add(state.ClosedAfter).Time())
	}
	return in
}

// eventReader reads matching events from ledger and archive.
type eventReader struct {
	entries *archive.Reader
	filter  Filter
	names   []string // the names of entries still to be read
	found   []*RecordedEvent
}

// all reads the entries of a range. It stops when it has found more events than the limit of the filter, or after
// maxReadEntries entries.
func (l *eventReader) all(ctx context.Context, in archive.Range) (more bool, err error) {
	n := 0
	for e, err := range l.entries.List(ctx, in) {
		if err != nil {
			return false, err
		}
		if n++; n > maxReadEntries {
			more = true
			break
		}
		if e.Data == nil {
			l.names = append(l.names, e.ID)
		}
		if e.Data != nil || len(l.names) == readChunk {
			if err := l.readNames(ctx); err != nil {
				return false, err
			}
		}
		if e.Data != nil {
			l.found = append(l.found, l.pick(e.ID, e.Data)...)
		}
		if l.filter.Limit > 0 && len(l.found) > l.filter.Limit {
			return true, nil
		}
	}
	return more, l.readNames(ctx)
}

// readNames reads the pending entries concurrently.
func (l *eventReader) readNames(ctx context.Context) error {
	names := l.names
	l.names = nil
	found := make([][]*RecordedEvent, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, name := range names {
		g.Go(func() error {
			data, err := l.entries.Read(ctx, name)
			if err != nil {
				return fmt.Errorf("%w; `servo admin verify` checks the whole folder", err)
			}
			found[i] = l.pick(name, data)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	l.found = append(l.found, slices.Concat(found...)...)
	return nil
}

func (l *eventReader) pick(entry string, data []byte) []*RecordedEvent {
	if l.filter.RunID != "" && !bytes.Contains(data, []byte(l.filter.RunID)) {
		return nil
	}
	return pick(entry, data, l.filter)
}

func pick(entry string, data []byte, f Filter) []*RecordedEvent {
	var events []*RecordedEvent
	for _, line := range event.DecodeEntry(data) {
		r := &RecordedEvent{Envelope: line.Envelope, Entry: entry, Line: line.Bytes, Err: line.Err}
		if line.Envelope == nil {
			if f.RunID == "" {
				r.GroupID = fmt.Sprintf("line-%d", line.Number)
				events = append(events, r)
			}
			continue
		}
		r.GroupID = line.Envelope.GroupID()
		if f.RunID == "" || concerns(line.Envelope.Payload, f.RunID, f.TaskKey) {
			events = append(events, r)
		}
	}
	return events
}

// concerns reports whether an event belongs to a run. If taskKey is not "", the event must belong to this task, or
// concern the whole run.
func concerns(p event.Payload, runID, taskKey string) bool {
	of := func(run, task string) bool { return run == runID && (taskKey == "" || task == taskKey) }
	timer := func(id string) bool {
		_, rest, _ := strings.Cut(strings.TrimPrefix(id, "timer:"), ":")
		if taskKey == "" {
			return strings.HasPrefix(rest, runID+":")
		}
		return strings.HasPrefix(rest, runID+":"+taskKey+":")
	}
	switch p := p.(type) {
	case *event.RunTriggered:
		return p.RunID == runID
	case *event.PlanCreated:
		return p.RunID == runID
	case *event.RunCancelRequested:
		return p.RunID == runID
	case *event.LimitSet, *event.ProjectDeployed, *event.QuarantineResolved, *event.PartitionsChanged, *event.PartitionsMarked,
		*event.RunRequested, *event.RequestRefused, *event.SchedulesDefined, *event.CalendarAdvanced, *event.AutomationCommand, *event.RevisionPinned,
		*event.AssetsForgotten, *event.BackfillCreated, *event.NotificationEnded, *event.DeadlineJudged:
		return false
	case *event.DispatchRequested:
		return of(p.RunID, p.TaskKey)
	case *event.DispatchEnqueued:
		return of(p.RunID, p.TaskKey)
	case *event.DispatchFailed:
		return of(p.RunID, p.TaskKey)
	case *event.TimerRequested:
		return timer(p.TimerID)
	case *event.TimerEnqueued:
		return timer(p.TimerID)
	case *event.TimerFired:
		return timer(p.TimerID)
	case *event.TaskStarted:
		return of(p.RunID, p.TaskKey)
	case *event.TaskHeartbeat:
		return of(p.RunID, p.TaskKey)
	case *event.TaskFinished:
		return of(p.RunID, p.TaskKey)
	}
	return false
}

// Info converts the event for a [view.Explanation].
func (r *RecordedEvent) Info() view.EventInfo {
	if r.Envelope == nil {
		return view.EventInfo{Type: r.Err.Reason, EventID: r.Err.EventID, Entry: r.Entry, Group: r.GroupID, Summary: r.Err.Detail}
	}
	return view.EventInfo{
		Time: r.Time, Type: r.Payload.Type(), EventID: r.ID, Entry: r.Entry, Group: r.GroupID,
		Actor: r.Actor, Summary: summary(r.Payload),
	}
}

// summary returns the main content of an event as text.
func summary(p event.Payload) string {
	switch p := p.(type) {
	case *event.RunTriggered:
		return p.Trigger.Type + " of " + view.Some(p.RootAssets)
	case *event.PlanCreated:
		return view.Count(int(p.TasksTotal), "task")
	case *event.RunCancelRequested:
		return p.Reason
	case *event.LimitSet:
		if p.Remove {
			return fmt.Sprintf("%s %s: limit removed", p.Scope, p.Name)
		}
		return fmt.Sprintf("%s %s: %d", p.Scope, p.Name, p.Slots)
	case *event.ProjectDeployed:
		return fmt.Sprintf("%s of release %.12s", p.Kind, p.Release)
	case *event.QuarantineResolved:
		return fmt.Sprintf("%s %s%s: %s", p.Decision, p.Asset, p.Partition, p.Reason)
	case *event.PartitionsChanged:
		return fmt.Sprintf("%s: %d added, %d removed", p.KeySet, len(p.Add), len(p.Remove))
	case *event.PartitionsMarked:
		return fmt.Sprintf("%s of %s %s: %s", view.Count(len(p.Partitions), "partition"), p.Asset, p.Mark, p.Reason)
	case *event.RunRequested:
		return fmt.Sprintf("at %s: %s", p.At, view.Some(p.Run.Assets))
	case *event.RequestRefused:
		return fmt.Sprintf("%s: %s", p.RequestID, view.Problem(p.Error.Code, p.Error.Message))
	case *event.SchedulesDefined:
		return fmt.Sprintf("%d defined, %d removed", len(p.Set), len(p.Remove))
	case *event.CalendarAdvanced:
		return view.Count(len(p.Items), "schedule")
	case *event.AutomationCommand:
		return fmt.Sprintf("%s %s %s", p.Verb, p.Target, p.Name)
	case *event.BackfillCreated:
		return fmt.Sprintf("%s of %s", view.Count(len(p.Sizes), "chunk"), view.Some(p.Assets))
	case *event.RevisionPinned:
		return fmt.Sprintf("revision %d until %s: %s", p.Revision, p.Until, p.Reason)
	case *event.AssetsForgotten:
		return fmt.Sprintf("%s: %s", view.Some(p.Assets), p.Reason)
	case *event.DeadlineJudged:
		return view.Count(len(p.Items), "deadline")
	case *event.NotificationEnded:
		return fmt.Sprintf("%s, try %d: %s %s", p.NotificationID, p.Try, p.Outcome, p.Error)
	case *event.DispatchRequested:
		return fmt.Sprintf("%s attempt %d, generation %d", ids.ReadableKey(p.TaskKey), p.Attempt, p.Generation)
	case *event.DispatchEnqueued:
		return fmt.Sprintf("%s attempt %d as %s", ids.ReadableKey(p.TaskKey), p.Attempt, p.QueueTaskName)
	case *event.DispatchFailed:
		return fmt.Sprintf("%s attempt %d: %s", ids.ReadableKey(p.TaskKey), p.Attempt, view.Problem(p.Error.Code, p.Error.Message))
	case *event.TimerRequested:
		return p.TimerID
	case *event.TimerEnqueued:
		return p.TimerID
	case *event.TimerFired:
		return p.TimerID
	case *event.TaskStarted:
		return fmt.Sprintf("%s attempt %d on %s", ids.ReadableKey(p.TaskKey), p.Attempt, cmp.Or(p.WorkerID, "an unnamed worker"))
	case *event.TaskHeartbeat:
		return fmt.Sprintf("%s attempt %d %s", ids.ReadableKey(p.TaskKey), p.Attempt, p.Message)
	case *event.TaskFinished:
		text := fmt.Sprintf("%s attempt %d %s", ids.ReadableKey(p.TaskKey), p.Attempt, p.Outcome)
		if p.Error != nil {
			text += ": " + view.Problem(p.Error.Code, p.Error.Message)
		}
		return text
	}
	return ""
}

// Judge sets the outcome of each event whose group was folded. It ignores damaged history, which `servo admin verify`
// reports.
func Judge(ctx context.Context, snap *snapshot.Snapshot, events []view.EventInfo) error {
	keys := make([]state.Key2, len(events))
	for i, e := range events {
		keys[i] = state.Key2{A: e.Entry, B: e.Group}
	}
	rows, err := snap.Groups(ctx, keys)
	if err != nil && !manifest.Damaged(err) {
		return err
	}
	for i, key := range keys {
		if row := rows[key]; row != nil {
			events[i].Outcome, events[i].Reason = row.Outcome, strings.TrimSpace(row.Reason+" "+row.Detail)
		}
	}
	return nil
}

// ExplainTask finds a task and its events, and explains its state. Without a run, it explains the task in the newest
// run that has the task.
func ExplainTask(ctx context.Context, store blob.Store, snap *snapshot.Snapshot, now event.Time, runID, task string) (*view.Explanation, error) {
	return explainTask(ctx, store, snap, now, runID, task, false)
}

// ExplainPastTask is [ExplainTask] for an earlier revision. It omits events that were folded after that revision.
func ExplainPastTask(ctx context.Context, store blob.Store, snap *snapshot.Snapshot, now event.Time, runID, task string) (*view.Explanation, error) {
	return explainTask(ctx, store, snap, now, runID, task, true)
}

func explainTask(
	ctx context.Context, store blob.Store, snap *snapshot.Snapshot, now event.Time, runID, task string, past bool,
) (*view.Explanation, error) {
	s, row, err := FindTaskAnywhere(ctx, snap, runID, task)
	if err != nil {
		return nil, err
	}
	run := s.Runs.Get(row.RunID)
	recorded, more, err := Events(ctx, store, s.Domain, run, Filter{RunID: run.RunID, TaskKey: row.TaskKey})
	if err != nil {
		return nil, err
	}
	events := make([]view.EventInfo, len(recorded))
	for i, r := range recorded {
		events[i] = r.Info()
	}
	if err := Judge(ctx, snap, events); err != nil {
		return nil, err
	}
	if past {
		events = slices.DeleteFunc(events, func(e view.EventInfo) bool { return e.Outcome == "" })
	}
	x := view.Explain(s, row, now, events)
	x.EventsLeftOut = more
	if x.Incomplete, err = IncompleteInputs(ctx, store, s, run, row); err != nil && !errors.Is(err, blob.ErrNotFound) {
		x.Incomplete = []string{"not known: " + err.Error()} // the rest of the explanation is valid
	}
	return x, nil
}
