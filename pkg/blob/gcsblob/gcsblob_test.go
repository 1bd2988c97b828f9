package gcsblob_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/gcsfake"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/gcsblob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// bucket opens a fake bucket on top of a store, with the official client.
func bucket(t *testing.T, inner blob.Store) *gcsblob.Store {
	t.Helper()
	server := httptest.NewServer((&gcsfake.Server{Bucket: "b", Store: inner}).Handler())
	t.Cleanup(server.Close)
	s, err := gcsblob.Open(t.Context(), "gs://b", option.WithEndpoint(server.URL+"/storage/v1/"), option.WithoutAuthentication())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestContract(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		t.Helper()
		return bucket(t, memblob.New(memblob.Options{}))
	})
}

var service = flag.String("bucket", "", "gs://BUCKET: run the contract against this real bucket, and delete everything in it")

func TestContractOfRealService(t *testing.T) {
	if *service == "" {
		t.Skip("-bucket is not set")
	}
	blobtest.Run(t, func(t *testing.T) blob.Store {
		t.Helper()
		s, err := gcsblob.Open(t.Context(), *service)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		for o, err := range s.List(t.Context(), blob.ListOptions{}) {
			require.NoError(t, err)
			require.NoError(t, s.Delete(t.Context(), o.Key))
		}
		return s
	})
}

func TestLostAnswerOfWriteIsNotRetried(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	var asked atomic.Int32
	s := bucket(t, faultblob.New(inner, func(op faultblob.Op, _ string) faultblob.Fault {
		if slices.Contains([]faultblob.Op{faultblob.Create, faultblob.Replace, faultblob.Put, faultblob.Delete}, op) {
			asked.Add(1)
			return faultblob.FailAfter
		}
		return faultblob.None
	}))
	ctx := t.Context()
	for name, write := range map[string]func() error{
		"create":  func() error { _, err := s.Create(ctx, "k", []byte("x")); return err },
		"replace": func() error { _, err := s.Replace(ctx, "r", []byte("x"), 0); return err },
		"put":     func() error { _, err := s.Put(ctx, "p", []byte("x")); return err },
		"delete":  func() error { return s.Delete(ctx, "k") },
	} {
		if name == "delete" {
			_, err := inner.Put(ctx, "k", nil)
			require.NoError(t, err)
		}
		asked.Store(0)
		err := write()
		require.Error(t, err, name)
		for _, known := range []error{blob.ErrExists, blob.ErrMismatch, blob.ErrNotFound, blob.ErrInvalid} {
			require.NotErrorIs(t, err, known, "%s: the outcome is unknown", name)
		}
		require.EqualValues(t, 1, asked.Load(), "%s is requested once", name)
	}
}

// This test fails if the writer is closed after its context has ended: the request could then end normally before the
// cancellation is noticed.
func TestCreateFromBrokenSourceStoresNothing(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	s := bucket(t, inner)
	broken := errors.New("the disk is gone")
	for i := range 300 {
		_, err := s.CreateFrom(t.Context(), fmt.Sprintf("k%d", i), io.MultiReader(strings.NewReader(strings.Repeat("x", 1000)), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken)
	}
	for o, err := range inner.List(t.Context(), blob.ListOptions{}) {
		require.NoError(t, err)
		require.Fail(t, "part of an object exists", o.Key)
	}
}

// A connection breaks during a read, and the object has been replaced when the client
// requests the rest.
func TestGetDuringReplaceIsNotErrNotFound(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	fake := (&gcsfake.Server{Bucket: "b", Store: inner}).Handler()
	old := strings.Repeat("old ", 100_000)
	_, err := inner.Put(t.Context(), "k", []byte(old))
	require.NoError(t, err)
	var reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("alt") != "media" || reads.Add(1) > 1 {
			fake.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		fake.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		_, _ = w.Write(answer.Body.Bytes()[:1000])
		_, _ = inner.Put(r.Context(), "k", []byte("new"))
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	s, err := gcsblob.Open(t.Context(), "gs://b", option.WithEndpoint(server.URL+"/storage/v1/"), option.WithoutAuthentication())
	require.NoError(t, err)
	data, o, err := s.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "new", string(data))
	require.EqualValues(t, 3, o.Size)
}

func TestGetRetriesAFewTimes(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	_, err := inner.Put(t.Context(), "k", []byte("x"))
	require.NoError(t, err)
	var asked, failures atomic.Int32
	s := bucket(t, faultblob.New(inner, func(faultblob.Op, string) faultblob.Fault {
		if asked.Add(1) <= failures.Load() {
			return faultblob.FailBefore
		}
		return faultblob.None
	}))
	failures.Store(2)
	data, _, err := s.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	require.EqualValues(t, 3, asked.Load())

	asked.Store(0)
	failures.Store(1000)
	_, _, err = s.Get(t.Context(), "k")
	require.Error(t, err)
	require.NotErrorIs(t, err, blob.ErrNotFound)
	require.LessOrEqual(t, asked.Load(), int32(4), "then the caller gets the error")
}

// still is a clock that never advances.
type still time.Time

func (c still) Now() time.Time { return time.Time(c) }

func (still) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestRateLimitIsAnUnknownOutcome(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	limited := cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{Model: cloudblob.Model{MutationEvery: time.Second}, Clock: still(now)})
	s := bucket(t, limited)
	_, err := s.Put(t.Context(), "hints/a", []byte("1"))
	require.NoError(t, err)
	_, err = s.Put(t.Context(), "hints/a", []byte("2"))
	require.ErrorContains(t, err, "429")
	for _, known := range []error{blob.ErrExists, blob.ErrMismatch, blob.ErrNotFound, blob.ErrInvalid} {
		require.NotErrorIs(t, err, known)
	}
}

func TestOpenReportsMissingBucket(t *testing.T) {
	server := httptest.NewServer((&gcsfake.Server{Bucket: "other", Store: memblob.New(memblob.Options{})}).Handler())
	t.Cleanup(server.Close)
	_, err := gcsblob.Open(t.Context(), "gs://b", option.WithEndpoint(server.URL+"/storage/v1/"), option.WithoutAuthentication())
	require.ErrorContains(t, err, "no bucket gs://b")
	require.NotErrorIs(t, err, blob.ErrNotFound, "the bucket is missing, not an object")
}

func TestOpenRejectsInvalidNames(t *testing.T) {
	for _, name := range []string{"", "b", "gs://", "gs://b/folder", "s3://b"} {
		_, err := gcsblob.Open(t.Context(), name, option.WithoutAuthentication())
		require.ErrorContains(t, err, "gs://BUCKET", "%q", name)
	}
}

func TestTimeOfBucket(t *testing.T) {
	s := bucket(t, memblob.New(memblob.Options{}))
	before := clock.System{}.Now()
	now, ok, err := blob.TimeOf(t.Context(), s)
	require.NoError(t, err)
	require.True(t, ok)
	require.WithinDuration(t, before, now, time.Minute)
}
