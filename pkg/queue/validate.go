package queue

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// More limits of Cloud Tasks, which every queue enforces.
const (
	MaxQueueBytes  = 100
	MaxNameBytes   = 500
	MaxURLBytes    = 2083
	MaxHeaderBytes = 80 << 10

	MinDispatchDeadline     = 15 * time.Second
	MaxDispatchDeadline     = 30 * time.Minute
	DefaultDispatchDeadline = 10 * time.Minute
)

// HeaderPrefix is the prefix of the headers with which a queue describes a delivery. A task may not set them. Cloud
// Tasks defines them:
//
//   - TaskRetryCount: the number of earlier attempts.
//   - TaskExecutionCount: the number of earlier attempts that the target answered with a
//     status below 500.
//   - TaskETA: when this attempt was due, in seconds since 1970.
const HeaderPrefix = "X-CloudTasks-"

// Headers that a queue adds to each delivery.
const (
	HeaderQueueName      = "X-CloudTasks-QueueName"
	HeaderTaskName       = "X-CloudTasks-TaskName"
	HeaderRetryCount     = "X-CloudTasks-TaskRetryCount"
	HeaderExecutionCount = "X-CloudTasks-TaskExecutionCount"
	HeaderETA            = "X-CloudTasks-TaskETA"
)

// Validate returns nil, or an ErrInvalid that lists every reason why a queue would reject the task.
func Validate(t Task, now time.Time) error {
	problems := append(validateName(t), validateURL(t.URL)...)
	problems = append(problems, validateHeader(t.Header)...)
	if size := t.Size(); size > MaxTaskBytes {
		problems = append(problems, fmt.Sprintf("its size is %d bytes (%d of them in the body), the limit is %d: send large data by reference", size, len(t.Body), MaxTaskBytes))
	}
	if ahead := t.ScheduleTime.Sub(now); ahead > MaxSchedule {
		problems = append(problems, fmt.Sprintf("it is scheduled %v ahead, the limit is %v: schedule a task that reschedules itself", ahead, MaxSchedule))
	}
	if d := t.DispatchDeadline; d != 0 && (d < MinDispatchDeadline || d > MaxDispatchDeadline) {
		problems = append(problems, fmt.Sprintf("the dispatch deadline %v is outside %v to %v", d, MinDispatchDeadline, MaxDispatchDeadline))
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w %.80q of queue %.80q: %s", ErrInvalid, t.Name, t.Queue, strings.Join(problems, "; "))
}

// taskOverhead is a high estimate of the bytes that a queue adds to a task: the names of the project, the location
// and the account, times, and the encoding of the fields.
const taskOverhead = 1500

// Size returns an estimate of the size of the task in a queue, to which [MaxTaskBytes] applies.
func (t Task) Size() int {
	size := taskOverhead + len(t.Queue) + len(t.Name) + len(t.URL) + len(t.Body)
	for name, value := range t.Header {
		size += len(name) + len(value) + len("....")
	}
	return size
}

func validateName(t Task) (problems []string) {
	if len(t.Queue) == 0 || len(t.Queue) > MaxQueueBytes || strings.ContainsFunc(t.Queue, func(r rune) bool { return r == '_' || !isNameRune(r) }) {
		problems = append(problems, fmt.Sprintf("the queue's name must have 1 to %d letters, digits and hyphens", MaxQueueBytes))
	}
	if len(t.Name) == 0 || len(t.Name) > MaxNameBytes || strings.ContainsFunc(t.Name, func(r rune) bool { return !isNameRune(r) }) {
		problems = append(problems, fmt.Sprintf("its name must have 1 to %d letters, digits, hyphens and underscores", MaxNameBytes))
	}
	return problems
}

func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}

func validateURL(text string) []string {
	if len(text) > MaxURLBytes {
		return []string{fmt.Sprintf("the URL is %d bytes long, the limit is %d", len(text), MaxURLBytes)}
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return []string{"invalid URL: " + err.Error()}
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return []string{fmt.Sprintf("the URL %q must begin with http:// or https:// and a host", text)}
	}
	return nil
}

func validateHeader(header map[string]string) (problems []string) {
	size := 0
	for name, value := range header {
		size += len(name) + len(value)
		lower := strings.ToLower(name)
		switch {
		case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }):
			problems = append(problems, fmt.Sprintf("%q is not a valid header name", name))
		case strings.HasPrefix(lower, strings.ToLower(HeaderPrefix)),
			lower == "host", lower == "content-length", lower == "transfer-encoding", lower == "connection":
			problems = append(problems, fmt.Sprintf("only the queue may set the header %s", name))
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			problems = append(problems, fmt.Sprintf("the header %s contains a control character", name))
		}
	}
	if size > MaxHeaderBytes {
		problems = append(problems, fmt.Sprintf("the headers are %d bytes long, the limit is %d", size, MaxHeaderBytes))
	}
	return problems
}

// isTokenRune reports whether r may occur in a header name (RFC 9110, 5.6.2).
func isTokenRune(r rune) bool { return isNameRune(r) || strings.ContainsRune("!#$%&'*+.^`|~", r) }
