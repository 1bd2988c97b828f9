// Package notify sends messages about alerts to channels: webhooks, Slack, mail, Pub/Sub and files. It calls
// only hosts that the channel names. This package is not a stable API.
package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// MaxBytes bounds the size of a message, and how much of a response is read.
const MaxBytes = 64 << 10

// Message is a message to a channel.
type Message struct {
	// ID is the same for all tries: receivers drop messages whose id they know.
	ID          string `json:"notification_id"`
	Tenant      string `json:"tenant"`
	Workspace   string `json:"workspace"`
	Project     string `json:"project"`
	Environment string `json:"environment,omitempty"`
	Rule        string `json:"rule,omitempty"`
	Cause       string `json:"cause"`
	Subject     string `json:"subject,omitempty"` // asset:KEY, schedule:NAME, backfill:ID or rule:NAME
	// Count is how many transitions the message reports. Listed contains the first 20 partitions, or the first 20
	// subjects of a digest.
	Count  int64    `json:"count"`
	Listed []string `json:"listed,omitempty"`
	// Code and Message are the error of the first transition. RunID and TaskKey name its run and task.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	RunID   string `json:"run_id,omitempty"`
	TaskKey string `json:"task_key,omitempty"`

	FirstAt event.Time `json:"first_at"`
	LastAt  event.Time `json:"last_at"`
	// Command is a command line that explains the alert.
	Command string `json:"command"`
}

// Title returns the message in one line.
func (m *Message) Title() string {
	kind, name, _ := strings.Cut(m.Subject, ":")
	what := strings.TrimSpace(kind + " " + name)
	switch m.Cause {
	case event.CauseTest:
		return "test of a channel"
	case event.CauseDigest:
		return fmt.Sprintf("digest: %d more alerts", m.Count)
	case event.CauseRecovered:
		return fmt.Sprintf("recovered: %s: %s", what, m.Message)
	}
	title := m.Cause + ": " + what
	if m.Count > 1 {
		title += fmt.Sprintf(" (%d times)", m.Count)
	}
	return title
}

// Text returns the message as lines of text.
func (m *Message) Text() string {
	var b strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-10s %s\n", name, text)
		}
	}
	b.WriteString(m.Title() + "\n\n")
	line("project", strings.TrimSpace(m.Project+" "+m.Environment))
	line("domain", m.Tenant+"/"+m.Workspace)
	line("rule", m.Rule)
	line("run", m.RunID)
	line("task", m.TaskKey)
	switch {
	case m.Code != "" && m.Message != "" && m.Cause != event.CauseRecovered:
		line("error", m.Code+": "+m.Message)
	default:
		line("message", m.Message)
	}
	for i, name := range m.Listed {
		if i == 0 {
			line("listed", name)
		} else {
			line("", name)
		}
	}
	if more := m.Count - int64(len(m.Listed)); len(m.Listed) > 0 && more > 0 {
		line("", fmt.Sprintf("… and %d more", more))
	}
	line("first", m.FirstAt.String())
	if m.LastAt != m.FirstAt {
		line("last", m.LastAt.String())
	}
	line("explain", m.Command)
	return b.String()
}

// CloudEvent returns the message as a CloudEvent 1.0 in structured mode.
func (m *Message) CloudEvent() ([]byte, error) {
	data, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": m.ID, "source": "/servo/tenants/" + m.Tenant + "/workspaces/" + m.Workspace,
		"type": "dev.servo.alert." + m.Cause + ".v1", "subject": m.Subject, "time": m.LastAt.Time().Format(time.RFC3339Nano),
		"datacontenttype": "application/json", "data": m,
	})
	if err == nil && len(data) > MaxBytes {
		err = fmt.Errorf("it has %d bytes: at most %d are allowed", len(data), MaxBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the message: %w", err)
	}
	return data, nil
}
