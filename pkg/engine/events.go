package engine

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Bounds of a look into the ledger.
const (
	maxLookEntries = 50_000
	lookReaders    = 16
	lookChunk      = 1024
)

// Filter says which events are of interest.
type Filter struct {
	// RunID: those of this run; "": all.
	RunID string
	// TaskKey: of the run's tasks this one, and what concerns the run as a whole;
	// "": all.
	TaskKey string
	// Entry: those of this entry only.
	Entry string
	// Limit is how many events are given at most; 0: all that the bounds allow.
	Limit int
}

// Events reads the events of the ledger that a filter lets through, in the order
// of their entries; more says that there are others beyond the bounds. Run is that
// of the filter, or nil.
func Events(ctx context.Context, store blob.Store, d ids.Domain, run *state.Run, f Filter) (events []*Recorded, more bool, err error) {
	var names []string
	if f.Entry != "" {
		names = []string{f.Entry}
	} else if names, more, err = entriesOf(ctx, store, d, run, f); err != nil {
		return nil, false, err
	}
	for start := 0; start < len(names); start += lookChunk {
		found, err := look(ctx, store, d, names[start:min(start+lookChunk, len(names))], f)
		if err != nil {
			return nil, false, err
		}
		events = append(events, found...)
		if f.Limit > 0 && len(events) >= f.Limit {
			more = more || len(events) > f.Limit || start+lookChunk < len(names)
			return events[:f.Limit], more, nil
		}
	}
	return events, more, nil
}

// Recorded is an event and where it stands in the ledger.
type Recorded struct {
	*event.Envelope
	Entry   string
	GroupID string
	// Line is the event as it stands there.
	Line []byte
	// Err is why the line is no event; then there is no Envelope.
	Err *event.DecodeError
}

// entriesOf names the entries that may have events of the run: an entry's id is
// greater than the ids in it, and nothing comes long after the run's last event.
func entriesOf(ctx context.Context, store blob.Store, d ids.Domain, run *state.Run, f Filter) (names []string, more bool, err error) {
	after, until := f.RunID, ""
	if run != nil && run.State.Terminal() {
		until = ids.AtTime(run.CompletedAt.Add(state.ClosedAfter).Time()) // what comes later is late, and changes nothing
	}
	for name, err := range ledger.List(ctx, store, d, after) {
		if err != nil {
			return nil, false, err
		}
		if until != "" && name.Entry > until {
			break
		}
		if len(names) == maxLookEntries {
			return names, true, nil
		}
		names = append(names, name.Entry)
	}
	return names, false, nil
}

// look reads entries, several at once.
func look(ctx context.Context, store blob.Store, d ids.Domain, names []string, f Filter) ([]*Recorded, error) {
	found := make([][]*Recorded, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookReaders)
	for i, name := range names {
		g.Go(func() error {
			data, err := ledger.Read(ctx, store, ledger.Key(d, name))
			if err != nil {
				return fmt.Errorf("%w; `servo admin verify` checks the whole folder", err)
			}
			if f.RunID != "" && !bytes.Contains(data, []byte(f.RunID)) {
				return nil
			}
			found[i] = pick(name, data, f)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []*Recorded
	for _, events := range found {
		all = append(all, events...)
	}
	return all, nil
}

func pick(entry string, data []byte, f Filter) []*Recorded {
	var events []*Recorded
	for _, line := range event.DecodeEntry(data) {
		r := &Recorded{Envelope: line.Envelope, Entry: entry, Line: line.Bytes, Err: line.Err}
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

// concerns reports whether an event is about a run, and about a task of it or
// the run as a whole.
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
	case *event.LimitSet:
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

// Info is the event as an explanation has it.
func (r *Recorded) Info() EventInfo {
	if r.Envelope == nil {
		return EventInfo{Type: r.Err.Reason, EventID: r.Err.EventID, Entry: r.Entry, Group: r.GroupID, Summary: r.Err.Detail}
	}
	return EventInfo{
		Time: r.Time, Type: r.Payload.Type(), EventID: r.ID, Entry: r.Entry, Group: r.GroupID,
		Actor: r.Actor, Summary: summary(r.Payload),
	}
}

// summary is what an event says beyond its type and its task.
func summary(p event.Payload) string {
	switch p := p.(type) {
	case *event.RunTriggered:
		return p.Trigger.Type + " of " + some(p.RootAssets)
	case *event.PlanCreated:
		return count(int(p.TasksTotal), "task")
	case *event.RunCancelRequested:
		return p.Reason
	case *event.LimitSet:
		return fmt.Sprintf("%s %s: %d", p.Scope, p.Name, p.Slots)
	case *event.DispatchRequested:
		return fmt.Sprintf("%s attempt %d, generation %d", p.TaskKey, p.Attempt, p.Generation)
	case *event.DispatchEnqueued:
		return fmt.Sprintf("%s attempt %d as %s", p.TaskKey, p.Attempt, p.CloudTaskID)
	case *event.DispatchFailed:
		return fmt.Sprintf("%s attempt %d: %s", p.TaskKey, p.Attempt, problem(p.Error.Code, p.Error.Message))
	case *event.TimerRequested:
		return p.TimerID
	case *event.TimerEnqueued:
		return p.TimerID
	case *event.TimerFired:
		return p.TimerID
	case *event.TaskStarted:
		return fmt.Sprintf("%s attempt %d on %s", p.TaskKey, p.Attempt, orUnknown(p.WorkerID))
	case *event.TaskHeartbeat:
		return fmt.Sprintf("%s attempt %d %s", p.TaskKey, p.Attempt, p.Message)
	case *event.TaskFinished:
		text := fmt.Sprintf("%s attempt %d %s", p.TaskKey, p.Attempt, p.Outcome)
		if p.Error != nil {
			text += ": " + problem(p.Error.Code, p.Error.Message)
		}
		return text
	}
	return ""
}

// Explain says why a task of a run is in its state: see [Explain].
func (e *Engine) Explain(ctx context.Context, runID, task string) (*Explanation, error) {
	snap, err := e.Snapshots.Current(ctx)
	if err != nil {
		return nil, err
	}
	return ExplainTask(ctx, e.Store, snap, event.At(e.Clock.Now()), runID, task)
}

// ExplainTask finds a task and the events behind it, and explains it.
func ExplainTask(ctx context.Context, store blob.Store, snap *snapshot.Snapshot, now event.Time, runID, task string) (*Explanation, error) {
	s, run, err := FindRun(ctx, snap, runID)
	if err != nil {
		return nil, err
	}
	row, err := FindTask(s, run.RunID, task)
	if err != nil {
		return nil, err
	}
	recorded, more, err := Events(ctx, store, s.Domain, run, Filter{RunID: run.RunID, TaskKey: row.TaskKey})
	if err != nil {
		return nil, err
	}
	events := make([]EventInfo, len(recorded))
	for i, r := range recorded {
		events[i] = r.Info()
		events[i].Judge(snap.State)
	}
	x := Explain(s, row, now, events)
	x.EventsLeftOut = more
	return x, nil
}
