package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// progress describes what has happened in a run, and what is running.
type progress struct {
	*view.Progress

	style style
}

func newProgress(s style, runID string) *progress { return &progress{view.NewProgress(runID), s} }

// labelWidth is the width of the first word of a line.
const labelWidth = 10

// text describes an event of a task on one line.
func (p *progress) text(h view.Happening) string {
	t, word, text := h.Task, stateWords[h.State], readable(h.Task.TaskKey)
	switch {
	case h.State == state.TaskSucceeded:
		made := plural(int(t.RowCount), "row")
		if t.Kind == event.KindCheck {
			made = "no critical check failed"
		}
		text = fmt.Sprintf("%s  %s, %s", readable(t.TaskKey), made, view.Span(t.CompletedAt.Sub(t.StartedAt)))
	case h.State == state.TaskRetryWait:
		word, text = "retrying", fmt.Sprintf("%s  attempt %d of %d: %s", readable(t.TaskKey), h.Attempt, t.MaxAttempts, h.Error)
		if h.RetryAt != 0 {
			text += "; again in " + view.Span(h.RetryAt.Sub(h.At))
		}
	case h.State == state.TaskFailed: // the final report has the message
		text = fmt.Sprintf("%s  %s: %s", readable(t.TaskKey), view.Attempts(t), cmp.Or(t.ErrorCode, "no error given"))
	case h.Tasks > 1:
		text = fmt.Sprintf("%s, for example %s", plural(h.Tasks, "task"), readable(t.TaskKey))
	}
	return p.style.inColourOf(string(h.State), pad(word, labelWidth)) + " " + text
}

// summary describes the progress of a run on one line.
func (p *progress) summary(s *state.State) string {
	r := s.Runs.Get(p.RunID)
	parts := []string{fmt.Sprintf("%s of %s done", view.Grouped(int64(view.Done(r))), view.Grouped(int64(r.TasksTotal)))}
	for _, c := range view.Counts(r) {
		word := stateWords[c.State]
		switch c.State { //nolint:exhaustive // stateWords has the words of the other states
		case state.TaskSucceeded, state.TaskReady, state.TaskBlocked:
			continue
		case state.TaskRetryWait:
			word = "retrying"
		}
		if c.Tasks > 0 {
			parts = append(parts, p.style.inColourOf(string(c.State), view.Grouped(int64(c.Tasks))+" "+word))
		}
	}
	for _, wait := range view.Waits(s, r) {
		parts = append(parts, wait.String())
	}
	return strings.Join(parts, ", ")
}

// maxRunning is the maximum number of running tasks that a block shows.
const maxRunning = 8

// block returns the lines that a terminal shows for a run: counters and running tasks.
func (p *progress) block(s *state.State, now event.Time, width int) []string {
	r := s.Runs.Get(p.RunID)
	head := fmt.Sprintf("%s %s  %s", p.style.bold(pad(string(r.State), labelWidth)), view.Span(now.Sub(r.CreatedAt)), p.summary(s))
	const wide, long, short = 110, 24, 10
	length := long
	if width > 0 && width < wide {
		length = short
	}
	lines := []string{bar(view.Done(r), r.TasksTotal, length, p.style) + " " + head}
	for i, t := range p.Running {
		if i == maxRunning {
			lines = append(lines, p.style.dim(fmt.Sprintf("  … and %d more", len(p.Running)-maxRunning)))
			break
		}
		line := fmt.Sprintf("  %s  %s", readable(t.TaskKey), view.Span(now.Sub(t.StartedAt)))
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
