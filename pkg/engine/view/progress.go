package view

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Progress finds the running tasks of a run, and the changes from one observed state of the run to the next. It
// depends only on these states.
type Progress struct {
	RunID string
	// Silent suppresses the changes before the first observed state.
	Silent bool
	// Running are the tasks that are running in the last observed state, the longest-running first.
	Running []*state.Task

	seen map[string]mark
}

// mark is the last observed state of a task.
type mark struct {
	state   state.TaskState
	attempt int32
}

// NewProgress returns the progress of a run that has not been observed yet.
func NewProgress(runID string) *Progress { return &Progress{RunID: runID, seen: map[string]mark{}} }

// Happening is a change in a run that users see.
type Happening struct {
	At event.Time
	// State is SUCCEEDED, FAILED, SKIPPED or CANCELLED. RETRY_WAIT means that an attempt failed, and was or will be
	// retried.
	State state.TaskState
	// Tasks is the number of tasks that changed together. It is more than 1 only if they were skipped or cancelled. Task
	// is the first of them.
	Task  *state.Task
	Tasks int
	// Attempt and Error describe a failed attempt that is retried. Error is one line. RetryAt is when the next attempt
	// starts; 0: it has already started.
	Attempt int32
	Error   string
	RetryAt event.Time
}

// Observe returns the changes since the last observed state.
func (p *Progress) Observe(s *state.State) []Happening {
	var happened []Happening
	p.Running = p.Running[:0]
	var skipped, cancelled []*state.Task
	s.TasksOf(p.RunID, func(t *state.Task) bool {
		if t.Kind == event.KindGroup {
			return true
		}
		if t.State == state.TaskRunning {
			p.Running = append(p.Running, t)
		}
		was, is := p.seen[t.TaskKey], mark{t.State, t.Attempt}
		if was == is {
			return true
		}
		p.seen[t.TaskKey] = is
		if was.state == "" && p.Silent {
			return true
		}
		happened = append(happened, missed(s, t, was)...)
		switch t.State {
		case state.TaskSkipped:
			skipped = append(skipped, t)
		case state.TaskCancelled:
			cancelled = append(cancelled, t)
		case state.TaskRetryWait:
			happened = append(happened, Happening{
				At: s.FoldTime, State: t.State, Task: t, Tasks: 1, Attempt: t.Attempt, Error: ErrorLine(t.ErrorCode, t.ErrorMessage), RetryAt: t.RetryNotBefore,
			})
		case state.TaskSucceeded, state.TaskFailed:
			happened = append(happened, together([]*state.Task{t})...)
		case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning:
		}
		return true
	})
	p.Silent = false
	happened = append(happened, together(skipped)...)
	happened = append(happened, together(cancelled)...)
	slices.SortStableFunc(happened, func(a, b Happening) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(p.Running, func(a, b *state.Task) int { return cmp.Compare(a.StartedAt, b.StartedAt) })
	return happened
}

// together returns one [Happening] for all given tasks, which have ended in the same state.
func together(tasks []*state.Task) []Happening {
	if len(tasks) == 0 {
		return nil
	}
	first := tasks[0]
	return []Happening{{At: first.CompletedAt, State: first.State, Task: first, Tasks: len(tasks)}}
}

// missed returns the attempts that failed and were retried between two observed states.
func missed(s *state.State, t *state.Task, was mark) []Happening {
	var happened []Happening
	from := max(was.attempt, 1)
	if was.state == state.TaskRetryWait {
		from++ // this attempt was already reported when the task was waiting for its retry
	}
	for n := from; n < t.Attempt; n++ {
		if a := s.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: n}); a != nil {
			happened = append(happened, Happening{
				At: a.FinishedAt, State: state.TaskRetryWait, Task: t, Tasks: 1, Attempt: n, Error: ErrorLine(a.ErrorCode, a.ErrorMessage),
			})
		}
	}
	return happened
}
