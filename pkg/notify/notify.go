package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// Sender sends messages.
type Sender struct {
	Clock clock.Clock
	// Secrets returns the value of the secret with the given reference. If Secrets is nil, channels with secrets cannot
	// be used.
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor hides the values of secrets in the log of this process. It may be nil.
	Redactor *secret.Redactor
	// Publish publishes to a topic of Pub/Sub. If it is nil, channels with topics cannot be used.
	Publish func(ctx context.Context, topic string, data []byte, attributes map[string]string) error
	// Root is the folder of the project. Channels that are files write below Root. If Root is empty, such channels
	// cannot be used.
	Root string

	roots *x509.CertPool // the certificate authorities for mail servers; nil: those of the operating system
}

// Send sends a message to a channel. Its errors contain no secrets.
func (s *Sender) Send(ctx context.Context, c *release.Channel, m *Message) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	switch {
	case c.Webhook != nil:
		err = s.webhook(ctx, c, m)
	case c.Slack != nil:
		err = s.slack(ctx, c, m)
	case c.SMTP != nil:
		err = s.smtp(ctx, c, m)
	case c.PubSub != nil:
		err = s.pubsub(ctx, c.PubSub, m)
	case c.File != nil:
		err = s.file(c.File, m)
	default:
		err = errors.New("unknown kind: update servo")
	}
	if err != nil {
		return fmt.Errorf("channel %s: %w", c.Name, err)
	}
	return nil
}

// resolve returns the value of a secret.
func (s *Sender) resolve(ctx context.Context, reference string) (string, error) {
	if s.Secrets == nil {
		return "", errors.New("this process cannot read secrets: use a channel without secrets")
	}
	value, err := s.Secrets(ctx, reference)
	if err == nil && s.Redactor != nil {
		s.Redactor.Add(value)
	}
	return value, err
}

// SignatureHeader is the header with the signature of a webhook's body: t=SECONDS,v1=HEX, where HEX is the
// HMAC-SHA256 of the seconds, a dot and the body.
const SignatureHeader = "Servo-Signature"

// Sign returns the signature of a body that is sent at the given time.
func Sign(key string, at time.Time, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func (s *Sender) webhook(ctx context.Context, c *release.Channel, m *Message) error {
	body, err := m.CloudEvent()
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}, "Idempotency-Key": {m.ID}}
	if reference := c.Webhook.Secret; reference != "" {
		key, err := s.resolve(ctx, reference)
		if err != nil {
			return err
		}
		header.Set(SignatureHeader, Sign(key, s.Clock.Now(), body))
	}
	return post(ctx, c, c.Webhook.URL, header, body, nil)
}

func (s *Sender) slack(ctx context.Context, c *release.Channel, m *Message) error {
	text, err := s.resolve(ctx, c.Slack.URL)
	if err != nil {
		return err
	}
	to, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("the value of %s is not a URL", c.Slack.URL) // omit err, which contains the secret value
	case to.Hostname() != c.Slack.Host:
		return fmt.Errorf("%w: the value of %s is not a URL of the host %s, which the channel names", errRefused, c.Slack.URL, c.Slack.Host)
	case to.Scheme != "https" && (!c.AllowPrivate || to.Scheme != "http"):
		return fmt.Errorf("%w: the value of %s does not begin with https", errRefused, c.Slack.URL)
	}
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	body, err := json.Marshal(map[string]string{"text": "*" + escape.Replace(m.Title()) + "*\n```" + escape.Replace(strings.ReplaceAll(m.Text(), "```", "'''")) + "```"})
	if err != nil {
		return fmt.Errorf("encode the message: %w", err)
	}
	return post(ctx, c, text, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, body, secret.NewMask([]string{text}))
}

// post sends a body. mask hides secrets in the error. It is nil if there are no secrets.
func post(ctx context.Context, c *release.Channel, to string, header http.Header, body []byte, mask *secret.Mask) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return errors.New("its URL is invalid") // omit err, which contains the URL
	}
	request.Header = header
	request.Header.Set("User-Agent", "servo")
	answer, err := client(c.AllowPrivate).Do(request)
	if failure := (*url.Error)(nil); errors.As(err, &failure) {
		err = failure.Err // the text of a url.Error contains the URL
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, MaxBytes))
	switch {
	case answer.StatusCode >= http.StatusOK && answer.StatusCode < http.StatusMultipleChoices:
		return nil
	case answer.StatusCode < http.StatusBadRequest:
		return fmt.Errorf("it answered %s, but redirects are not followed: use the final URL", answer.Status)
	}
	return fmt.Errorf("it answered %s%s", answer.Status, firstLine(mask.Bytes(text)))
}

// maxSaid is the maximum number of characters of a response that an error quotes.
const maxSaid = 200

// firstLine returns the first line of a response, for an error message.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(strings.ToValidUTF8(string(text), "")), "\n")
	if len(line) > maxSaid {
		line = strings.ToValidUTF8(line[:maxSaid], "") + "…"
	}
	if line != "" {
		line = ": " + line
	}
	return line
}

func (s *Sender) pubsub(ctx context.Context, c *release.PubSubChannel, m *Message) error {
	if s.Publish == nil {
		return errors.New("this process cannot publish to Pub/Sub: only the dispatcher on Google Cloud can")
	}
	body, err := m.CloudEvent()
	if err != nil {
		return err
	}
	return s.Publish(ctx, c.Topic, body, map[string]string{
		"content-type": "application/cloudevents+json", "idempotency-key": m.ID, "cause": m.Cause, "rule": m.Rule,
	})
}

// Modes of files and folders that a channel creates.
const (
	fileMode   = 0o644
	folderMode = 0o755
)

// file appends a line to a file of the project's folder. It fails if the path or a link leads out of the folder.
func (s *Sender) file(c *release.FileChannel, m *Message) (err error) {
	if s.Root == "" {
		return errors.New("the channel is a file in the project's folder, which this process does not have: use a file channel only with servo on one machine")
	}
	body, err := m.CloudEvent()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(s.Root)
	if err != nil {
		return fmt.Errorf("open the project's folder: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if folder := path.Dir(c.Path); folder != "." {
		if err := root.MkdirAll(folder, folderMode); err != nil {
			return fmt.Errorf("create the folder of %s: %w", c.Path, err)
		}
	}
	// Without O_NONBLOCK, the call waits if the path is a named pipe that no process reads.
	f, err := root.OpenFile(c.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return fmt.Errorf("open %s: %w", c.Path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("append to %s: it is not a regular file: choose another path", c.Path))
	}
	if _, err := f.Write(append(body, '\n')); err != nil { // a single write, so that lines of several processes do not mix
		return fmt.Errorf("append to %s: %w", c.Path, err)
	}
	return nil
}
