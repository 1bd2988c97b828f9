package fold_test

import (
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// walk is a world into which random events are folded, including events that cannot occur in practice.
type walk struct {
	*foldtest.World
	r *rapid.T

	runs   []string
	groups []fold.Group // the groups folded so far, in order
	// wild means that reports about attempts that were never dispatched also occur.
	wild bool
}

func newWalk(r *rapid.T) *walk {
	return &walk{World: foldtest.New(r), r: r, wild: rapid.IntRange(0, 3).Draw(r, "wild") == 0}
}

func (w *walk) chance(label string, oneIn int) bool {
	return rapid.IntRange(1, oneIn).Draw(w.r, label) == 1
}

func (w *walk) int(label string, most int) int { return rapid.IntRange(0, most).Draw(w.r, label) }

// next draws the next group.
func (w *walk) next() fold.Group {
	w.Pass(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 1, 20, 700}).Draw(w.r, "seconds")) * time.Second)
	if len(w.groups) > 0 && w.chance("again", 12) {
		g := w.groups[w.int("which", len(w.groups)-1)]
		if w.chance("in another entry", 2) {
			g.Entry = w.ID()
		}
		return g
	}
	switch kind := w.int("kind", 17); {
	case len(w.runs) == 0 || kind == 0:
		return w.trigger()
	case kind == 1:
		return w.Group(w.limit())
	case kind == 2:
		return w.Group(&event.RunCancelRequested{RunID: w.anyRun(), Force: w.chance("force", 2)})
	case kind == 14:
		return w.Group(w.keys())
	case kind == 15:
		return w.Group(w.mark())
	case kind == 16:
		return w.Group(&event.RevisionPinned{
			CommandID: w.ID(), Revision: int64(1 + w.int("revision", 12)), Until: event.At(w.Now.Add(time.Duration(w.int("span", 3)) * time.Hour)), Reason: "r",
		})
	case kind == 17:
		return w.Group(&event.AssetsForgotten{CommandID: w.ID(), Assets: []string{"test/" + rapid.SampledFrom([]string{"a", "b", "none"}).Draw(w.r, "asset")}, Release: w.State.Release(), Reason: "r"})
	case kind <= 5:
		return w.timer()
	case kind <= 7:
		return w.dispatch()
	}
	return w.report()
}

func (w *walk) anyRun() string { return w.runs[w.int("run", len(w.runs)-1)] }

// trigger starts a run. Its plan is in the event, in a document to which the event refers, or missing.
func (w *walk) trigger() fold.Group {
	defs := drawDAG(w.r, 6)
	for i := range defs {
		defs[i].Pool = rapid.SampledFrom([]string{"", "db", "api"}).Draw(w.r, "pool")
		defs[i].Priority = rapid.Int32Range(-1, 1).Draw(w.r, "priority")
		defs[i].TimeoutSec = rapid.SampledFrom([]int32{0, 30}).Draw(w.r, "timeout")
		defs[i].RetryJitterPermille = 500
	}
	p := &event.RunTriggered{
		MaxParallelism: rapid.Int32Range(0, 2).Draw(w.r, "parallelism"),
		TimeoutSec:     rapid.SampledFrom([]int32{0, 0, 60}).Draw(w.r, "run timeout"),
		RunKey:         rapid.SampledFrom([]string{"", "", "k"}).Draw(w.r, "key"),
		Fingerprint:    rapid.SampledFrom([]string{"f", "g"}).Draw(w.r, "fingerprint"),
	}
	payloads := w.Triggered(p, defs...)
	plan := payloads[1].(*event.PlanCreated)
	w.runs = append(w.runs, p.RunID)
	var plans map[string]fold.Plan
	switch w.int("form", 7) {
	case 0: // the trigger without a plan, or the plan alone
		payloads = payloads[w.int("half", 1):][:1]
	case 1:
		for i := range defs {
			if defs[i].Kind != event.KindGroup && rapid.Bool().Draw(w.r, "checks only") {
				defs[i].Kind = event.KindCheck
			}
		}
		plan.Tasks, plans = nil, map[string]fold.Plan{plan.PlanRef: {Tasks: defs}}
	case 2:
		plan.Tasks, plans = nil, map[string]fold.Plan{plan.PlanRef: {Err: "not JSON"}}
	}
	g := w.Group(payloads...)
	g.Plans = plans
	return g
}

func (w *walk) limit() event.Payload {
	p := &event.LimitSet{CommandID: w.ID(), Scope: event.ScopePool, Slots: rapid.Int32Range(0, 3).Draw(w.r, "slots")}
	if p.Name = rapid.SampledFrom([]string{"", "db", "api"}).Draw(w.r, "name"); p.Name == "" {
		p.Scope, p.Slots = event.ScopeWorkspace, p.Slots+2
	}
	return p
}

// keys adds some keys to a set, and removes others.
func (w *walk) keys() event.Payload {
	p := &event.PartitionsChanged{CommandID: w.ID(), KeySet: rapid.SampledFrom([]string{"s", "t"}).Draw(w.r, "set")}
	for _, key := range []string{"a", "b", "c"} {
		switch w.int(key, 3) {
		case 0:
			p.Add = append(p.Add, key)
		case 1:
			p.Remove = append(p.Remove, key)
		}
	}
	return p
}

// mark marks an output, which may no longer be visible.
func (w *walk) mark() event.Payload {
	p := &event.PartitionsMarked{
		CommandID: w.ID(), Asset: "test/none", Mark: rapid.SampledFrom([]string{event.MarkStale, event.MarkFresh, event.MarkMissing}).Draw(w.r, "mark"),
		Partitions: []event.MarkedPartition{{MaterializationID: w.ID()}}, ObservedSeq: w.State.FoldSeq, Reason: "r",
	}
	if rows := w.State.Partitions.Rows(); len(rows) > 0 {
		row := rows[w.int("partition", len(rows)-1)]
		p.Asset, p.Partitions[0].Partition = row.AssetKey, row.PartitionKey
		if !w.chance("outdated", 4) {
			p.Partitions[0].MaterializationID, p.Partitions[0].RunID = row.MaterializationID, row.RunID
		}
	}
	return p
}

// timer draws an event about a timer: it fires, is enqueued, is scheduled again or is requested.
func (w *walk) timer() fold.Group {
	timers := w.State.Timers.Rows()
	if len(timers) == 0 || w.chance("external", 6) {
		return w.Group(&event.TimerRequested{
			TimerID: fmt.Sprintf("timer:cron:x:%d", w.int("cron", 2)), TimerType: foldtest.TimerOther,
			Generation: rapid.Int32Range(0, 1).Draw(w.r, "generation"), FireAt: event.At(w.Now.Add(time.Minute)),
		})
	}
	row := timers[w.int("timer", len(timers)-1)]
	generation := row.Generation + rapid.SampledFrom([]int32{0, 0, 0, -1, 1}).Draw(w.r, "generation")
	switch w.int("timer event", 5) {
	case 0:
		return w.Group(&event.TimerEnqueued{TimerID: row.TimerID, Generation: generation})
	case 1:
		return w.Group(&event.TimerRequested{
			TimerID: row.TimerID, TimerType: row.TimerType, Generation: generation + 1, FireAt: row.FireAt,
		})
	}
	if at := row.FireAt.Time(); at.After(w.Now) && !w.chance("early", 4) {
		w.Now = at
	}
	fired := w.Fire(row)
	fired.Generation = generation
	if w.chance("lag", 5) {
		fired.Observed.CaughtUpAt = fired.FiredAt.Add(-time.Minute)
	}
	return w.Group(fired)
}

// dispatch draws an event about the dispatch of a task.
func (w *walk) dispatch() fold.Group {
	t, ok := w.anyTask()
	if !ok {
		return w.trigger()
	}
	attempt := max(t.Attempt, 1)
	id := ids.DispatchID(t.RunID, t.TaskKey, attempt)
	generation := int32(0)
	if row := w.State.Outbox.Get(id); row != nil {
		generation = row.Generation
	}
	generation += rapid.SampledFrom([]int32{0, 0, 0, 1}).Draw(w.r, "generation")
	switch w.int("dispatch event", 3) {
	case 0:
		return w.Group(&event.DispatchFailed{
			DispatchID: id, RunID: t.RunID, TaskKey: t.TaskKey, Attempt: attempt, Generation: generation,
			Error: event.Error{Code: "X", Retryable: w.chance("retryable", 2)},
		})
	case 1:
		return w.Group(&event.DispatchEnqueued{
			DispatchID: id, RunID: t.RunID, TaskKey: t.TaskKey, Attempt: attempt, Generation: generation,
		})
	}
	return w.Group(&event.DispatchRequested{
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: attempt, AttemptID: ids.AttemptID(foldtest.Domain, t.RunID, t.TaskKey, attempt),
		DispatchID: id, Generation: generation + 1 + 4*rapid.Int32Range(0, 1).Draw(w.r, "jump"),
	})
}

// report draws up to three reports of workers.
func (w *walk) report() fold.Group {
	var payloads []event.Payload
	for range 1 + w.int("reports", 2) {
		t, ok := w.anyTask()
		if !ok {
			return w.trigger()
		}
		payloads = append(payloads, w.reportOn(t))
	}
	return w.Group(payloads...)
}

func (w *walk) reportOn(t *state.Task) event.Payload {
	attempt := t.Attempt + rapid.SampledFrom([]int32{0, 0, 0, 0, -1, 1}).Draw(w.r, "attempt")
	if !w.wild {
		attempt = min(attempt, t.Attempt)
	}
	attempt = max(attempt, 1)
	if !w.wild && t.Attempt == 0 {
		return w.Beat(t.RunID, "unknown", 1) // no attempt of t was dispatched
	}
	switch w.int("report", 4) {
	case 0:
		return w.Started(t.RunID, t.TaskKey, attempt)
	case 1:
		return w.Beat(t.RunID, t.TaskKey, attempt)
	}
	p := w.Finished(t.RunID, t.TaskKey, attempt, rapid.SampledFrom([]event.Outcome{
		event.Succeeded, event.Succeeded, event.Failed, event.Skipped, event.TimedOut, event.Cancelled,
	}).Draw(w.r, "outcome"))
	if p.Error != nil {
		p.Error.Retryable = w.chance("retryable", 2)
		p.Error.Code = rapid.SampledFrom([]string{"BOOM", fold.CodeWorkerInterrupted}).Draw(w.r, "code")
		p.Error.Category = rapid.SampledFrom([]string{"", event.CategoryUser}).Draw(w.r, "category")
	}
	p.GrantedAttempts = rapid.Int32Range(0, min(attempt-1, fold.MaxGrantedAttempts)).Draw(w.r, "granted")
	if w.chance("measures", 2) {
		p.CheckResults = []event.CheckResult{{
			Name: "c", Phase: "POST", Passed: true, Season: rapid.SampledFrom([]string{"", "monday"}).Draw(w.r, "season"), Measured: new(int64),
		}}
	}
	return p
}

func (w *walk) anyTask() (*state.Task, bool) {
	tasks := w.State.Tasks.Rows()
	if len(tasks) == 0 {
		return nil, false
	}
	return tasks[w.int("task", len(tasks)-1)], true
}

// step folds the next group. It returns an error if the group made a forbidden change.
func (w *walk) step() (fold.Group, error) {
	g := w.next()
	before := w.State.Copy()
	result := w.Apply(g)
	if result.Known {
		if diff := foldtest.Compare(w.State.All(), before.All()); diff != "" {
			return g, fmt.Errorf("a known group changed %s", diff)
		}
		return g, nil
	}
	w.groups = append(w.groups, g)
	return g, w.compare(before, result)
}

// compare returns an error if a group made a forbidden change.
func (w *walk) compare(before *state.State, result fold.Result) error {
	if result.Row.Outcome != state.Folded && result.Row.Outcome != state.Conflict {
		if diff := foldtest.Compare(foldtest.Effects(w.State), foldtest.Effects(before)); diff != "" {
			return fmt.Errorf("a group with outcome %s changed %s", result.Row.Outcome, diff)
		}
	}
	for old := range before.Runs.All {
		if row := w.State.Runs.Get(old.RunID); old.State.Terminal() && *row != *old {
			return fmt.Errorf("a terminal run changed from %+v to %+v", *old, *row)
		}
	}
	for old := range before.Tasks.All {
		row := *w.State.Tasks.Get(old.Key())
		if old.State.Terminal() && row != *old {
			return fmt.Errorf("a terminal task changed from %+v to %+v", *old, row)
		}
		if row.Attempt < old.Attempt {
			return fmt.Errorf("task %s returned to attempt %d", row.TaskKey, row.Attempt)
		}
	}
	for row := range w.State.Outbox.All {
		if err := w.admitted(before, row); err != nil {
			return err
		}
	}
	return w.generations(before)
}

// admitted checks a task that the last group admitted: its trigger rule must be satisfied, and no limit may be
// exceeded.
func (w *walk) admitted(before *state.State, row *state.Dispatch) error {
	if before.Outbox.Get(row.DispatchID) != nil {
		return nil
	}
	t := w.State.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
	if !w.wild && !ruleSatisfied(w.State, t) {
		return fmt.Errorf("task %s was admitted before its rule %s was satisfied", t.TaskKey, t.TriggerRule)
	}
	all, inRun, inPool := foldtest.SlotsInUse(w.State, t.RunID, t.Pool)
	workspace, _ := w.State.SlotLimit(event.ScopeWorkspace, "")
	pool, limited := w.State.SlotLimit(event.ScopePool, t.Pool)
	most := w.State.Runs.Get(t.RunID).MaxParallelism
	if all > workspace || limited && inPool > pool || most > 0 && inRun > most {
		return fmt.Errorf("task %s exceeds a limit: workspace %d of %d, run %d of %d, pool %d of %d",
			t.TaskKey, all, workspace, inRun, most, inPool, pool)
	}
	return nil
}

func ruleSatisfied(s *state.State, t *state.Task) bool {
	satisfied := true
	for d := range s.Deps.All {
		if d.RunID != t.RunID || d.Downstream != t.TaskKey {
			continue
		}
		switch t.TriggerRule {
		case event.RuleAllSuccess:
			satisfied = satisfied && d.Resolution == state.ResolvedSuccess
		case event.RuleNoneFailed:
			up := s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream})
			satisfied = satisfied && (d.Resolution == state.ResolvedSuccess ||
				d.Resolution == state.ResolvedSkipped && up.ErrorCode != fold.CodeUpstreamFailed)
		default:
			satisfied = satisfied && d.Resolution != ""
		}
	}
	return satisfied
}

// generations checks that generations never decrease, and that each new liveness timer has a
// greater generation.
func (w *walk) generations(before *state.State) error {
	for old := range before.Timers.All {
		if row := w.State.Timers.Get(old.TimerID); row != nil && row.Generation < old.Generation {
			return fmt.Errorf("timer %s returned to generation %d", row.TimerID, row.Generation)
		}
	}
	old, row := before.Liveness(), w.State.Liveness()
	if old != nil && (row == nil || row.QueueTaskName != old.QueueTaskName && row.Generation <= old.Generation) {
		return fmt.Errorf("the liveness timer changed from %+v to %+v", *old, row)
	}
	return nil
}

// log describes the folded groups, one line each.
func (w *walk) log() string {
	var lines []string
	for _, g := range w.groups {
		line := g.Entry + " " + g.ID
		for _, e := range g.Events {
			line += fmt.Sprintf(" %s %+v", e.Time, e.Payload.Key())
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
