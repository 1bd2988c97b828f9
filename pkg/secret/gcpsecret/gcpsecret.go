// Package gcpsecret reads secrets from Google Secret Manager. This package is not a stable API.
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

// timeout is the timeout of one request, including the request for an access token.
const timeout = 10 * time.Second

// client opens the connection to Secret Manager on first use. So a worker whose projects use no secrets of Secret
// Manager needs no credentials.
type client struct {
	opts []option.ClientOption

	mu      sync.Mutex
	service *secretmanager.Service
}

// Source returns a source of secret versions, named projects/P/secrets/S/versions/V. It uses the process's default
// credentials. It caches no values, so "latest" is always the current version.
func Source(opts ...option.ClientOption) secret.Source {
	// Discard the log of Google's client. If GOOGLE_SDK_GO_LOGGING_LEVEL is set, the client logs responses, and
	// responses contain secrets.
	c := &client{opts: append([]option.ClientOption{option.WithLogger(slog.New(slog.DiscardHandler))}, opts...)}
	return c.access
}

// open returns the service, and creates it on first use. If this fails, the next call tries again.
func (c *client) open(ctx context.Context) (*secretmanager.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service != nil {
		return c.service, nil
	}
	service, err := secretmanager.NewService(context.WithoutCancel(ctx), c.opts...) // the service outlives the first request
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

// payload returns the value in a response after verifying its checksum.
func payload(p *secretmanager.SecretPayload) (string, error) {
	if p == nil {
		return "", errors.New("the response of Secret Manager has no payload")
	}
	data, err := base64.StdEncoding.DecodeString(p.Data)
	if err != nil {
		return "", errors.New("the response of Secret Manager is damaged: invalid base64")
	}
	if sum := p.DataCrc32c; sum != 0 && sum != int64(crc32.Checksum(data, castagnoli)) {
		return "", errors.New("the response of Secret Manager is damaged: wrong checksum")
	}
	return string(data), nil
}

// failure converts an error of the client. It drops the response body, which may contain the
// secret.
func failure(err error) error {
	if answer, ok := errors.AsType[*googleapi.Error](err); ok {
		said := fmt.Errorf("Secret Manager responded %d %s: %.500s", answer.Code, http.StatusText(answer.Code), answer.Message) //nolint:staticcheck // a name
		switch answer.Code {
		case http.StatusUnauthorized, http.StatusForbidden:
			return refused{fmt.Errorf("%w: grant the worker's account roles/secretmanager.secretAccessor on the secret", said)}
		case http.StatusBadRequest, http.StatusNotFound: // Secret Manager also returns this code for a disabled version
			return refused{said}
		}
		return said
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("call Secret Manager: %w", request.Err)
	}
	return errors.New("the response of Secret Manager is not readable")
}

// refused is a permanent error: it matches [secret.ErrRefused].
type refused struct{ error }

func (refused) Is(target error) bool { return target == secret.ErrRefused }
func (r refused) Unwrap() error      { return r.error }
