package notify_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/secret"
)

var message = &notify.Message{
	ID: "01JD0000000000000000000000", Tenant: "acme", Workspace: "prod", Project: "shop", Rule: "gold", Cause: event.CauseTaskFailed,
	Subject: "asset:clean/daily", Count: 3, Listed: []string{`{"date":"2026-01-01"}`}, Code: "SQL_ERROR", Message: "no column <b> & more",
	RunID: "01JD0000000000000000000001", FirstAt: 1_000_000, LastAt: 2_000_000, Command: "servo explain clean/daily",
}

// sender returns a sender that can read one secret. The secret's reference is file:key, and its value is the
// parameter value.
func sender(value string) *notify.Sender {
	return &notify.Sender{Clock: clock.System{}, Secrets: func(_ context.Context, reference string) (string, error) {
		if reference != "file:key" {
			return "", errors.New("secret " + reference + ": no such file")
		}
		return value, nil
	}}
}

// answerServer starts a server that returns the same answer to every request. It returns the server's URL and a
// function that returns the last request.
func answerServer(t *testing.T, status int, header http.Header, body string) (url string, last func() (*http.Request, []byte)) {
	var request *http.Request
	var got []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request = r
		got, _ = io.ReadAll(r.Body)
		for name := range header {
			w.Header().Set(name, header.Get(name))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() (*http.Request, []byte) { return request, got }
}

func webhook(url string, private bool) *release.Channel {
	return &release.Channel{Name: "hook", Webhook: &release.WebhookChannel{URL: url, Secret: "file:key"}, AllowPrivate: private}
}

func TestWebhookSendsSignedCloudEvent(t *testing.T) {
	url, last := answerServer(t, http.StatusAccepted, nil, "")
	require.NoError(t, sender("secret").Send(t.Context(), webhook(url, true), message))
	r, body := last()
	require.Equal(t, "application/cloudevents+json; charset=utf-8", r.Header.Get("Content-Type"))
	require.Equal(t, message.ID, r.Header.Get("Idempotency-Key"))
	var at int64
	_, err := fmt.Sscanf(r.Header.Get(notify.SignatureHeader), "t=%d,", &at)
	require.NoError(t, err)
	require.Equal(t, notify.Sign("secret", time.Unix(at, 0), body), r.Header.Get(notify.SignatureHeader))
	require.NotEqual(t, notify.Sign("other", time.Unix(at, 0), body), r.Header.Get(notify.SignatureHeader))
	var e map[string]any
	require.NoError(t, json.Unmarshal(body, &e))
	require.Equal(t, "1.0", e["specversion"])
	require.Equal(t, message.ID, e["id"])
	require.Equal(t, "dev.servo.alert.task_failed.v1", e["type"])
	require.Equal(t, "/servo/tenants/acme/workspaces/prod", e["source"])
	data, ok := e["data"].(map[string]any)
	require.True(t, ok)
	require.InDelta(t, 3, data["count"], 0)
	require.Equal(t, "servo explain clean/daily", data["command"])
}

func TestWebhookReportsFailures(t *testing.T) {
	url, last := answerServer(t, http.StatusInternalServerError, nil, "the key secret is wrong\nmore")
	require.ErrorContains(t, sender("secret").Send(t.Context(), webhook(url, true), message), "it answered 500 Internal Server Error")

	elsewhere, other := answerServer(t, http.StatusOK, nil, "")
	url, _ = answerServer(t, http.StatusTemporaryRedirect, http.Header{"Location": {elsewhere}}, "")
	require.ErrorContains(t, sender("secret").Send(t.Context(), webhook(url, true), message), "redirects are not followed")
	r, _ := other()
	require.Nil(t, r, "the redirect was followed")

	err := sender("").Send(t.Context(), webhook("http://127.0.0.1:1", false), message)
	require.ErrorContains(t, err, "127.0.0.1 is private: add allow_private: true")
	r, _ = last()
	require.NotNil(t, r)

	c := webhook("http://localhost:1", false) // the sender checks the resolved address
	require.ErrorContains(t, sender("").Send(t.Context(), c, message), "is private")

	c = webhook(url, true)
	c.Webhook.Secret = "file:none"
	require.ErrorContains(t, sender("").Send(t.Context(), c, message), "channel hook: secret file:none: no such file")
	require.ErrorContains(t, (&notify.Sender{Clock: clock.System{}}).Send(t.Context(), webhook(url, true), message), "cannot read secrets")
}

func TestWebhookLimitsAnswers(t *testing.T) {
	url, _ := answerServer(t, http.StatusBadRequest, nil, strings.Repeat("x", 10*notify.MaxBytes))
	err := sender("secret").Send(t.Context(), webhook(url, true), message)
	require.ErrorContains(t, err, "400 Bad Request")
	require.Less(t, len(err.Error()), 400)
}

func TestSlackHidesItsURL(t *testing.T) {
	url, last := answerServer(t, http.StatusOK, nil, "ok")
	c := &release.Channel{Name: "chat", Slack: &release.SlackChannel{URL: "file:key", Host: "127.0.0.1"}, AllowPrivate: true}
	require.NoError(t, sender(url+"/services/T0/B0/TOKEN").Send(t.Context(), c, message))
	_, body := last()
	require.Contains(t, string(body), `no column \u0026lt;b\u0026gt; \u0026amp; more`, "Slack's control characters are escaped")

	refused, _ := answerServer(t, http.StatusForbidden, nil, "invalid_token for /services/T0/B0/TOKEN")
	for value, want := range map[string]string{
		refused + "/services/T0/B0/TOKEN":           "it answered 403 Forbidden",
		"http://127.0.0.1:1/services/T0/B0/TOKEN":   "connection refused",
		"https://evil.example/services/T0/B0/TOKEN": "is not a URL of the host 127.0.0.1",
		"http://127.0.0.1:x/services/T0/B0/TOKEN":   "the value of file:key is not a URL",
	} {
		err := sender(value).Send(t.Context(), c, message)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "B0/TOKEN\"", "the URL is a secret")
		require.NotContains(t, err.Error(), value)
	}
	c.AllowPrivate = false
	require.ErrorContains(t, sender(url).Send(t.Context(), c, message), "does not begin with https")
}

func TestFileAppendsLines(t *testing.T) {
	root := t.TempDir()
	s := &notify.Sender{Clock: clock.System{}, Root: root}
	c := &release.Channel{Name: "log", File: &release.FileChannel{Path: "logs/alerts.jsonl"}}
	for range 2 {
		require.NoError(t, s.Send(t.Context(), c, message))
	}
	data, err := os.ReadFile(filepath.Join(root, "logs", "alerts.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(data), "\n"))
	require.Contains(t, string(data), `"type":"dev.servo.alert.task_failed.v1"`)

	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "out")))
	c.File.Path = "out/alerts.jsonl"
	require.ErrorContains(t, s.Send(t.Context(), c, message), "path escapes")
	s.Root = ""
	require.ErrorContains(t, s.Send(t.Context(), c, message), "use a file channel only with servo on one machine")
	bus := &release.Channel{Name: "bus", PubSub: &release.PubSubChannel{Topic: "projects/p/topics/t"}}
	require.ErrorContains(t, s.Send(t.Context(), bus, message), "only the dispatcher on Google Cloud can")
	require.ErrorContains(t, s.Send(t.Context(), &release.Channel{Name: "new"}, message), "unknown kind")
}

// mailServer starts a mail server that accepts one connection. It returns a notification channel with two recipients,
// and a Go channel that receives all lines of the client when the connection ends. refusals maps commands of the client
// to the answers with which the server refuses them.
func mailServer(t *testing.T, refusals map[string]string) (*release.Channel, <-chan string, net.Listener) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan string, 1)
	go func() {
		connection, err := l.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		var mail strings.Builder
		defer func() { got <- mail.String() }()
		in := bufio.NewScanner(connection)
		say := func(text string) { _, _ = io.WriteString(connection, text+"\r\n") }
		say("220 mail.example")
		for data := false; in.Scan(); {
			mail.WriteString(in.Text() + "\n")
			switch {
			case data && in.Text() == ".":
				data = false
				say("250 accepted")
			case data:
			case strings.HasPrefix(in.Text(), "EHLO"):
				say("250 mail.example")
			case in.Text() == "DATA":
				data = true
				say("354 go on")
			case in.Text() == "QUIT":
				say("221 bye")
				return
			default:
				say(cmp.Or(refusals[in.Text()], "250 ok"))
			}
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	c := &release.Channel{Name: "mail", AllowPrivate: true, SMTP: &release.SMTPChannel{
		Host: "127.0.0.1", TLS: release.NoTLS, From: "servo@example.com", To: []string{"data@example.com", "b@example.com"},
	}}
	_, err = fmt.Sscan(port, &c.SMTP.Port)
	require.NoError(t, err)
	return c, got, l
}

// If the mail server no longer knows the address of one recipient, the other recipients still receive the mail.
func TestMailIsSentToOtherRecipients(t *testing.T) {
	const data, b = "RCPT TO:<data@example.com>", "RCPT TO:<b@example.com>"
	c, got, _ := mailServer(t, map[string]string{data: "550 no such user"})
	err := sender("").Send(t.Context(), c, message)
	require.ErrorAs(t, err, new(*notify.PartialError))
	require.ErrorContains(t, err, `send to data@example.com: 550 "no such user"`)
	require.Contains(t, <-got, "Message-ID: ")

	for text, refuse := range map[string]map[string]string{
		"no such user":  {data: "550 no such user", b: "550 no such user"},
		"try again":     {b: "451 try again"}, // the server may accept b later
		"shutting down": {data: "550 no such user", b: "421 shutting down"},
	} {
		c, got, _ := mailServer(t, refuse)
		err := sender("").Send(t.Context(), c, message)
		require.ErrorContains(t, err, text)
		require.False(t, errors.As(err, new(*notify.PartialError)), text)
		require.NotContains(t, <-got, "DATA")
	}
}

// TestMailIsSentOnce sends a mail to a server that does not encrypt connections, as is common in private networks.
func TestMailIsSentOnce(t *testing.T) {
	c, got, l := mailServer(t, nil)
	injected := *message
	injected.Subject = "asset:x\r\nBcc: evil@example.com"
	require.NoError(t, sender("").Send(t.Context(), c, &injected))
	mail := <-got
	require.Contains(t, mail, "RCPT TO:<b@example.com>")
	require.Contains(t, mail, "Message-ID: <"+message.ID+"@127.0.0.1>")
	require.Contains(t, mail, "SQL_ERROR: no column <b> & more")
	header, _, _ := strings.Cut(mail, "\n\n")
	require.Contains(t, header, "Auto-Submitted: auto-generated")
	require.NotContains(t, header, "\nBcc:", "a subject cannot begin a header")

	require.NoError(t, l.Close())
	require.Error(t, sender("").Send(t.Context(), c, message), "the server is gone")
}

func TestAllowedSecretsAreThoseOfPatterns(t *testing.T) {
	allowed, err := notify.ParseAllowed([]string{"gcp:projects/p/secrets/alerts-*", "acme=gcp:projects/p/secrets/slack"})
	require.NoError(t, err)
	from := func(_ context.Context, reference string) (string, error) { return "value of " + reference, nil }
	for _, x := range []struct {
		tenant, reference string
		ok                bool
	}{
		{"globex", "gcp:projects/p/secrets/alerts-1", true},
		{"globex", "gcp:projects/p/secrets/alerts", false},
		{"globex", "gcp:projects/p/secrets/slack", false},
		{"acme", "gcp:projects/p/secrets/slack", true},
		{"acme", "gcp:projects/p/secrets/slack2", false},
		{"acme", "env:DB_PASSWORD", false},
	} {
		value, err := allowed.Only(x.tenant, from)(t.Context(), x.reference)
		if x.ok {
			require.NoError(t, err, x.reference)
			require.Equal(t, "value of "+x.reference, value)
		} else {
			require.ErrorIs(t, err, secret.ErrRefused, x.reference)
			require.ErrorContains(t, err, "--channel-secrets")
		}
	}
	for _, wrong := range []string{"", "x", "gcp:", "gcp:*", "gcp:a*b", "=gcp:x", "acme="} {
		_, err := notify.ParseAllowed([]string{wrong})
		require.Error(t, err, wrong)
	}
	_, err = notify.Allowed(nil).Only("acme", from)(t.Context(), "file:x")
	require.ErrorIs(t, err, secret.ErrRefused, "without a list, nothing is allowed")
}

// A named pipe without a reader would block the notifier.
func TestFileMustBeRegular(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "alerts"), 0o600))
	s := &notify.Sender{Clock: clock.System{}, Root: root}
	send := func() error {
		return s.Send(t.Context(), &release.Channel{Name: "pipe", File: &release.FileChannel{Path: "alerts"}}, &notify.Message{ID: "x"})
	}
	require.ErrorContains(t, send(), "open alerts")
	reader, err := os.OpenFile(filepath.Join(root, "alerts"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	require.ErrorContains(t, send(), "append to alerts: it is not a regular file: choose another path")
}
