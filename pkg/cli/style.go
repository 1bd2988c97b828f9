package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/state"
)

// style colours text on terminals.
type style struct{ on bool }

// Codes of colours.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (s style) paint(code, text string) string {
	if !s.on || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string      { return s.paint("1", text) }
func (s style) dim(text string) string       { return s.paint("2", text) }
func (s style) red(text string) string       { return s.paint(red, text) }
func (s style) green(text string) string     { return s.paint(green, text) }
func (s style) errorText(text string) string { return s.red(text) }

// state colours the name of a task state or run state.
func (s style) state(name string) string { return s.inColourOf(name, name) }

// inColourOf colours a text with the colour of a task state or run state.
func (s style) inColourOf(state, text string) string { return s.paint(hues[state], text) }

// hues maps states to their colours. States that it does not contain have no colour.
var hues = map[string]string{
	string(state.TaskSucceeded): green,
	string(state.TaskFailed):    red, string(state.RunTimedOut): red,
	string(state.TaskRetryWait): yellow, string(state.TaskSkipped): yellow, string(state.TaskCancelled): yellow,
	string(state.RunCancelling):  yellow,
	string(engine.AttentionLate): red, string(engine.AttentionQuarantined): red, string(engine.AttentionPaused): yellow,
	string(engine.AttentionError): yellow, string(engine.AttentionUndeliverable): yellow, string(engine.AttentionWaiting): yellow,
	string(engine.AttentionCheck): red, string(engine.AttentionBackfill): red,
}

// cut truncates text to a number of columns.
func cut(text string, width int) string {
	text = view.OneLine(text)
	if width <= 0 {
		return text
	}
	return runewidth.Truncate(text, width, "…")
}

// indented adds a margin to all lines but the first.
func indented(text, margin string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		if line = strings.TrimRight(view.OneLine(line), " "); i > 0 && line != "" {
			line = margin + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}

// pad pads a text to a minimum number of columns.
func pad(text string, width int) string { return runewidth.FillRight(text, width) }

// bytesText formats a size for people.
func bytesText(n int64) string {
	const thousand = 1000
	if n < thousand {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), 0
	for value >= thousand-0.5 && unit < 5 {
		value /= thousand
		unit++
	}
	const short = 99.95
	if value < short {
		return fmt.Sprintf("%.1f %cB", value, " kMGTP"[unit])
	}
	return fmt.Sprintf("%.0f %cB", value, " kMGTP"[unit])
}

// sheet is text with a named value on each line.
type sheet struct {
	strings.Builder

	style style
	width int // the width of the longest name
}

// field adds a line with a name and a value. If several lines have the same name, pass "" for all but the first.
func (s *sheet) field(name, format string, args ...any) {
	fmt.Fprintf(s, "%s%s\n", s.style.dim(pad(name, s.width)), fmt.Sprintf(format, args...))
}

// line adds a line with a name and a value, unless the value is empty.
func (s *sheet) line(name, value string) {
	if value != "" {
		s.field(name, "%s", value)
	}
}

// number is a right-aligned text in a table.
func number(text string) render.Number { return render.Number(text) }

// stamp returns a time for tables.
func stamp(t event.Time) any {
	if t == 0 {
		return nil
	}
	return t.Time().Format(time.RFC3339)
}

// moment returns a time for programs.
func moment(t event.Time) any {
	if t == 0 {
		return nil
	}
	return t.Time()
}

// orNil returns a text, or nil if it is empty.
func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// quoted quotes a word for a shell.
func quoted(word string) string { return view.Quoted(word) }

// readable returns the key of a task in the form in which people write partitions.
func readable(taskKey string) string { return ids.ReadableKey(taskKey) }

// plural returns, for example, "1 task" or "2 tasks".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return view.Grouped(int64(n)) + " " + what + "s"
}
