// Package fakegcs_test tests the adapter of Cloud Storage with an independent emulator,
// fake-gcs-server, in addition to Servo's own fake.
package fakegcs_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fsouza/fake-gcs-server/fakestorage"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/gcsblob"
)

func TestContract(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		t.Helper()
		fake, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true})
		require.NoError(t, err)
		t.Cleanup(fake.Stop)
		fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "b"})
		server := httptest.NewServer(completeOnly(fake.HTTPHandler()))
		t.Cleanup(server.Close)
		s, err := gcsblob.Open(t.Context(), "gs://b", option.WithEndpoint(server.URL+"/storage/v1/"), option.WithoutAuthentication())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	})
}

// completeOnly forwards only requests with a complete body, because the emulator, unlike the service, also creates an
// object from an interrupted upload.
func completeOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, r)
	})
}
