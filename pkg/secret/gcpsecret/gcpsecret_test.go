package gcpsecret_test

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/secret/gcpsecret"
)

const value = "hunter2\n\xff"

// manager is a fake Secret Manager. The name of a secret selects the response.
type manager struct {
	asked atomic.Int64
	paths chan string
}

func (m *manager) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	m.asked.Add(1)
	m.paths <- r.Method + " " + r.URL.Path
	rw.Header().Set("Content-Type", "application/json")
	data := base64.StdEncoding.EncodeToString([]byte(value))
	sum := crc32.Checksum([]byte(value), crc32.MakeTable(crc32.Castagnoli))
	switch name := strings.Split(r.URL.Path, "/")[5]; name {
	case "good":
		fmt.Fprintf(rw, `{"name": "x", "payload": {"data": "%s", "dataCrc32c": "%d"}}`, data, sum)
	case "unsummed":
		fmt.Fprintf(rw, `{"payload": {"data": "%s"}}`, data)
	case "damaged":
		fmt.Fprintf(rw, `{"payload": {"data": "%s", "dataCrc32c": "%d"}}`, data, sum+1)
	case "not-base64":
		fmt.Fprint(rw, `{"payload": {"data": "%hunter2"}}`)
	case "without":
		fmt.Fprint(rw, `{}`)
	case "not-json":
		fmt.Fprint(rw, `hunter2`)
	case "number":
		fmt.Fprint(rw, `{"payload": {"data": 47114711}}`)
	default:
		var status int
		_, _ = fmt.Sscanf(name, "status-%d", &status)
		rw.WriteHeader(status)
		fmt.Fprintf(rw, `{"error": {"code": %d, "message": "said %s"}}`, status, name)
	}
}

func start(t *testing.T) (*manager, secret.Sources) {
	t.Helper()
	m := &manager{paths: make(chan string, 100)}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return m, secret.Sources{"gcp": gcpsecret.Source(option.WithEndpoint(server.URL), option.WithoutAuthentication())}
}

func TestSourceReadsLatestVersionEachTime(t *testing.T) {
	m, s := start(t)
	require.Zero(t, m.asked.Load())
	for range 2 {
		got, err := s.Resolve(t.Context(), "gcp:projects/p/secrets/good")
		require.NoError(t, err)
		require.Equal(t, value, got)
		require.Equal(t, "GET /v1/projects/p/secrets/good/versions/latest:access", <-m.paths)
	}
	got, err := s.Resolve(t.Context(), "gcp:projects/p/secrets/unsummed/versions/7")
	require.NoError(t, err)
	require.Equal(t, value, got)
	require.Equal(t, "GET /v1/projects/p/secrets/unsummed/versions/7:access", <-m.paths)
}

func TestSourceErrorsContainNoValue(t *testing.T) {
	_, s := start(t)
	for name, c := range map[string]struct {
		want    string
		refused bool
	}{
		"damaged":    {"wrong checksum", false},
		"not-base64": {"is damaged", false},
		"without":    {"has no payload", false},
		"not-json":   {"not readable", false},
		"number":     {"not readable", false},
		"status-400": {"responded 400 Bad Request: said status-400", true},
		"status-401": {"roles/secretmanager.secretAccessor", true},
		"status-403": {"responded 403 Forbidden: said status-403: grant the worker's account roles/secretmanager.secretAccessor on the secret", true},
		"status-404": {"responded 404 Not Found: said status-404", true},
		"status-429": {"responded 429", false},
		"status-500": {"responded 500", false},
		"status-503": {"responded 503", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Resolve(t.Context(), "gcp:projects/p/secrets/"+name)
			require.Empty(t, got)
			require.ErrorContains(t, err, "secret gcp:projects/p/secrets/"+name+": ")
			require.ErrorContains(t, err, c.want)
			for _, hidden := range []string{"hunter2", "4711", base64.StdEncoding.EncodeToString([]byte(value))} {
				require.NotContains(t, err.Error(), hidden)
			}
			if c.refused {
				require.ErrorIs(t, err, secret.ErrRefused)
			} else {
				require.NotErrorIs(t, err, secret.ErrRefused)
			}
		})
	}
}

func TestSourceTreatsOutageAsTransient(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	s := secret.Sources{"gcp": gcpsecret.Source(option.WithEndpoint(server.URL), option.WithoutAuthentication())}
	_, err := s.Resolve(t.Context(), "gcp:projects/p/secrets/k")
	require.ErrorContains(t, err, "call Secret Manager: ")
	require.NotErrorIs(t, err, secret.ErrRefused)
}

// This test fails if the client has its default logger, because that logger logs the secret.
func TestSourceLogsNoResponse(t *testing.T) {
	t.Setenv("GOOGLE_SDK_GO_LOGGING_LEVEL", "debug")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	stderr := os.Stderr
	os.Stderr = write
	t.Cleanup(func() { os.Stderr = stderr })
	_, s := start(t)
	_, err = s.Resolve(t.Context(), "gcp:projects/p/secrets/good")
	os.Stderr = stderr
	require.NoError(t, err)
	require.NoError(t, write.Close())
	logged, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Empty(t, string(logged))
}
