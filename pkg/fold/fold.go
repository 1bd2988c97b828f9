// Package fold is the one place where state changes: it turns ledger events
// into rows. Controllers and workers propose; the fold disposes.
//
// It is a pure function of a state and a group of events: no clock, no
// randomness, no I/O, no floats. Time comes from the events. The same groups in
// the same order give the same rows, whatever the batches were; and facts
// (starts, finishes) give the same outcomes in any order. What races by nature
// (who is admitted first under a limit, what a timer decides) is decided by the
// order of folding, which the fold sequence records.
//
// A group is folded whole or not at all: everything that can be wrong with it is
// found before the first row changes.
package fold

import (
	"cmp"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Policy, the same for every domain. A change is a change of the fold, and so
// of what a replay gives.
const (
	// MaxCompactionLag is how old the projections may be that a timer acts on.
	MaxCompactionLag = 30 * time.Second
	// LagRetry is after how long a timer that met a lag comes again.
	LagRetry = 10 * time.Second
	// LateCall is how late a liveness call may be that is acted on. A later one
	// says that this system was away: asleep, down, cut off. Whoever could not be
	// heard meanwhile has LateRetry to give a sign of life. A call that is as late
	// again, to within LateCall, is acted on: the clocks differ by that much.
	LateCall  = 30 * time.Second
	LateRetry = 30 * time.Second
	// MaxLateCalls is how many late liveness calls in a row wait. A queue that delivers
	// each call late by another amount must not put off all deadlines for good.
	MaxLateCalls = 5
	// DispatchDeadline is how long a queue task may go without starting before
	// the sweeper looks into it.
	DispatchDeadline = 10 * time.Minute
	// MaxGenerations is how often one attempt is dispatched anew before it fails.
	MaxGenerations = 5
	// MaxGrantedAttempts is how many attempts of a task are granted for losses to
	// infrastructure. Further losses spend the attempts of the task's policy.
	MaxGrantedAttempts = event.MaxGrantedAttempts
	// RunKeyTTL is how long a run key is taken.
	RunKeyTTL = 30 * 24 * time.Hour
	// DefaultHeartbeatTimeoutSec is after how long without a sign of life an
	// attempt is given up.
	DefaultHeartbeatTimeoutSec = 300
	// DefaultCancelGraceSec is how long a cancelled task may take to end by itself.
	DefaultCancelGraceSec = 30
)

// Reasons of dead letters that the fold gives, beside those of package event: a
// closed list.
const (
	ReasonWrongDomain = "WRONG_DOMAIN" // another tenant or workspace
	ReasonUnknownRun  = "UNKNOWN_RUN"  // folded again when the run appears
	ReasonUnknownTask = "UNKNOWN_TASK" // the run's plan has no such task, or has not come
)

// Error codes of attempts and runs that the fold itself gives.
const (
	CodeHeartbeatTimeout = "HEARTBEAT_TIMEOUT"
	CodeTaskTimeout      = "TASK_TIMEOUT"
	CodeRunTimeout       = "RUN_TIMEOUT"
	CodeUndispatchable   = "UNDISPATCHABLE"
	CodePlanUnreadable   = "PLAN_UNREADABLE"
	CodeCancelled        = "CANCELLED"
	CodeSuperseded       = "SUPERSEDED"
)

// Error codes of tasks that are skipped because of their upstreams.
const (
	CodeUpstreamFailed  = "UPSTREAM_FAILED"  // one failed, or was itself skipped because of a failure
	CodeUpstreamSkipped = "UPSTREAM_SKIPPED" // one had nothing to do, and none failed
)

// Error codes of workers that the fold knows: the worker or its store was lost, not the task.
const (
	CodeWorkerInterrupted = "WORKER_INTERRUPTED"
	CodeStoreUnavailable  = "STORE_UNAVAILABLE"
)

// Group is what is folded at once.
type Group struct {
	// Entry and ID are where it stands in the ledger.
	Entry, ID string
	Events    []*event.Envelope
	Bytes     int64
	// Reason and Detail are set when the group cannot be read.
	Reason, Detail string
	// Plans are the tasks of plans that the events name by reference.
	Plans map[string]Plan
	// Closed are runs that the events name which are in history.
	Closed []string
	// Revision is the manifest revision that will publish the result.
	Revision int64
}

// Plan is a plan that was fetched, or why it could not be.
type Plan struct {
	Tasks []event.TaskDef
	Err   string
}

// Result says what folding a group came to.
type Result struct {
	// Known says that the group was dealt with before: nothing happened now.
	Known bool
	// Row is the group's row of ledger_entries.
	Row *state.Entry
	// Appeared are runs that now exist or have their plan: dead letters that
	// wait for them can be folded again.
	Appeared []string
}

// folder is one group being folded.
type folder struct {
	st   *state.State
	ev   *event.Envelope
	seq  int64
	now  event.Time // the fold time that the group's events lead to, while it is checked
	plan map[string]Plan

	runs     map[string]*state.Run // changed, put at the end of the group
	changed  bool
	appeared []string
}

// Apply folds a group into st.
func Apply(st *state.State, g Group) Result {
	known := st.Entries.Get(state.Key2{A: g.Entry, B: g.ID})
	if known != nil && !known.Waits() {
		return Result{Known: true, Row: known}
	}
	f := &folder{st: st, plan: g.Plans, runs: map[string]*state.Run{}}
	row := &state.Entry{
		Entry: g.Entry, Group: g.ID, Revision: g.Revision, FirstSeq: st.FoldSeq + 1,
		Events: int32(len(g.Events)), Bytes: g.Bytes, //nolint:gosec // groups have at most 1,000 events
	}
	v := f.check(g)
	if known != nil && v.outcome == state.DeadLetter && v.reason == known.Reason && v.waitsFor == known.RunID {
		return Result{Known: true, Row: known} // it waits for something that is still not there
	}
	if v.outcome == "" {
		v = f.events(g)
	} else {
		f.refuse(v, g)
	}
	row.Outcome, row.Reason, row.Detail, row.RunID = v.outcome, v.reason, v.detail, v.waitsFor
	row.FoldedAt = st.FoldTime
	put(f, &st.Entries, row)
	return Result{Row: row, Appeared: f.appeared}
}

// verdict is what an event came to. The zero verdict: not decided yet.
type verdict struct {
	outcome  state.EntryOutcome
	reason   string
	detail   string
	waitsFor string
	// conflict is the row that says why a run key refused the group.
	conflict *state.RunKeyConflict
}

func deadLetter(reason, detail string) verdict {
	return verdict{outcome: state.DeadLetter, reason: reason, detail: detail}
}

var (
	folded   = verdict{outcome: state.Folded}
	noChange = verdict{outcome: state.NoChange}
)

func stale(detail string) verdict { return verdict{outcome: state.Stale, detail: detail} }

// events folds the events of a group, one after the other, and what follows.
func (f *folder) events(g Group) verdict {
	result := noChange
	for _, e := range g.Events {
		f.st.FoldSeq++
		f.seq, f.ev = f.st.FoldSeq, e
		f.st.FoldTime = max(f.st.FoldTime, e.Time)
		if v := f.event(e.Payload); result.outcome == state.NoChange {
			result = v
		}
	}
	f.settle()
	if f.changed && result.outcome != state.Folded {
		return folded
	}
	return result
}

// refuse counts the events of a group that is not folded.
func (f *folder) refuse(v verdict, g Group) {
	f.st.FoldSeq += max(1, int64(len(g.Events)))
	f.seq = f.st.FoldSeq
	if v.outcome != state.DeadLetter {
		f.st.FoldTime = f.now
	}
	if v.conflict != nil {
		put(f, &f.st.Conflicts, v.conflict)
	}
}

func (f *folder) event(p event.Payload) verdict {
	switch p := p.(type) {
	case *event.RunTriggered:
		return f.runTriggered(p)
	case *event.PlanCreated:
		return f.planCreated(p)
	case *event.RunCancelRequested:
		return f.cancelRequested(p)
	case *event.LimitSet:
		return f.limitSet(p)
	case *event.DispatchRequested:
		return f.dispatchRequested(p)
	case *event.DispatchEnqueued:
		return f.dispatchEnqueued(p)
	case *event.DispatchFailed:
		return f.dispatchFailed(p)
	case *event.TimerRequested:
		return f.timerRequested(p)
	case *event.TimerEnqueued:
		return f.timerEnqueued(p)
	case *event.TimerFired:
		return f.timerFired(p)
	case *event.TaskStarted:
		return f.taskStarted(p)
	case *event.TaskHeartbeat:
		return f.taskHeartbeat(p)
	case *event.TaskFinished:
		return f.taskFinished(p)
	}
	panic("fold: no case for " + p.Type())
}

// settle does what follows from a group as a whole: free slots are given out, and
// the liveness timer is set.
func (f *folder) settle() {
	if f.ev == nil {
		return
	}
	f.flushRuns()
	f.admit()
	f.flushRuns()
	f.keepLiveness()
}

// run is a copy of a run's row to be changed; it is put at the end of the group.
func (f *folder) run(runID string) *state.Run {
	run, ok := f.runs[runID]
	if !ok {
		row := *f.st.Runs.Get(runID)
		run = &row
		f.runs[runID] = run
	}
	run.LastActivityAt = max(run.LastActivityAt, f.at())
	return run
}

// flushRuns puts the runs that were changed.
func (f *folder) flushRuns() {
	keys := make([]string, 0, len(f.runs))
	for key := range f.runs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		put(f, &f.st.Runs, f.runs[key])
	}
	clear(f.runs)
}

// put writes a row: it sets the row's metadata, except the mark of a tombstone, and marks the
// change.
func put[K, R comparable, P state.Row[K, R]](f *folder, t *state.Table[K, R, P], row P) {
	m := row.RowMeta()
	m.Tenant, m.Workspace, m.Seq, m.Version = f.st.Domain.Tenant, f.st.Domain.Workspace, f.seq, ""
	if f.ev != nil {
		m.Version = f.ev.ID
	}
	t.Put(row)
	f.changed = true
}

// remove writes a tombstone.
func remove[K, R comparable, P state.Row[K, R]](f *folder, t *state.Table[K, R, P], row P) {
	row.RowMeta().Deleted = true
	put(f, t, row)
}

// at is the time of the event being folded.
func (f *folder) at() event.Time { return f.ev.Time }

func (f *folder) domain() ids.Domain { return f.st.Domain }

func orDefault[T comparable](v, fallback T) T { return cmp.Or(v, fallback) }
