package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/smtp"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/release"
)

func (s *Sender) smtp(ctx context.Context, c *release.Channel, m *Message) error {
	to := c.SMTP
	password := ""
	if to.Password != "" {
		var err error
		if password, err = s.resolve(ctx, to.Password); err != nil {
			return err
		}
	}
	address := net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))
	connection, err := dialer(c.AllowPrivate).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := connection.SetDeadline(deadline); err != nil {
		return errors.Join(err, connection.Close())
	}
	encryption := &tls.Config{ServerName: to.Host, MinVersion: tls.VersionTLS12, RootCAs: s.roots}
	connection = &bounded{connection, maxMailAnswers}
	if to.TLS == release.ImplicitTLS {
		connection = tls.Client(connection, encryption)
	}
	mail, err := smtp.NewClient(connection, to.Host)
	if err != nil {
		return errors.Join(fmt.Errorf("greet %s: %w", address, err), connection.Close())
	}
	defer mail.Close()
	if to.TLS == release.StartTLS {
		if err := mail.StartTLS(encryption); err != nil {
			return fmt.Errorf("encrypt the connection to %s: %w", address, err)
		}
	}
	if password != "" {
		if err := mail.Auth(smtp.PlainAuth("", to.User, password, to.Host)); err != nil {
			return fmt.Errorf("log in to %s as %s: %w", address, to.User, err)
		}
	}
	return deliver(mail, to, m, s.Clock.Now())
}

// maxMailAnswers bounds how much is read from a mail server for one mail. Package smtp reads a line of any length into
// memory, and the channels of several tenants share a process.
const maxMailAnswers = 4 * MaxBytes

// bounded is a connection that limits how many bytes are read.
type bounded struct {
	net.Conn

	remaining int // how many more bytes may be read
}

// Read implements [io.Reader].
func (c *bounded) Read(p []byte) (int, error) {
	if c.remaining <= 0 {
		return 0, fmt.Errorf("the mail server answered with more than %d bytes", maxMailAnswers)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.remaining)])
	c.remaining -= n
	return n, err
}

// PartialError means that a mail was sent, but that the server refused some of its recipients. The mail must not be
// sent again, because the other recipients have received it.
type PartialError struct{ Err error }

// Error implements error.
func (e *PartialError) Error() string { return e.Err.Error() }

// Unwrap returns the errors of the refused recipients.
func (e *PartialError) Unwrap() error { return e.Err }

// deliver sends the mail to the recipients that the server accepts. It returns a [PartialError] if the server refused
// some of them. After the server has accepted the mail, deliver ignores failures.
func deliver(mail *smtp.Client, to *release.SMTPChannel, m *Message, now time.Time) error {
	if err := mail.Mail(to.From); err != nil {
		return fmt.Errorf("send from %s: %w", to.From, err)
	}
	refused, err := addRecipients(mail, to.To)
	if err != nil {
		return err
	}
	if err := sendText(mail, to, m, now); err != nil {
		return err
	}
	if len(refused) > 0 {
		return &PartialError{errors.Join(refused...)}
	}
	return nil
}

// addRecipients sends the recipients of the mail to the server. It returns an error for each recipient that the server
// refuses. If the server refuses all recipients, or refuses one of them only temporarily, addRecipients returns err and
// nothing else.
func addRecipients(mail *smtp.Client, recipients []string) (refused []error, err error) {
	const permanent = 500 // the lowest code of a permanent failure
	for _, recipient := range recipients {
		if err := mail.Rcpt(recipient); err != nil {
			err = fmt.Errorf("send to %s: %w", recipient, err)
			if answer, ok := errors.AsType[*textproto.Error](err); !ok || answer.Code < permanent {
				return nil, err
			}
			refused = append(refused, err)
		}
	}
	if len(refused) == len(recipients) {
		return nil, errors.Join(refused...)
	}
	return refused, nil
}

func sendText(mail *smtp.Client, to *release.SMTPChannel, m *Message, now time.Time) error {
	body, err := mail.Data()
	if err != nil {
		return fmt.Errorf("send the text: %w", err)
	}
	text, err := mailText(to, m, now)
	if err != nil {
		return err
	}
	if _, err := body.Write(text); err != nil {
		return fmt.Errorf("send the text: %w", err)
	}
	if err := body.Close(); err != nil {
		return fmt.Errorf("send the text: %w", err)
	}
	_ = mail.Quit()
	return nil
}

// mailText returns the text of a mail, including its header. If Servo sends the mail again, its Message-ID is the
// same.
func mailText(to *release.SMTPChannel, m *Message, now time.Time) ([]byte, error) {
	var b bytes.Buffer
	header := func(name, value string) { fmt.Fprintf(&b, "%s: %s\r\n", name, oneLine(value)) }
	header("From", to.From)
	header("To", strings.Join(to.To, ", "))
	header("Subject", mime.QEncoding.Encode("utf-8", oneLine("[servo] "+m.Title())))
	header("Date", now.Format(time.RFC1123Z))
	header("Message-ID", "<"+m.ID+"@"+to.Host+">")
	header("Auto-Submitted", "auto-generated")
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	w := quotedprintable.NewWriter(&b)
	_, err := w.Write([]byte(strings.ReplaceAll(m.Text(), "\n", "\r\n")))
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("encode the mail: %w", err)
	}
	return b.Bytes(), nil
}

// oneLine removes line breaks, because a line break would begin another header.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\r' || r == '\n' {
			return ' '
		}
		return r
	}, text)
}
