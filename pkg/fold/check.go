package fold

import (
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checked records what the already checked events of a group will create: runs, plans, run keys, retries and so on. The
// next event is checked as if these objects existed.
type checked struct {
	runs     map[string]bool
	plans    map[string]*event.PlanCreated
	keys     map[string]*state.RunKey
	retries  map[string]string // the new retry of each chain; the key is the first run of the chain
	deployed *event.ProjectDeployed
	added    state.KeySet // new keys, counted twice if two events add them
	marked   int          // new marks, counted twice if two events set them
	pinned   int          // new pins, counted twice if two events set them
	// backfills is the number of new backfills, counted twice if two events create them.
	backfills int
}

func newChecked() *checked {
	return &checked{
		runs: map[string]bool{}, plans: map[string]*event.PlanCreated{}, keys: map[string]*state.RunKey{},
	}
}

// check returns a verdict if a group cannot be folded. It changes no rows.
func (f *folder) check(g Group) verdict {
	if g.Reason != "" {
		return deadLetter(g.Reason, g.Detail)
	}
	c := newChecked()
	f.now = f.st.FoldTime
	for _, e := range g.Events {
		f.ev, f.now = e, max(f.now, e.Time)
		if e.Domain != f.st.Domain {
			return deadLetter(ReasonWrongDomain, "the event belongs to "+e.Domain.String())
		}
		if run := runOf(e.Payload); run != "" && f.isClosed(run, g) {
			return verdict{outcome: state.Late, detail: "run " + run + " is closed"}
		}
		if v := f.checkAge(e.Payload, g.Entry); v.outcome != "" {
			return v
		}
		if v := f.checkEvent(e.Payload, c, g.Proven); v.outcome != "" {
			if v.waitsFor != "" && triggersOther(g, v.waitsFor) {
				// Reject the group now. A waiting group would create its own run at an arbitrary later time.
				return deadLetter(v.reason, "the group triggers a run and has events of run "+v.waitsFor+", which does not exist or has no plan")
			}
			return v
		}
	}
	return verdict{}
}

// triggersOther reports whether a group triggers a run other than the given one.
func triggersOther(g Group, run string) bool {
	return slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
		p, ok := e.Payload.(*event.RunTriggered)
		return ok && p.RunID != run
	})
}

// checkAge rejects a trigger or a command whose id is more than [MaxRunAge] older than its entry.
//
// For triggers of runs, the check ensures that every run that is folded later has an id above
// [state.Cutoff.Partitions]. The run of a request is an exception, because it may be planned at any later time. While
// the request is pending, the cutoff stays below the id of this run.
//
// For commands that create requests, the check ensures that a second delivery of the command has no effect. The rows
// that the command creates are kept for longer than MaxRunAge. So a second delivery either finds these rows or is
// rejected.
func (f *folder) checkAge(p event.Payload, entry string) verdict {
	what, id := "command", ""
	if p, ok := p.(*event.RunTriggered); ok && p.RequestID == "" {
		what, id = "trigger", p.RunID
	}
	if p, ok := p.(*event.RunRequested); ok {
		id = p.CommandID
	}
	if p, ok := p.(*event.BackfillCreated); ok {
		id = p.BackfillID
	}
	if p, ok := p.(*event.AutomationCommand); ok && (p.Verb == event.VerbTrigger || p.Verb == event.VerbBackfill) {
		id = p.CommandID
	}
	appended, made := ids.Time(entry), ids.Time(id)
	if id == "" || appended.IsZero() || appended.Sub(made) <= MaxRunAge {
		return verdict{}
	}
	if what == "command" {
		return stale(fmt.Sprintf("the command was appended %s after it got its id: at most %s are allowed; repeat it",
			appended.Sub(made).Round(time.Second), MaxRunAge))
	}
	return stale(fmt.Sprintf("the trigger was appended %s after the run got its id: at most %s are allowed; request the run again",
		appended.Sub(made).Round(time.Second), MaxRunAge))
}

// checkEvent checks one event of a group. c records what the previous events of the group will create.
func (f *folder) checkEvent(p event.Payload, c *checked, proven bool) verdict {
	v := f.checkTarget(p, c)
	if p, ok := p.(*event.RunTriggered); ok {
		if v = f.checkRunKey(p, c); v.outcome == "" && !proven {
			v = f.checkRetry(p, c)
		}
		if v.outcome == "" {
			v = f.checkRequest(p, c, proven)
		}
		if v.outcome == "" && !c.runs[p.RunID] && f.st.Runs.Get(p.RunID) == nil {
			v = f.checkChunk(p.RequestID, p.Chunk)
		}
		c.runs[p.RunID] = true
	}
	if p, ok := p.(*event.PlanCreated); ok && c.plans[p.RunID] == nil {
		c.plans[p.RunID] = p
	}
	if p, ok := p.(*event.ProjectDeployed); ok {
		v = f.checkDeployment(p, c, proven)
		c.deployed = p
	}
	if p, ok := p.(*event.PartitionsChanged); ok {
		v = f.checkKeys(p, c)
	}
	if p, ok := p.(*event.PartitionsMarked); ok {
		v = f.checkMarks(p, c)
	}
	if p, ok := p.(*event.RevisionPinned); ok {
		v = f.checkPin(p, c)
	}
	if p, ok := p.(*event.AssetsForgotten); ok {
		v = f.checkForgotten(p, proven)
	}
	if p, ok := p.(*event.BackfillCreated); ok {
		v = f.checkBackfill(p, c)
	}
	if p, ok := p.(*event.RequestRefused); ok && p.Chunk != nil {
		v = f.checkChunk(p.RequestID, p.Chunk)
	}
	return v
}

// checkTarget checks that the run and the task of an event exist.
func (f *folder) checkTarget(p event.Payload, c *checked) verdict {
	runID, taskKey := target(p)
	run, task := f.st.Runs.Get(runID), f.st.Tasks.Get(state.Key2{A: runID, B: taskKey})
	plan := c.plans[runID]
	switch {
	case runID == "":
		return verdict{}
	case run == nil && !c.runs[runID]:
		v := deadLetter(ReasonUnknownRun, "run "+runID+" does not exist yet; the event is folded when the run appears")
		v.waitsFor = runID
		return v
	case taskKey == "":
		return verdict{}
	case task != nil && task.Kind != event.KindGroup, run == nil && plan != nil && f.defines(plan, taskKey):
		return verdict{}
	case task == nil && plan == nil && (run == nil || run.TasksTotal == 0 && !run.State.Terminal()):
		v := deadLetter(ReasonUnknownTask, "run "+runID+" has no plan yet; the event is folded when the plan appears")
		v.waitsFor = runID
		return v
	default:
		return deadLetter(ReasonUnknownTask, "run "+runID+" has no task "+taskKey+" for workers")
	}
}

// defines reports whether a plan has a task, not a group node, with the given key.
func (f *folder) defines(p *event.PlanCreated, taskKey string) bool {
	for _, def := range f.tasksOf(p) {
		if def.TaskKey == taskKey {
			return def.Kind != event.KindGroup
		}
	}
	return false
}

// tasksOf returns the tasks of a plan, from the event or from the fetched document. For an unreadable plan, it
// returns none.
func (f *folder) tasksOf(p *event.PlanCreated) []event.TaskDef {
	if len(p.Tasks) > 0 {
		return p.Tasks
	}
	return f.plan[p.PlanRef].Tasks
}

// isClosed reports whether a run was already closed before the group, whether its row is in the live state or in
// history.
func (f *folder) isClosed(runID string, g Group) bool {
	run := f.st.Runs.Get(runID)
	return run == nil && slices.Contains(g.Closed, runID) || run != nil && run.Closed(f.st.FoldTime)
}

// Names returns the ids of the runs to which the events of a group belong.
func Names(g Group) []string {
	var runs []string
	for _, e := range g.Events {
		if run := runOf(e.Payload); run != "" && !slices.Contains(runs, run) {
			runs = append(runs, run)
		}
	}
	return runs
}

// Begins reports whether a group triggers the given run.
func Begins(g Group, runID string) bool {
	return slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
		p, ok := e.Payload.(*event.RunTriggered)
		return ok && p.RunID == runID
	})
}

// runOf returns the id of the run to which an event belongs, or "".
func runOf(p event.Payload) string {
	if p, ok := p.(*event.RunTriggered); ok {
		return p.RunID
	}
	run, _ := target(p)
	return run
}

// target returns the run and the task that must exist before an event is folded.
func target(p event.Payload) (runID, taskKey string) {
	switch p := p.(type) {
	case *event.PlanCreated:
		return p.RunID, ""
	case *event.RunCancelRequested:
		return p.RunID, ""
	case *event.DispatchRequested:
		return p.RunID, p.TaskKey
	case *event.TaskStarted:
		return p.RunID, p.TaskKey
	case *event.TaskHeartbeat:
		return p.RunID, p.TaskKey
	case *event.TaskFinished:
		return p.RunID, p.TaskKey
	case *event.RunTriggered, *event.LimitSet, *event.ProjectDeployed, *event.QuarantineResolved, *event.PartitionsChanged, *event.PartitionsMarked,
		*event.RunRequested, *event.RequestRefused, *event.SchedulesDefined, *event.CalendarAdvanced, *event.AutomationCommand, *event.RevisionPinned, *event.AssetsForgotten, *event.BackfillCreated, *event.DispatchEnqueued,
		*event.DispatchFailed, *event.TimerRequested, *event.TimerEnqueued, *event.TimerFired, *event.NotificationEnded, *event.DeadlineJudged:
	}
	return "", ""
}

// checkRunKey rejects a group if another run uses the key of its new run. If both requests are the same, the outcome
// is NO_CHANGE, and the caller attaches to the existing run. Otherwise the outcome is CONFLICT.
func (f *folder) checkRunKey(p *event.RunTriggered, c *checked) verdict {
	if p.RunKey == "" || c.runs[p.RunID] || f.st.Runs.Get(p.RunID) != nil {
		return verdict{}
	}
	existing := c.keys[p.RunKey]
	if existing == nil {
		existing = f.st.RunKeys.Get(p.RunKey)
	}
	switch {
	case existing == nil || existing.ExpiresAt <= f.now:
		c.keys[p.RunKey] = &state.RunKey{
			RunKey: p.RunKey, RunID: p.RunID, Fingerprint: p.Fingerprint, ExpiresAt: f.now.Add(RunKeyTTL),
		}
		return verdict{}
	case existing.Fingerprint == p.Fingerprint:
		return verdict{outcome: state.NoChange, detail: "run " + existing.RunID + " already has the run key"}
	}
	return verdict{
		outcome: state.Conflict,
		detail:  "run key " + p.RunKey + " is used by run " + existing.RunID + ", whose request differs",
		conflict: &state.RunKeyConflict{
			RunKey: p.RunKey, RunID: p.RunID, Fingerprint: p.Fingerprint,
			ExistingRunID: existing.RunID, ExistingFingerprint: existing.Fingerprint, DetectedAt: f.at(),
		},
	}
}

// checkRetry rejects a retry while another run of its chain of retries has not ended. So at most one run of a chain is
// live, and the outputs of a chain have an order. checkRetry also rejects a retry if its writer has not seen the last
// retry of the chain. The last retry may have replaced an output, and the new retry would read the old one. But tasks
// count as having read the newest outputs of their chain, so the state would say that the new retry had read the newer
// output.
func (f *folder) checkRetry(p *event.RunTriggered, c *checked) verdict {
	if p.RootRun == "" || c.runs[p.RunID] || f.st.Runs.Get(p.RunID) != nil {
		return verdict{}
	}
	live := orDefault(c.retries[p.RootRun], f.st.LiveRunOf(p.RootRun))
	if c.retries == nil {
		c.retries = map[string]string{}
	}
	c.retries[p.RootRun] = p.RunID
	if live == "" {
		if last := f.st.LastRetry(p.RootRun); p.AfterRun != "" && last > p.AfterRun {
			return verdict{outcome: state.Conflict, detail: "run " + last + " of the same chain of retries has been created since the retry was planned: retry again"}
		}
		return verdict{}
	}
	return verdict{outcome: state.Conflict, detail: "run " + live + " of the same chain of retries has not ended"}
}
