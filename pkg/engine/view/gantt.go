package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Phase is what a task does during a segment of a [Gantt].
type Phase string

// Phases. The last three of them are outcomes of an attempt.
const (
	PhaseBlocked   Phase = "BLOCKED"    // the task waits for its upstreams
	PhaseLimited   Phase = "LIMITED"    // the task's inputs exist, and it waits for a slot of a limit
	PhaseQueued    Phase = "QUEUED"     // the task has a slot, and waits for a worker
	PhaseRunning   Phase = "RUNNING"    // an attempt that has not ended
	PhaseRetryWait Phase = "RETRY_WAIT" // the task waits for its next attempt
	PhaseFailed    Phase = "FAILED"
	PhaseSucceeded Phase = "SUCCEEDED"
	PhaseCancelled Phase = "CANCELLED"
)

// Segment is a period that a task, or several tasks, spent in a phase.
type Segment struct {
	Phase    Phase
	From, To event.Time
	Attempt  int32 // 0: no attempt, or several segments combined
	Tasks    int32
}

// GanttRow is a task, or all tasks of an asset.
type GanttRow struct {
	Key      string
	Tasks    int32
	Segments []Segment
	// State is the state of the task. For several tasks, it is the state that most needs attention.
	State    state.TaskState
	Critical bool // the task is on the critical path
	// Failed counts the failed tasks. RowCount and ByteSize are the total rows and bytes of the tasks' outputs.
	Failed             int32
	RowCount, ByteSize int64
	// Task is the task if the row is a task; nil if the row is an asset.
	Task *state.Task

	begin event.Time // when the first attempt was created; 0: none
}

// Gantt is a Gantt chart of a run.
type Gantt struct {
	From, To event.Time
	Rows     []GanttRow
	// ByAsset means that a row combines all tasks of an asset.
	ByAsset bool
	// LeftOut is the number of omitted rows. If there are more than [MaxGanttRows], those that least need attention are
	// omitted.
	LeftOut int
	// CriticalPath is the chain of tasks that determined when the run ended, first task first. The predecessor of a task
	// in the chain is its upstream that ended last.
	CriticalPath []string
	// Critical is the duration of that chain, from the creation of its first task.
	Critical time.Duration
	// Unlimited is how long the run would have taken without limits and queues: if every task had started as soon as its
	// upstreams had ended.
	Unlimited time.Duration
}

// MaxGanttRows is the maximum number of rows of a [Gantt].
const MaxGanttRows = 2000

// GanttOptions selects what to draw.
type GanttOptions struct {
	// From and To limit the time range; 0: the whole run.
	From, To event.Time
	// Pixels is the width of the drawing. GanttOf omits waits that are shorter than a pixel from rows with other segments,
	// and merges segments of an asset that are closer than a pixel.
	Pixels int32
	// ByAsset draws a row for each asset. A run with too many tasks is drawn by asset in any case.
	ByAsset bool
}

// GanttOf draws a run. Its tasks, attempts and edges must be in the state.
func GanttOf(s *state.State, run *state.Run, now event.Time, o GanttOptions) *Gantt {
	g := &Gantt{From: cmp.Or(o.From, run.CreatedAt), To: cmp.Or(o.To, run.CompletedAt, now)}
	d := drawing{s: s, run: run, now: now, pixel: g.To.Sub(g.From) / time.Duration(max(o.Pixels, 1)), from: g.From, to: g.To}
	d.read()
	path := map[string]bool{}
	chain := d.criticalPath()
	for _, t := range chain {
		g.CriticalPath, path[t.TaskKey] = append(g.CriticalPath, t.TaskKey), true
	}
	if len(chain) > 0 {
		g.Critical = d.end(chain[len(chain)-1]).Sub(chain[0].CreatedAt)
	}
	g.Unlimited = d.unlimited()
	if g.ByAsset = o.ByAsset || len(d.tasks) > MaxGanttRows; g.ByAsset {
		g.Rows = d.byAsset(path)
	} else {
		g.Rows = d.byTask(path)
	}
	slices.SortStableFunc(g.Rows, byBegin)
	if len(g.Rows) > MaxGanttRows {
		g.LeftOut = len(g.Rows) - MaxGanttRows
		slices.SortStableFunc(g.Rows, func(a, b GanttRow) int { return cmp.Compare(attention(b.State), attention(a.State)) })
		g.Rows = g.Rows[:MaxGanttRows]
		slices.SortStableFunc(g.Rows, byBegin)
	}
	return g
}

// byBegin orders rows by their first attempt. Rows without an attempt come last.
func byBegin(a, b GanttRow) int {
	return cmp.Or(cmp.Compare(orLast(a.begin), orLast(b.begin)), cmp.Compare(a.Segments[0].From, b.Segments[0].From), strings.Compare(a.Key, b.Key))
}

// drawing draws a run.
type drawing struct {
	s        *state.State
	run      *state.Run
	now      event.Time
	from, to event.Time
	pixel    time.Duration

	tasks     []*state.Task               // sorted by key, without group nodes
	all       map[string]*state.Task      // including group nodes
	upstreams map[string][]string         // the upstreams of each task
	attempts  map[string][]*state.Attempt // by task
	resolved  map[string]event.Time       // when the last dependency of a task was resolved
}

// orLast returns the given time or, if it is 0, a time after all others, so that rows without an attempt come last.
func orLast(at event.Time) event.Time {
	const never = event.Time(1<<63 - 1)
	return cmp.Or(at, never)
}

func (d *drawing) read() {
	n := int(d.run.TasksTotal)
	d.all, d.upstreams, d.attempts = make(map[string]*state.Task, n), make(map[string][]string, n), make(map[string][]*state.Attempt, n)
	d.resolved = map[string]event.Time{}
	d.s.TasksOf(d.run.RunID, func(t *state.Task) bool {
		d.all[t.TaskKey] = t
		if t.Kind != event.KindGroup {
			d.tasks = append(d.tasks, t)
		}
		d.s.AttemptsOf(t.RunID, t.TaskKey, func(a *state.Attempt) bool {
			d.attempts[t.TaskKey] = append(d.attempts[t.TaskKey], a)
			return true
		})
		return true
	})
	d.s.Deps.Ascend(state.Key3{A: d.run.RunID}, func(dep *state.Dep) bool {
		if dep.RunID != d.run.RunID {
			return false
		}
		d.upstreams[dep.Downstream] = append(d.upstreams[dep.Downstream], dep.Upstream)
		d.resolved[dep.Downstream] = max(d.resolved[dep.Downstream], dep.SatisfiedAt)
		return true
	})
}

// phaseOf returns the phase for the outcome of an attempt.
func phaseOf(a *state.Attempt) Phase {
	switch {
	case a.FinishedAt == 0:
		return PhaseRunning
	case a.Outcome == string(event.Succeeded):
		return PhaseSucceeded
	case a.Outcome == string(event.Cancelled):
		return PhaseCancelled
	}
	return PhaseFailed
}

// segments returns the segments of a task, first segment first. It omits waits that are shorter than a pixel, unless
// the task has no other segment: a task that was skipped immediately must have a row, too.
func (d *drawing) segments(t *state.Task) []Segment {
	var all, brief []Segment // brief has the waits that are shorter than a pixel
	add := func(phase Phase, from, to event.Time, attempt int32) {
		if from = max(from, d.from); from == 0 {
			return
		}
		to = min(cmp.Or(to, d.now), d.to)
		if to < from {
			return
		}
		one := Segment{phase, from, to, attempt, 1}
		waits := phase == PhaseBlocked || phase == PhaseLimited || phase == PhaseQueued || phase == PhaseRetryWait
		if waits && to.Sub(from) < max(d.pixel, 1) {
			brief = append(brief, one)
			return
		}
		all = append(all, one)
	}
	ready := max(t.CreatedAt, d.resolved[t.TaskKey])
	if t.DepsResolved < t.DepsTotal {
		ready = 0
	}
	add(PhaseBlocked, t.CreatedAt, cmp.Or(ready, t.CompletedAt), 0)
	wait, since, attempt := PhaseLimited, ready, int32(1)
	for _, a := range d.attempts[t.TaskKey] {
		add(wait, since, a.CreatedAt, attempt)
		add(PhaseQueued, a.CreatedAt, cmp.Or(a.StartedAt, a.FinishedAt, t.CompletedAt), a.Attempt)
		if a.StartedAt != 0 {
			add(phaseOf(a), a.StartedAt, a.FinishedAt, a.Attempt)
		}
		wait, since, attempt = PhaseRetryWait, a.FinishedAt, a.Attempt
	}
	first := len(d.attempts[t.TaskKey]) == 0
	if t.State == state.TaskRetryWait && !first || t.State == state.TaskReady && since != 0 && t.AdmittedAt == 0 {
		add(wait, since, 0, attempt)
	}
	if len(all) == 0 && len(brief) > 0 {
		return brief[:1]
	}
	return all
}

func (d *drawing) byTask(path map[string]bool) []GanttRow {
	var rows []GanttRow
	for _, t := range d.tasks {
		if segments := d.segments(t); len(segments) > 0 {
			rows = append(rows, GanttRow{
				Key: t.TaskKey, Tasks: 1, Segments: segments, State: t.State, Critical: path[t.TaskKey], Task: t,
				Failed: failedTasks(t), RowCount: t.RowCount, ByteSize: t.ByteSize, begin: d.begin(t),
			})
		}
	}
	return rows
}

func (d *drawing) byAsset(path map[string]bool) []GanttRow {
	at := map[string]int{}
	var rows []GanttRow
	for _, t := range d.tasks {
		key := cmp.Or(t.AssetKey, t.TaskKey)
		i, known := at[key]
		if !known {
			i = len(rows)
			at[key] = i
			rows = append(rows, GanttRow{Key: key, State: t.State})
		}
		row := &rows[i]
		row.Tasks++
		row.Failed += failedTasks(t)
		row.RowCount += t.RowCount
		row.ByteSize += t.ByteSize
		if begin := d.begin(t); begin != 0 {
			row.begin = min(orLast(row.begin), begin)
		}
		row.Segments = append(row.Segments, d.segments(t)...)
		row.Critical = row.Critical || path[t.TaskKey]
		if attention(t.State) > attention(row.State) {
			row.State = t.State
		}
	}
	for i := range rows {
		rows[i].Segments = d.merge(rows[i].Segments)
	}
	return slices.DeleteFunc(rows, func(r GanttRow) bool { return len(r.Segments) == 0 })
}

func failedTasks(t *state.Task) int32 {
	if t.State == state.TaskFailed {
		return 1
	}
	return 0
}

// begin returns when the first attempt of a task was created, or 0.
func (d *drawing) begin(t *state.Task) event.Time {
	if all := d.attempts[t.TaskKey]; len(all) > 0 {
		return all[0].CreatedAt
	}
	return 0
}

// attention ranks the states of tasks. A row of several tasks shows the state with the greatest rank.
func attention(s state.TaskState) int {
	return slices.Index([]state.TaskState{
		state.TaskSucceeded, state.TaskSkipped, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning,
		state.TaskRetryWait, state.TaskCancelled, state.TaskFailed,
	}, s)
}

// merge merges segments of the same phase that overlap or are closer than a pixel.
func (d *drawing) merge(all []Segment) []Segment {
	slices.SortFunc(all, func(a, b Segment) int {
		return cmp.Or(strings.Compare(string(a.Phase), string(b.Phase)), cmp.Compare(a.From, b.From))
	})
	var merged []Segment
	for _, one := range all {
		if n := len(merged); n > 0 && merged[n-1].Phase == one.Phase && one.From.Sub(merged[n-1].To) <= d.pixel {
			last := &merged[n-1]
			last.To, last.Attempt = max(last.To, one.To), 0
			last.Tasks += one.Tasks
			continue
		}
		merged = append(merged, one)
	}
	slices.SortFunc(merged, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(a.From, b.From), strings.Compare(string(a.Phase), string(b.Phase)))
	})
	return merged
}

// end returns when a task ended, or now if the task is running. For other tasks, and for nil, it returns 0.
func (d *drawing) end(t *state.Task) event.Time {
	switch {
	case t == nil:
		return 0
	case t.CompletedAt != 0:
		return t.CompletedAt
	case t.State == state.TaskRunning:
		return d.now
	}
	return 0
}

// criticalPath returns the critical path of the run. The path ends with the task that ended last. The predecessor of
// each task is the upstream of this task that ended last. Group nodes are not part of the path.
func (d *drawing) criticalPath() []*state.Task {
	var last *state.Task
	for _, t := range d.tasks {
		if d.ran(t) && d.end(t) > d.end(last) {
			last = t
		}
	}
	var path []*state.Task
	for last != nil {
		if last.Kind != event.KindGroup {
			path = append(path, last)
		}
		var before *state.Task
		for _, key := range d.upstreams[last.TaskKey] {
			if up := d.all[key]; up != nil && (up.Kind == event.KindGroup || d.ran(up)) && d.end(up) > d.end(before) {
				before = up
			}
		}
		last = before
	}
	slices.Reverse(path)
	return path
}

// ran reports whether a task was executed. An end time alone does not show that, because a skipped task also has one.
func (d *drawing) ran(t *state.Task) bool { return len(d.attempts[t.TaskKey]) > 0 && d.end(t) != 0 }

// worked returns how long a task was executed or waited for a retry in total.
func (d *drawing) worked(t *state.Task) time.Duration {
	var sum time.Duration
	for i, a := range d.attempts[t.TaskKey] {
		if i > 0 {
			if before := d.attempts[t.TaskKey][i-1]; before.FinishedAt != 0 {
				sum += max(a.CreatedAt.Sub(before.FinishedAt), 0)
			}
		}
		if a.StartedAt != 0 {
			sum += max(cmp.Or(a.FinishedAt, d.now).Sub(a.StartedAt), 0)
		}
	}
	return sum
}

// unlimited returns the duration of the longest chain of tasks, if each task takes the time that worked returns.
func (d *drawing) unlimited() time.Duration {
	waits, downstreams := make(map[string]int, len(d.all)), make(map[string][]string, len(d.all))
	for down, ups := range d.upstreams {
		waits[down] = len(ups)
		for _, up := range ups {
			downstreams[up] = append(downstreams[up], down)
		}
	}
	var ready []string
	for key := range d.all {
		if waits[key] == 0 {
			ready = append(ready, key)
		}
	}
	from, longest := make(map[string]time.Duration, len(d.all)), time.Duration(0)
	for len(ready) > 0 {
		key := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		end := from[key] + d.worked(d.all[key])
		longest = max(longest, end)
		for _, down := range downstreams[key] {
			from[down] = max(from[down], end)
			if waits[down]--; waits[down] == 0 && d.all[down] != nil {
				ready = append(ready, down)
			}
		}
	}
	return longest
}
