// Package gcpsecret finds secrets in Google Secret Manager.
package gcpsecret

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	secretmanager "google.golang.org/api/secretmanager/v1"

	"github.com/servo-orchestration/servo/pkg/secret"
)

// timeout is how long one answer is waited for, with the token that it takes.
const timeout = 10 * time.Second

// client is made when it is first asked: who has no secrets there needs no credentials.
type client struct {
	opts []option.ClientOption

	mu      sync.Mutex
	service *secretmanager.Service
}

// Source gives the payloads of versions, projects/P/secrets/S/versions/V, as this process's
// default credentials may read them. Nothing is kept: what is latest is asked for anew.
func Source(opts ...option.ClientOption) secret.Source {
	// Google's clients log what they are answered where GOOGLE_SDK_GO_LOGGING_LEVEL asks for it.
	c := &client{opts: append([]option.ClientOption{option.WithLogger(slog.New(slog.DiscardHandler))}, opts...)}
	return c.access
}

// open makes the client. Where that fails, the next one tries again.
func (c *client) open(ctx context.Context) (*secretmanager.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service != nil {
		return c.service, nil
	}
	service, err := secretmanager.NewService(context.WithoutCancel(ctx), c.opts...) // it outlives who is first
	if err != nil {
		return nil, fmt.Errorf("open Secret Manager: %w", err)
	}
	c.service = service
	return service, nil
}

func (c *client) access(ctx context.Context, name string) (string, error) {
	service, err := c.open(ctx)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := service.Projects.Secrets.Versions.Access(name).Context(ctx).Do()
	if err != nil {
		return "", failure(err)
	}
	return payload(answer.Payload)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// payload is the value that an answer has, if it came as it was sent.
func payload(p *secretmanager.SecretPayload) (string, error) {
	if p == nil {
		return "", errors.New("the answer of Secret Manager has no payload")
	}
	data, err := base64.StdEncoding.DecodeString(p.Data)
	if err != nil {
		return "", errors.New("the answer of Secret Manager is damaged")
	}
	if sum := p.DataCrc32c; sum != 0 && sum != int64(crc32.Checksum(data, castagnoli)) {
		return "", errors.New("the answer of Secret Manager is damaged: its checksum is another one")
	}
	return string(data), nil
}

// failure says what went wrong, without what the answer holds.
func failure(err error) error {
	if answer, ok := errors.AsType[*googleapi.Error](err); ok {
		said := fmt.Errorf("Secret Manager answers %d %s: %.500s", answer.Code, http.StatusText(answer.Code), answer.Message) //nolint:staticcheck // a name
		switch answer.Code {
		case http.StatusUnauthorized, http.StatusForbidden:
			return refused{fmt.Errorf("%w; the worker's account needs roles/secretmanager.secretAccessor on it", said)}
		case http.StatusBadRequest, http.StatusNotFound: // of a version that is disabled, too
			return refused{said}
		}
		return said
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("ask Secret Manager: %w", request.Err)
	}
	return errors.New("the answer of Secret Manager cannot be read")
}

// refused is an error that stays until somebody does something.
type refused struct{ error }

func (refused) Is(target error) bool { return target == secret.ErrRefused }
func (r refused) Unwrap() error      { return r.error }
