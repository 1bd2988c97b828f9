// Package fold applies ledger events to the state. No other package changes rows: controllers and workers append
// events, and the fold decides their effect. This package is not a stable API.
//
// The fold is a pure function of a state and a group of events. It uses no clock, randomness, I/O or floating-point
// numbers. Time comes from the events. Folding the same groups in the same order results in the same rows, regardless
// of how the groups are batched. Facts (starts, heartbeats, finishes) have the same outcomes in any order. The order
// of folding decides only races, for example which task gets the last slot of a limit, or what a timer decides. The
// fold sequence records this order.
//
// A group is folded as a whole or not at all: the fold checks all of its events before it changes the first row.
package fold

import (
	"cmp"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// These constants apply to every domain. Changing one changes the result of a replay.
const (
	// MaxCompactionLag is how old the projections may be when a timer fires. If they are older, the timer makes no
	// decision.
	MaxCompactionLag = 30 * time.Second
	// LagRetry is the delay before a timer fires again if the projections were too old.
	LagRetry = 10 * time.Second
	// LateCall is the maximum delay with which a call of the liveness timer closes attempts. If a call is later, the
	// whole system was probably asleep, down or disconnected, so that workers could not deliver heartbeats. The fold
	// then gives workers LateRetry to deliver a heartbeat. If the next call is about as late as this one (within
	// LateCall), the cause is a difference between clocks, and the next call may close attempts.
	LateCall  = 30 * time.Second
	LateRetry = 30 * time.Second
	// MaxLateCalls is the maximum number of consecutive late liveness calls that close no attempt. Without this limit,
	// a queue with varying delays could postpone all deadlines forever.
	MaxLateCalls = 5
	// DispatchDeadline is how long a queue task may exist without a start before the sweeper
	// inspects it.
	DispatchDeadline = 10 * time.Minute
	// MaxGenerations is how often an attempt may be dispatched again before it fails.
	MaxGenerations = 5
	// MaxGrantedAttempts is the maximum number of attempts that a task is granted for losses to infrastructure. Further
	// losses count against the task's retry policy.
	MaxGrantedAttempts = event.MaxGrantedAttempts
	// RunKeyTTL is how long a run key stays in use.
	RunKeyTTL = 30 * 24 * time.Hour
	// MaxRunAge is the maximum age of a run's id when the trigger of the run is appended. It limits how far the order
	// of run ids may differ from the order in which runs are triggered. A row of a partition leaves the live state when
	// only runs with greater ids can still write the partition. Without this limit, a run with a lesser id could be
	// triggered at any time, so the row could never leave.
	MaxRunAge = state.MaxRunAge
	// DefaultHeartbeatTimeoutSec is how long an attempt may run without a heartbeat before it is
	// closed.
	DefaultHeartbeatTimeoutSec = 300
	// DefaultCancelGraceSec is how long running tasks of a cancelled run may continue.
	DefaultCancelGraceSec = 30
)

// Reasons of dead letters. The other reasons are in package event.
const (
	ReasonWrongDomain = "WRONG_DOMAIN" // the event belongs to another tenant or workspace
	ReasonUnknownRun  = "UNKNOWN_RUN"  // the run does not exist yet; the event is folded when it appears
	ReasonUnknownTask = "UNKNOWN_TASK" // the task is not in the run's plan, or the plan is not known yet
)

// Error codes that the fold assigns to attempts and runs.
const (
	CodeHeartbeatTimeout = "HEARTBEAT_TIMEOUT"
	CodeTaskTimeout      = "TASK_TIMEOUT"
	CodeRunTimeout       = "RUN_TIMEOUT"
	CodeUndispatchable   = "UNDISPATCHABLE"
	CodePlanUnreadable   = "PLAN_UNREADABLE"
	CodeCancelled        = "CANCELLED"
	CodeSuperseded       = "SUPERSEDED"
	CodeCheckFailed      = "CHECK_FAILED"
	CodeChecksMissing    = "CHECKS_MISSING"
	CodeInvalidOutput    = "INVALID_OUTPUT"
)

// Error codes of tasks that are skipped because of their upstreams.
const (
	CodeUpstreamFailed  = "UPSTREAM_FAILED"  // an upstream failed, or was itself skipped because of a failure
	CodeUpstreamSkipped = "UPSTREAM_SKIPPED" // an upstream had nothing to do, and none failed
	// CodeUpstreamDegraded: the output of an upstream is degraded, and the task requires the quality of this output.
	CodeUpstreamDegraded = "UPSTREAM_DEGRADED"
)

// Error codes with which a worker reports a loss: an attempt that failed because of the infrastructure.
const (
	CodeWorkerInterrupted = "WORKER_INTERRUPTED"
	CodeStoreUnavailable  = "STORE_UNAVAILABLE"
)

// Group is a group of events with the data that the fold needs to apply it.
type Group struct {
	// Entry and ID identify the group in the ledger.
	Entry, ID string
	Events    []*event.Envelope
	Bytes     int64
	// Reason and Detail are set if the group cannot be read: they say why.
	Reason, Detail string
	// Plans contains the plans to which the events refer.
	Plans map[string]Plan
	// Closed contains those runs that the events name and that are in history.
	Closed []string
	// Revision is the manifest revision that will publish the result.
	Revision int64
	// Inputs is set in a rebuild without the recorded order, where events get new sequence numbers. The plan of a run,
	// and a command to mark partitions, contain the sequence number of the state that their writer saw. Inputs maps the
	// id of the run or command to the new number that corresponds to it.
	Inputs map[string]int64
	// Bare is set in a rebuild without the recorded order (`servo admin rebuild --bare`). Such a rebuild folds the
	// decisions of timers last, so a run may be folded before the decision that requested it.
	Bare bool
	// Proven means that other events prove that the group was originally folded, so the fold must not reject it because
	// of a conflict. A rebuild without the recorded order also sets Proven for every command to forget assets.
	Proven bool
}

// Plan is a fetched plan. Err is set if it could not be fetched or read.
type Plan struct {
	Tasks []event.TaskDef
	Err   string
}

// Result is the result of folding a group.
type Result struct {
	// Known means that the group was already folded or rejected. Nothing has changed.
	Known bool
	// Row is the group's row of ledger_entries.
	Row *state.Entry
	// Appeared contains the runs that the group created or whose plan it added. Dead letters that wait for these runs
	// can now be folded.
	Appeared []string
}

// folder folds one group.
type folder struct {
	st  *state.State
	ev  *event.Envelope
	seq int64
	// now is set while the events of the group are checked. It is the fold time that results when the events up to and
	// including ev are folded.
	now  event.Time
	plan map[string]Plan
	// inputs is [Group.Inputs].
	inputs map[string]int64
	bare   bool   // [Group.Bare]
	entry  string // [Group.Entry]

	ended []*state.Run // ended runs of schedules and chunks, for afterRuns
	// endedTasks and endedRuns are for reportTransitions.
	endedTasks []*state.Task
	endedRuns  []*state.Run
	runs       map[string]*state.Run // changed runs, written by flushRuns
	changed    bool
	appeared   []string
}

// Apply folds a group into st.
func Apply(st *state.State, g Group) Result {
	known := st.Entries.Get(state.Key2{A: g.Entry, B: g.ID})
	if known != nil && !known.Waits() {
		return Result{Known: true, Row: known}
	}
	f := &folder{st: st, plan: g.Plans, inputs: g.Inputs, bare: g.Bare, entry: g.Entry, runs: map[string]*state.Run{}}
	row := &state.Entry{
		Entry: g.Entry, Group: g.ID, Revision: g.Revision, FirstSeq: st.FoldSeq + 1,
		Timer: g.Reason == "" && event.HasFiredTimer(g.Events), Events: int32(len(g.Events)), Bytes: g.Bytes, //nolint:gosec // groups have at most 1,000 events
	}
	v := f.check(g)
	if known != nil && v.outcome == state.DeadLetter && v.reason == known.Reason && v.waitsFor == known.RunID {
		return Result{Known: true, Row: known} // the group still waits for the same run
	}
	if v.outcome == "" {
		v = f.events(g)
	} else {
		f.reject(v, g)
	}
	row.Outcome, row.Reason, row.Detail, row.RunID = v.outcome, v.reason, v.detail, v.waitsFor
	row.FoldedAt = st.FoldTime
	put(f, st.Entries, row)
	return Result{Row: row, Appeared: f.appeared}
}

// verdict is the outcome of an event. The zero verdict means that the outcome is not decided yet.
type verdict struct {
	outcome  state.EntryOutcome
	reason   string
	detail   string
	waitsFor string // a run, or ""
	// conflict is the row to write if another run has the run key of the group.
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

// events folds the events of a group in order, and then handles their consequences.
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
	f.afterEvents()
	if f.changed && result.outcome != state.Folded {
		return folded
	}
	return result
}

// reject advances the fold sequence past a group that is not folded, and records a conflict.
func (f *folder) reject(v verdict, g Group) {
	f.st.FoldSeq += max(1, int64(len(g.Events)))
	f.seq = f.st.FoldSeq
	if v.outcome != state.DeadLetter {
		f.st.FoldTime = f.now
	}
	if v.conflict != nil {
		put(f, f.st.Conflicts, v.conflict)
	}
}

func (f *folder) event(p event.Payload) verdict {
	switch p := p.(type) {
	case *event.RunTriggered:
		return f.runTriggered(p)
	case *event.PlanCreated:
		return f.planCreated(p)
	case *event.RunCancelRequested:
		return f.applyOnce(p.CommandKey, f.ev.ID, p.Fingerprint, func() verdict { return f.cancelRequested(p) })
	case *event.LimitSet:
		return f.limitSet(p)
	case *event.ProjectDeployed:
		return f.projectDeployed(p)
	case *event.QuarantineResolved:
		return f.applyOnce(p.CommandKey, p.CommandID, p.Fingerprint, func() verdict { return f.quarantineResolved(p) })
	case *event.PartitionsChanged:
		return f.applyOnce(p.CommandKey, p.CommandID, p.Fingerprint, func() verdict { return f.partitionsChanged(p) })
	case *event.PartitionsMarked:
		return f.partitionsMarked(p)
	case *event.RunRequested:
		return f.runRequested(p)
	case *event.RequestRefused:
		return f.requestRefused(p)
	case *event.SchedulesDefined:
		return f.schedulesDefined(p)
	case *event.CalendarAdvanced:
		return f.calendarAdvanced(p)
	case *event.AutomationCommand:
		return f.command(p)
	case *event.RevisionPinned:
		return f.revisionPinned(p)
	case *event.AssetsForgotten:
		return f.assetsForgotten(p)
	case *event.BackfillCreated:
		return f.backfillCreated(p)
	case *event.NotificationEnded:
		return f.notificationEnded(p)
	case *event.DeadlineJudged:
		return f.deadlineJudged(p)
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

// afterEvents admits tasks to free slots, releases requests of schedules whose runs have ended, and sets the timers
// of the domain.
func (f *folder) afterEvents() {
	if f.ev == nil {
		return
	}
	f.flushRuns()
	f.afterRuns()
	f.admit()
	f.flushRuns()
	f.reportTransitions()
	f.keepLiveness()
	f.keepWake()
}

// run returns a copy of a run's row. The caller may change the copy, and flushRuns writes it.
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

// flushRuns writes the changed runs.
func (f *folder) flushRuns() {
	keys := make([]string, 0, len(f.runs))
	for key := range f.runs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		run := f.runs[key]
		if run.State.Terminal() {
			f.noteEnd(run)
		}
		put(f, f.st.Runs, run)
	}
	clear(f.runs)
}

// noteEnd records an ended run, if the run's schedule, its request or the alert rules depend on the end.
func (f *folder) noteEnd(run *state.Run) {
	ofAutomation, alerting := run.ScheduleID != "" || run.RequestID != "", f.alerting()
	if !ofAutomation && !alerting {
		return
	}
	if old := f.st.Runs.Get(run.RunID); old != nil && old.State.Terminal() {
		return
	}
	if ofAutomation {
		f.ended = append(f.ended, run)
	}
	if alerting {
		f.endedRuns = append(f.endedRuns, run)
	}
}

// put sets all metadata of a row except Deleted, and writes the row.
func put[K, R comparable, P state.Row[K, R]](f *folder, t state.Table[K, R], row P) {
	m := row.RowMeta()
	m.Tenant, m.Workspace, m.Seq, m.Version = f.st.Domain.Tenant, f.st.Domain.Workspace, f.seq, ""
	if f.ev != nil {
		m.Version = f.ev.ID
	}
	t.Put(row)
	f.changed = true
}

// remove writes a tombstone.
func remove[K, R comparable, P state.Row[K, R]](f *folder, t state.Table[K, R], row P) {
	row.RowMeta().Deleted = true
	put(f, t, row)
}

// at returns the time of the current event.
func (f *folder) at() event.Time { return f.ev.Time }

func (f *folder) domain() ids.Domain { return f.st.Domain }

func orDefault[T comparable](v, fallback T) T { return cmp.Or(v, fallback) }
