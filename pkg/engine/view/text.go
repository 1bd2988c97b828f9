package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Span formats a duration for people: "0.42 s", "12.3 s", "4m 05s", "3h 07m", "2d 03h".
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 10*time.Second-5*time.Millisecond:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < time.Minute-50*time.Millisecond:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	const day = 24 * time.Hour
	return fmt.Sprintf("%dd %02dh", d/day, d%day/time.Hour)
}

// stamp formats a time for people and programs.
func stamp(t event.Time) string { return t.Time().Format(time.RFC3339) }

// maxNames is the maximum number of names that a sentence lists.
const maxNames = 5

// Some joins the first names, and counts the others.
func Some(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// Count returns "1 task", "2 tasks".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Grouped formats a number with a comma at each thousand.
func Grouped(n int64) string {
	digits := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// Attempts describes the last attempt of a task: "attempt 2 of 3". If the task failed although its policy would have
// allowed more attempts: "attempt 1, not retried".
func Attempts(t *state.Task) string {
	if t.State == state.TaskFailed && t.Attempt < t.MaxAttempts {
		return fmt.Sprintf("attempt %d, not retried", t.Attempt)
	}
	return fmt.Sprintf("attempt %d of %d", t.Attempt, t.MaxAttempts)
}

// Problem joins the code and the message of an error.
func Problem(code, message string) string {
	if code == "" || message == "" {
		return code + message
	}
	return code + ": " + message
}

// FullError returns an error with all lines of its message.
func FullError(code, message string) string {
	return cmp.Or(Problem(code, strings.TrimSpace(message)), "no error message")
}

// ErrorLine returns an error on one line: see [FirstLine].
func ErrorLine(code, message string) string { return OneLine(FirstLine(FullError(code, message))) }

// OneLine removes line breaks and control characters from a text.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < 0x20 || r == 0x7f:
			return -1
		}
		return r
	}, text)
}

// headProblem returns the code and the most important line of an error.
func headProblem(code, message string) string { return FirstLine(Problem(code, message)) }

// FirstLine returns the most important line of an error, followed by "…" if there are more lines. The most important
// line is the first one or, if there is a Python traceback, the exception. A first line that ends with a colon, such
// as "sh exited with status 3:", is joined with the next one.
func FirstLine(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	rest = strings.TrimSpace(rest)
	if strings.HasSuffix(first, ":") {
		next, more, _ := strings.Cut(rest, "\n")
		if exception := pythonException(rest); exception != "" {
			next, more = exception, rest
		}
		if first += " " + next; strings.HasPrefix(first, "Traceback ") {
			first = next
		}
		rest = strings.TrimSpace(more)
	}
	if rest != "" {
		first += " …"
	}
	return first
}

// pythonException returns the line of a Python traceback that names the exception, or "" if the text has no
// traceback. The indented lines above this line name files and show their code.
func pythonException(text string) string {
	exception, inside := "", false
	for line := range strings.SplitSeq(text, "\n") {
		code := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(code, `File "`) && strings.Contains(code, ", line "), strings.HasPrefix(code, "Traceback (most recent call last):"):
			inside = true
		case inside && code != "" && !strings.HasPrefix(line, " "):
			exception, inside = code, false
		}
	}
	return exception
}

// Quoted quotes a word for a shell, if it needs quotes.
func Quoted(word string) string {
	if word == "" || strings.ContainsAny(word, " []{}*?'\"\\$`!&|;<>()#~") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}
