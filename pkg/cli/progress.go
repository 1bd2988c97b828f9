package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// progress reports what has happened in a run since the last observed state, and what is
// running. It depends only on the observed states.
type progress struct {
	style style
	runID string
	seen  map[string]mark
	// silent suppresses what happened before the first observed state.
	silent bool
	// running are the tasks that run in the last observed state, longest first.
	running []*state.Task
}

// mark is the last observed state of a task.
type mark struct {
	state   state.TaskState
	attempt int32
}

func newProgress(s style, runID string) *progress {
	return &progress{style: s, runID: runID, seen: map[string]mark{}}
}

// happening is a line about a run.
type happening struct {
	at   event.Time
	text string
	// minor lines are not shown on a terminal, where the counters suffice.
	minor bool
}

// labelWidth is the width of the first word of a line.
const labelWidth = 10

func (p *progress) label(paint func(string) string, word string) string {
	return paint(pad(word, labelWidth))
}

// observe returns what has happened since the last observed state.
func (p *progress) observe(s *state.State) []happening {
	var happened []happening
	p.running = p.running[:0]
	skipped, cancelled := []*state.Task{}, []*state.Task{}
	s.TasksOf(p.runID, func(t *state.Task) bool {
		if t.Kind == event.KindGroup {
			return true
		}
		if t.State == state.TaskRunning {
			p.running = append(p.running, t)
		}
		was, is := p.seen[t.TaskKey], mark{t.State, t.Attempt}
		if was == is {
			return true
		}
		p.seen[t.TaskKey] = is
		if was.state == "" && p.silent {
			return true
		}
		happened = append(happened, p.missed(s, t, was)...)
		switch t.State {
		case state.TaskSkipped:
			skipped = append(skipped, t)
		case state.TaskCancelled:
			cancelled = append(cancelled, t)
		case state.TaskSucceeded, state.TaskFailed, state.TaskRetryWait:
			happened = append(happened, p.ended(t, s.FoldTime))
		case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning:
		}
		return true
	})
	p.silent = false
	happened = append(happened, p.unrun("skipped", skipped)...)
	happened = append(happened, p.unrun("cancelled", cancelled)...)
	slices.SortStableFunc(happened, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	slices.SortStableFunc(p.running, func(a, b *state.Task) int { return cmp.Compare(a.StartedAt, b.StartedAt) })
	return happened
}

// missed returns the attempts that failed and were retried between two observed states.
func (p *progress) missed(s *state.State, t *state.Task, was mark) []happening {
	var happened []happening
	from := max(was.attempt, 1)
	if was.state == state.TaskRetryWait {
		from++ // the attempt was reported when the task was observed waiting
	}
	for n := from; n < t.Attempt; n++ {
		if a := s.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: n}); a != nil {
			happened = append(happened, happening{a.FinishedAt, p.retrying(t, n, errorText(a.ErrorCode, a.ErrorMessage)), false})
		}
	}
	return happened
}

func (p *progress) retrying(t *state.Task, attempt int32, why string) string {
	return fmt.Sprintf("%s %s  attempt %d of %d: %s", p.label(p.style.yellow, "retrying"), t.TaskKey, attempt, t.MaxAttempts, why)
}

// ended describes how an attempt ended.
func (p *progress) ended(t *state.Task, now event.Time) happening {
	switch t.State {
	case state.TaskSucceeded:
		return happening{t.CompletedAt, fmt.Sprintf("%s %s  %s, %s", p.label(p.style.green, "succeeded"), t.TaskKey,
			plural(int(t.RowCount), "row"), view.Span(t.CompletedAt.Sub(t.StartedAt))), true}
	case state.TaskRetryWait:
		return happening{now, p.retrying(t, t.Attempt, taskError(t)) + "; again in " + view.Span(t.RetryNotBefore.Sub(now)), false}
	case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning, state.TaskSkipped,
		state.TaskCancelled, state.TaskFailed:
	}
	// The final report has the message.
	return happening{t.CompletedAt, fmt.Sprintf("%s %s  %s: %s", p.label(p.style.red, "failed"), t.TaskKey,
		view.Attempts(t), cmp.Or(t.ErrorCode, "no error given")), false}
}

// taskError formats a task's error on one line.
func taskError(t *state.Task) string { return errorText(t.ErrorCode, t.ErrorMessage) }

// errorText formats an error on one line: see [view.FirstLine].
func errorText(code, message string) string {
	return oneLine(view.FirstLine(fullError(code, message)))
}

// fullError formats an error with all lines of its message.
func fullError(code, message string) string {
	text := code
	if message != "" {
		text += ": " + strings.TrimSpace(message)
	}
	return cmp.Or(strings.TrimPrefix(text, ": "), "no error message")
}

// unrun describes tasks that ended without running, on one line.
func (p *progress) unrun(word string, tasks []*state.Task) []happening {
	if len(tasks) == 0 {
		return nil
	}
	text := tasks[0].TaskKey
	if len(tasks) > 1 {
		text = fmt.Sprintf("%s, for example %s", plural(len(tasks), "task"), text)
	}
	return []happening{{tasks[0].CompletedAt, p.label(p.style.yellow, word) + " " + text, false}}
}

// done returns the number of a run's tasks that have ended.
func done(r *state.Run) int32 {
	return r.TasksSucceeded + r.TasksFailed + r.TasksSkipped + r.TasksCancelled
}

// summary describes the progress of a run on one line.
func (p *progress) summary(s *state.State) string {
	r := s.Runs.Get(p.runID)
	parts := []string{fmt.Sprintf("%s of %s done", grouped(int64(done(r))), grouped(int64(r.TasksTotal)))}
	for _, c := range []struct {
		n    int32
		word string
		hue  func(string) string
	}{
		{r.TasksFailed, "failed", p.style.red},
		{r.TasksSkipped, "skipped", p.style.yellow},
		{r.TasksCancelled, "cancelled", p.style.yellow},
		{r.TasksRunning, "running", nil},
		{r.TasksDispatch, "in the queue", nil},
		{r.TasksRetryWait, "retrying", p.style.yellow},
	} {
		if c.n == 0 {
			continue
		}
		text := fmt.Sprintf("%s %s", grouped(int64(c.n)), c.word)
		if c.hue != nil {
			text = c.hue(text)
		}
		parts = append(parts, text)
	}
	parts = append(parts, waits(s, r)...)
	return strings.Join(parts, ", ")
}

// maxWaiting is the most waiting tasks to count.
const maxWaiting = 10_000

// waits describes the limits that tasks of a run wait for.
func waits(s *state.State, r *state.Run) []string {
	if r.State == state.RunPaused || r.State == state.RunCancelling || r.State.Terminal() {
		return nil
	}
	byPool := map[string]int{}
	var pools []string
	n := 0
	s.ReadyTasks(r.RunID, func(t *state.Task) bool {
		if byPool[t.Pool]++; byPool[t.Pool] == 1 {
			pools = append(pools, t.Pool)
		}
		n++
		return n < maxWaiting
	})
	slots, _ := s.SlotLimit(event.ScopeWorkspace, "")
	switch {
	case n == 0:
		return nil
	case s.SlotsInUse() >= slots:
		return []string{fmt.Sprintf("%s for one of the workspace's %d slots", waiting(n), slots)}
	case r.MaxParallelism > 0 && s.SlotsInUseByRun(r.RunID) >= r.MaxParallelism:
		return []string{fmt.Sprintf("%s for one of the run's %d slots", waiting(n), r.MaxParallelism)}
	}
	var texts []string
	for _, pool := range pools {
		if slots, limited := s.SlotLimit(event.ScopePool, pool); limited && s.SlotsInUseInPool(pool) >= slots {
			texts = append(texts, fmt.Sprintf("%s for pool %s (%d of %d taken)", waiting(byPool[pool]), pool, s.SlotsInUseInPool(pool), slots))
		}
	}
	return texts
}

func waiting(n int) string {
	if n == 1 {
		return "1 waits"
	}
	return grouped(int64(n)) + " wait"
}

// maxRunning is the most running tasks that a block shows.
const maxRunning = 8

// block returns the lines that a terminal shows of a run: counters and running tasks.
func (p *progress) block(s *state.State, now event.Time, width int) []string {
	r := s.Runs.Get(p.runID)
	head := fmt.Sprintf("%s %s  %s", p.style.bold(pad(string(r.State), labelWidth)), view.Span(now.Sub(r.CreatedAt)), p.summary(s))
	const wide, long, short = 110, 24, 10
	length := long
	if width > 0 && width < wide {
		length = short
	}
	lines := []string{bar(done(r), r.TasksTotal, length, p.style) + " " + head}
	for i, t := range p.running {
		if i == maxRunning {
			lines = append(lines, p.style.dim(fmt.Sprintf("  … and %d more", len(p.running)-maxRunning)))
			break
		}
		line := fmt.Sprintf("  %s  %s", t.TaskKey, view.Span(now.Sub(t.StartedAt)))
		if t.Attempt > 1 {
			line += fmt.Sprintf("  attempt %d of %d", t.Attempt, t.MaxAttempts)
		}
		if beat := s.Heartbeats.Get(t.Key()); beat != nil && beat.Message != "" {
			line += "  " + beat.Message
		}
		lines = append(lines, cut(line, width-1))
	}
	return lines
}

// bar draws how much of a run is done.
func bar(n, of int32, width int, s style) string {
	full := 0
	if of > 0 {
		full = int(int64(width) * int64(n) / int64(of))
	}
	return s.green(strings.Repeat("█", full)) + s.dim(strings.Repeat("░", width-full))
}
