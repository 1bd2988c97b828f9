package release

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Channel is a destination of alerts. Exactly one of the fields for its kinds is set. References to secrets have the
// form of [plan.ParseSecret].
type Channel struct {
	Name    string          `json:"name"`
	Webhook *WebhookChannel `json:"webhook,omitempty"`
	Slack   *SlackChannel   `json:"slack,omitempty"`
	SMTP    *SMTPChannel    `json:"smtp,omitempty"`
	PubSub  *PubSubChannel  `json:"pubsub,omitempty"`
	File    *FileChannel    `json:"file,omitempty"`
	// AllowPrivate permits destinations with private addresses, and http instead of https.
	AllowPrivate bool `json:"allow_private,omitempty"`
}

// WebhookChannel sends CloudEvents to a URL.
type WebhookChannel struct {
	URL string `json:"url"`
	// Secret is a reference to the key that signs the messages. "" means that messages are not signed.
	Secret string `json:"secret,omitempty"`
}

// SlackChannel sends messages to an incoming webhook of Slack.
type SlackChannel struct {
	URL string `json:"url"` // a reference to a secret
	// Host is the host that the URL in the secret must have.
	Host string `json:"host"`
}

// SMTPChannel sends mail.
type SMTPChannel struct {
	Host string   `json:"host"`
	Port int32    `json:"port"`
	TLS  string   `json:"tls"` // starttls, implicit or none
	From string   `json:"from"`
	To   []string `json:"to"`
	User string   `json:"user,omitempty"`
	// Password is a reference to a secret.
	Password string `json:"password,omitempty"`
}

// Values of [SMTPChannel.TLS].
const (
	StartTLS    = "starttls"
	ImplicitTLS = "implicit"
	NoTLS       = "none"
)

// PubSubChannel publishes to a topic of Pub/Sub.
type PubSubChannel struct {
	Topic string `json:"topic"` // projects/P/topics/T
}

// FileChannel appends lines to a file in the folder of the project.
type FileChannel struct {
	Path string `json:"path"`
}

// Kind returns the kind of the channel.
func (c *Channel) Kind() string {
	switch {
	case c.Webhook != nil:
		return "webhook"
	case c.Slack != nil:
		return "slack"
	case c.SMTP != nil:
		return "smtp"
	case c.PubSub != nil:
		return "pubsub"
	case c.File != nil:
		return "file"
	}
	return ""
}

// Secrets returns the references to secrets that the channel needs.
func (c *Channel) Secrets() (references []string) {
	add := func(reference string) {
		if reference != "" {
			references = append(references, reference)
		}
	}
	switch {
	case c.Webhook != nil:
		add(c.Webhook.Secret)
	case c.Slack != nil:
		add(c.Slack.URL)
	case c.SMTP != nil:
		add(c.SMTP.Password)
	}
	return references
}

// Channel returns the channel with a name, or nil if the release has none.
func (s *Settings) Channel(name string) *Channel {
	i, ok := slices.BinarySearchFunc(s.Channels, name, func(c Channel, name string) int { return strings.Compare(c.Name, name) })
	if !ok {
		return nil
	}
	return &s.Channels[i]
}

// Alert returns the alert rule with a name, or nil if the release has none.
func (s *Settings) Alert(name string) *event.AlertRule {
	for i := range s.Alerts {
		if s.Alerts[i].Name == name {
			return &s.Alerts[i]
		}
	}
	return nil
}
