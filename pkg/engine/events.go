package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
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

// Events reads the events of ledger and archive that a filter lets through, in the
// order of their entries; more says that there are others beyond the bounds. Run is
// that of the filter, or nil.
func Events(ctx context.Context, store blob.Store, d ids.Domain, run *state.Run, f Filter) (events []*Recorded, more bool, err error) {
	l := &looking{entries: archive.NewReader(store, d), filter: f}
	if f.Entry != "" {
		l.names = []string{f.Entry}
		err = l.readNames(ctx)
	} else {
		more, err = l.all(ctx, rangeOf(run, f))
	}
	if err != nil {
		return nil, false, err
	}
	if f.Limit > 0 && len(l.found) > f.Limit {
		return l.found[:f.Limit], true, nil
	}
	return l.found, more, nil
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

// rangeOf is where the entries are that may have events of the run: an entry's id is
// greater than the ids in it, and nothing comes long after the run's last event.
func rangeOf(run *state.Run, f Filter) archive.Range {
	in := archive.Range{After: f.RunID, Most: maxLookEntries + 1}
	if run != nil && run.State.Terminal() {
		in.Until = ids.AtTime(run.CompletedAt.Add(state.ClosedAfter).Time()) // what comes later is late, and changes nothing
	}
	return in
}

// looking is a look into ledger and archive.
type looking struct {
	entries *archive.Reader
	filter  Filter
	names   []string // of entries that are yet to be read
	found   []*Recorded
}

// all looks at the entries of a range, as far as the bounds allow.
func (l *looking) all(ctx context.Context, in archive.Range) (more bool, err error) {
	n := 0
	for e, err := range l.entries.List(ctx, in) {
		if err != nil {
			return false, err
		}
		if n++; n > maxLookEntries {
			more = true
			break
		}
		if e.Data == nil {
			l.names = append(l.names, e.ID)
		}
		if e.Data != nil || len(l.names) == lookChunk {
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

// readNames reads the entries that are yet to be read, several at once.
func (l *looking) readNames(ctx context.Context) error {
	names := l.names
	l.names = nil
	found := make([][]*Recorded, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookReaders)
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

func (l *looking) pick(entry string, data []byte) []*Recorded {
	if l.filter.RunID != "" && !bytes.Contains(data, []byte(l.filter.RunID)) {
		return nil
	}
	return pick(entry, data, l.filter)
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
		if p.Remove {
			return fmt.Sprintf("%s %s: limit removed", p.Scope, p.Name)
		}
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

// ExplainTask finds a task and the events behind it, and explains it. Without a run it is
// the task of the newest run that has it.
func ExplainTask(ctx context.Context, store blob.Store, snap *snapshot.Snapshot, now event.Time, runID, task string) (*Explanation, error) {
	s, row, err := FindTaskAnywhere(ctx, snap, runID, task)
	if err != nil {
		return nil, err
	}
	run := s.Runs.Get(row.RunID)
	recorded, more, err := Events(ctx, store, s.Domain, run, Filter{RunID: run.RunID, TaskKey: row.TaskKey})
	if err != nil {
		return nil, err
	}
	events := make([]EventInfo, len(recorded))
	for i, r := range recorded {
		events[i] = r.Info()
	}
	if err := Judge(ctx, snap, events); err != nil {
		return nil, err
	}
	x := Explain(s, row, now, events)
	x.EventsLeftOut = more
	if x.Incomplete, err = IncompleteInputs(ctx, store, s, run, row); err != nil && !errors.Is(err, blob.ErrNotFound) {
		x.Incomplete = []string{"not known: " + err.Error()} // the rest of the explanation holds
	}
	return x, nil
}
