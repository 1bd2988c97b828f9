package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/queue"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func valid() queue.Task {
	return queue.Task{
		Queue: "tenant-a-default", Name: "d_abc-1", URL: "http://127.0.0.1:8080/execute?x=y",
		Header: map[string]string{"Content-Type": "application/json", "X-Servo-Key": "a b\tc"}, Body: []byte("{}"),
	}
}

func TestValidateAcceptsTasksWithinLimits(t *testing.T) {
	for name, change := range map[string]func(*queue.Task){
		"unchanged":         func(*queue.Task) {},
		"in the past":       func(task *queue.Task) { task.ScheduleTime = now.Add(-time.Hour) },
		"30 days ahead":     func(task *queue.Task) { task.ScheduleTime = now.Add(queue.MaxSchedule) },
		"longest deadline":  func(task *queue.Task) { task.DispatchDeadline = queue.MaxDispatchDeadline },
		"shortest deadline": func(task *queue.Task) { task.DispatchDeadline = queue.MinDispatchDeadline },
		"largest body":      func(task *queue.Task) { task.Body = nil; task.Body = make([]byte, queue.MaxTaskBytes-task.Size()) },
		"longest names": func(task *queue.Task) {
			task.Queue, task.Name = strings.Repeat("q", queue.MaxQueueBytes), strings.Repeat("n", queue.MaxNameBytes)
		},
		"no header, no body": func(task *queue.Task) { task.Header, task.Body = nil, nil },
	} {
		task := valid()
		change(&task)
		require.NoError(t, queue.Validate(task, now), name)
	}
}

func TestValidateReportsReason(t *testing.T) {
	for reason, change := range map[string]func(*queue.Task){
		"the queue's name":                    func(task *queue.Task) { task.Queue = "" },
		"letters, digits and hyph":            func(task *queue.Task) { task.Queue = "under_score" },
		"1 to 100":                            func(task *queue.Task) { task.Queue = strings.Repeat("q", queue.MaxQueueBytes+1) },
		"its name must have":                  func(task *queue.Task) { task.Name = "" },
		"hyphens and underscores":             func(task *queue.Task) { task.Name = "a/b" },
		"1 to 500":                            func(task *queue.Task) { task.Name = strings.Repeat("n", queue.MaxNameBytes+1) },
		"must begin with http:// or https://": func(task *queue.Task) { task.URL = "ftp://host/" },
		"and a host":                          func(task *queue.Task) { task.URL = "http:///path" },
		"invalid URL":                         func(task *queue.Task) { task.URL = "http://[::1" },
		"the URL is":                          func(task *queue.Task) { task.URL += strings.Repeat("x", queue.MaxURLBytes) },
		"by reference":                        func(task *queue.Task) { task.Body = make([]byte, queue.MaxTaskBytes) },
		"reschedules itself":                  func(task *queue.Task) { task.ScheduleTime = now.Add(queue.MaxSchedule + 1) },
		"the dispatch deadline":               func(task *queue.Task) { task.DispatchDeadline = queue.MinDispatchDeadline - 1 },
		"outside 15s to 30m0s":                func(task *queue.Task) { task.DispatchDeadline = queue.MaxDispatchDeadline + 1 },
		"only the queue may set the header X-CLOUDTASKS-TaskName": func(task *queue.Task) {
			task.Header = map[string]string{"X-CLOUDTASKS-TaskName": "forged"}
		},
		"may set the header Host": func(task *queue.Task) { task.Header = map[string]string{"Host": "elsewhere"} },
		"not a valid header name": func(task *queue.Task) {
			task.Header = map[string]string{"a b": "c"}
		},
		"contains a control character": func(task *queue.Task) { task.Header = map[string]string{"A": "b\r\nC: d"} },
		"the headers are":              func(task *queue.Task) { task.Header["A"] = strings.Repeat("x", queue.MaxHeaderBytes) },
	} {
		task := valid()
		change(&task)
		err := queue.Validate(task, now)
		require.ErrorIs(t, err, queue.ErrInvalid, reason)
		require.ErrorContains(t, err, reason)
	}
}

func TestValidateReportsAllProblems(t *testing.T) {
	err := queue.Validate(queue.Task{Queue: "q", Name: "the/name", DispatchDeadline: 1}, now)
	require.ErrorContains(t, err, `"the/name" of queue "q"`)
	require.ErrorContains(t, err, "its name must have")
	require.ErrorContains(t, err, "URL")
	require.ErrorContains(t, err, "the dispatch deadline")
}
