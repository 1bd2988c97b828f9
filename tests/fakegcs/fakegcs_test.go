// Package fakegcs_test holds the adapter of Cloud Storage against an emulator that others
// have written, fake-gcs-server: a second opinion beside the fake of our own.
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

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/blobtest"
	"github.com/servo-orchestration/servo/pkg/blob/gcsblob"
)

func TestContract(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		t.Helper()
		fake, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true})
		require.NoError(t, err)
		t.Cleanup(fake.Stop)
		fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "b"})
		server := httptest.NewServer(whole(fake.HTTPHandler()))
		t.Cleanup(server.Close)
		s, err := gcsblob.Open(t.Context(), "gs://b", option.WithEndpoint(server.URL+"/storage/v1/"), option.WithoutAuthentication())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	})
}

// whole passes on the requests that come to their end. The emulator makes an object of
// half an upload, too, which the service does not.
func whole(h http.Handler) http.Handler {
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
