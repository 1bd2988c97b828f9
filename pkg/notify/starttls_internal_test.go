package notify

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/release"
)

// mailServer starts a mail server for one client. If certificate is set, the server offers encryption. The channel
// lines receives every line that the client sends. A line that was sent encrypted has the prefix "tls ".
func mailServer(t *testing.T, certificate *tls.Certificate) (port int32, lines chan string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lines = make(chan string, 100)
	go func() {
		defer close(lines)
		connection, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }()
		in, prefix, data := bufio.NewScanner(connection), "", false
		say := func(text string) { _, _ = io.WriteString(connection, text+"\r\n") }
		say("220 mail.example")
		for in.Scan() {
			lines <- prefix + in.Text()
			switch {
			case data && in.Text() == ".":
				data = false
				say("250 accepted")
			case data:
			case strings.HasPrefix(in.Text(), "EHLO") && certificate != nil && prefix == "":
				say("250-mail.example\r\n250 STARTTLS")
			case strings.HasPrefix(in.Text(), "EHLO"):
				say("250-mail.example\r\n250 AUTH PLAIN")
			case in.Text() == "STARTTLS" && certificate != nil:
				say("220 go on")
				secure := tls.Server(connection, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12})
				connection, in, prefix = secure, bufio.NewScanner(secure), "tls "
			case strings.HasPrefix(in.Text(), "AUTH PLAIN"):
				say("235 welcome")
			case in.Text() == "DATA":
				data = true
				say("354 go on")
			case in.Text() == "QUIT":
				say("221 bye")
				return
			default:
				say("250 ok")
			}
		}
	}()
	return int32(l.Addr().(*net.TCPAddr).Port), lines //nolint:gosec,forcetypeassert // a port
}

// sendMail sends a mail with a password, and returns what the server received.
func sendMail(t *testing.T, certificate *tls.Certificate, roots *x509.CertPool) (told string, err error) {
	t.Helper()
	port, lines := mailServer(t, certificate)
	s := &Sender{
		Clock: clock.System{}, roots: roots,
		Secrets: func(context.Context, string) (string, error) { return "swordfish", nil },
	}
	err = s.Send(t.Context(), &release.Channel{Name: "mail", AllowPrivate: true, SMTP: &release.SMTPChannel{
		Host: "127.0.0.1", Port: port, TLS: release.StartTLS, From: "servo@example.com", To: []string{"data@example.com"}, User: "servo", Password: "env:PASSWORD",
	}}, &Message{ID: "01J", Subject: "asset:a/b"})
	for line := range lines {
		told += line + "\n"
	}
	return told, err
}

// The sender sends the password and the mail only if the connection is encrypted and the certificate names the server.
func TestMailIsEncryptedBeforeTheLogin(t *testing.T) {
	trusted := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is for 127.0.0.1
	defer trusted.Close()
	roots := x509.NewCertPool()
	roots.AddCert(trusted.Certificate())

	told, err := sendMail(t, &trusted.TLS.Certificates[0], roots)
	require.NoError(t, err)
	require.Contains(t, told, "\ntls AUTH PLAIN ")
	require.Contains(t, told, "\ntls Message-ID: <01J@127.0.0.1>")
	require.NotContains(t, told, "\nAUTH")

	told, err = sendMail(t, &trusted.TLS.Certificates[0], nil)
	require.ErrorContains(t, err, "encrypt the connection to 127.0.0.1")
	require.NotContains(t, told, "AUTH", "the system does not know the certificate")

	told, err = sendMail(t, nil, roots)
	require.ErrorContains(t, err, "encrypt the connection to 127.0.0.1")
	require.NotContains(t, told, "AUTH", "the server cannot encrypt")
	require.NotContains(t, told, "DATA")
}

// A mail server must not fill the memory of the process with an answer that does not end.
func TestLongAnswersOfMailServersAreRefused(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if connection, err := l.Accept(); err == nil {
			_, _ = io.WriteString(connection, "220 "+strings.Repeat("x", 2*maxMailAnswers)+"\r\n")
			_ = connection.Close()
		}
	}()
	c := &release.Channel{Name: "mail", AllowPrivate: true, SMTP: &release.SMTPChannel{
		Host: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port), TLS: release.NoTLS, From: "servo@example.com", To: []string{"data@example.com"}, //nolint:gosec,forcetypeassert // a port
	}}
	err = (&Sender{Clock: clock.System{}}).Send(t.Context(), c, &Message{ID: "x"})
	require.ErrorContains(t, err, "the mail server answered with more than 262144 bytes")
}
