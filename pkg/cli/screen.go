package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// screen shows the progress of a run as lines. On a terminal it also shows a block below them,
// which it redraws.
type screen struct {
	w        io.Writer
	terminal bool
	width    int
	progress *progress
	drawn    int
	lastLine event.Time
}

const (
	// heartbeatEvery is the longest time without a line if there is no terminal.
	heartbeatEvery = 10 * time.Second
	// mostLines is the maximum number of tasks of a run in which each success gets a line, if there is no terminal. In
	// larger runs, such lines would hide the failures.
	mostLines = 100
)

// show updates the screen for a new state.
func (s *screen) show(st *state.State, now event.Time) {
	var stay []string
	run := st.Runs.Get(s.progress.RunID)
	for _, h := range s.progress.Observe(st) {
		if h.State == state.TaskSucceeded && (s.terminal || run.TasksTotal > mostLines) {
			continue // the counters show successes
		}
		stay = append(stay, s.stamped(run, h.At, s.progress.text(h)))
	}
	if s.terminal {
		s.redraw(stay, s.progress.block(st, now, s.width))
		return
	}
	if len(stay) == 0 && now.Sub(max(s.lastLine, run.CreatedAt)) >= heartbeatEvery && !run.State.Terminal() {
		stay = append(stay, s.stamped(run, now, s.progress.summary(st)))
	}
	if len(stay) > 0 {
		s.lastLine = now
		fmt.Fprintln(s.w, strings.Join(stay, "\n"))
	}
}

// stamped prefixes a line with the age of the run.
func (s *screen) stamped(run *state.Run, now event.Time, text string) string {
	return fmt.Sprintf("%9s  %s", view.Span(now.Sub(run.CreatedAt)), text)
}

// redraw clears the block, writes the permanent lines, and draws the block again.
func (s *screen) redraw(stay, block []string) {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", s.drawn)
	}
	for _, line := range stay {
		b.WriteString(line + "\n")
	}
	s.drawn = 0
	for _, line := range block {
		b.WriteString(line + "\n")
		s.drawn += s.rows(line)
	}
	_, _ = io.WriteString(s.w, b.String())
}

// rows returns the number of terminal rows that a line occupies.
func (s *screen) rows(line string) int {
	if s.width <= 0 {
		return 1
	}
	return max(1, (runewidth.StringWidth(plain(line))+s.width-1)/s.width)
}

// plain returns a line without colours.
func plain(line string) string {
	var b strings.Builder
	for line != "" {
		before, after, found := strings.Cut(line, "\x1b[")
		b.WriteString(before)
		if !found {
			break
		}
		_, line, _ = strings.Cut(after, "m")
	}
	return b.String()
}

// clear removes the block.
func (s *screen) clear() {
	if s.terminal && s.drawn > 0 {
		s.redraw(nil, nil)
	}
}
