package faultblob_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
)

func TestContractWithoutFaults(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return faultblob.New(memblob.New(memblob.Options{}), nil) })
}

// writes are the operations that change a store. The field "after" lists the keys in the store after the operation.
// Before the operation, the store contains only the key "old".
var writes = []struct {
	op    faultblob.Op
	after []string
	do    func(t *testing.T, s blob.Store, version int64) error
}{
	{faultblob.Create, []string{"new", "old"}, func(t *testing.T, s blob.Store, _ int64) error {
		_, err := s.Create(t.Context(), "new", []byte("x"))
		return err
	}},
	{faultblob.CreateFrom, []string{"new", "old"}, func(t *testing.T, s blob.Store, _ int64) error {
		_, err := s.CreateFrom(t.Context(), "new", strings.NewReader("x"))
		return err
	}},
	{faultblob.Put, []string{"new", "old"}, func(t *testing.T, s blob.Store, _ int64) error {
		_, err := s.Put(t.Context(), "new", []byte("x"))
		return err
	}},
	{faultblob.Replace, []string{"new", "old"}, func(t *testing.T, s blob.Store, _ int64) error {
		_, err := s.Replace(t.Context(), "new", []byte("x"), 0)
		return err
	}},
	{faultblob.Delete, nil, func(t *testing.T, s blob.Store, _ int64) error {
		return s.Delete(t.Context(), "old")
	}},
}

func keys(t *testing.T, s blob.Store) []string {
	t.Helper()
	var keys []string
	for o, err := range s.List(t.Context(), blob.ListOptions{}) {
		require.NoError(t, err)
		keys = append(keys, o.Key)
	}
	return keys
}

func TestInjectedWriteErrorHidesOutcome(t *testing.T) {
	for _, w := range writes {
		for _, fault := range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
			inner := memblob.New(memblob.Options{})
			old, err := inner.Create(t.Context(), "old", []byte("old"))
			require.NoError(t, err)
			s := faultblob.New(inner, func(op faultblob.Op, _ string) faultblob.Fault {
				require.Equal(t, w.op, op)
				return fault
			})
			err = w.do(t, s, old.Version)
			require.ErrorIs(t, err, faultblob.ErrInjected, "%s", w.op)
			if fault == faultblob.FailBefore {
				require.Equal(t, []string{"old"}, keys(t, inner), "%s must not take effect", w.op)
			} else {
				require.Equal(t, w.after, keys(t, inner), "%s takes effect", w.op)
			}
		}
	}
}

func TestLostAnswerHidesErrExists(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	_, err := inner.Create(t.Context(), "k", nil)
	require.NoError(t, err)
	s := faultblob.New(inner, func(faultblob.Op, string) faultblob.Fault { return faultblob.FailAfter })
	_, err = s.Create(t.Context(), "k", nil)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.NotErrorIs(t, err, blob.ErrExists)
}

func TestReadsCanFail(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	for _, key := range []string{"a", "b"} {
		_, err := inner.Create(t.Context(), key, []byte("content"))
		require.NoError(t, err)
	}
	fault := faultblob.FailBefore
	s := faultblob.New(inner, func(faultblob.Op, string) faultblob.Fault { return fault })
	for _, fault = range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
		_, _, err := s.Get(t.Context(), "a")
		require.ErrorIs(t, err, faultblob.ErrInjected)
		_, err = s.Head(t.Context(), "a")
		require.ErrorIs(t, err, faultblob.ErrInjected)
	}

	fault = faultblob.FailBefore
	_, _, err := s.Open(t.Context(), "a")
	require.ErrorIs(t, err, faultblob.ErrInjected)
	fault = faultblob.FailAfter
	r, _, err := s.Open(t.Context(), "a")
	require.NoError(t, err)
	data, err := io.ReadAll(r)
	require.ErrorIs(t, err, faultblob.ErrInjected, "the stream breaks where it would end")
	require.Equal(t, "content", string(data))
	require.NoError(t, r.Close())

	for fault, want := range map[faultblob.Fault]int{faultblob.FailBefore: 0, faultblob.FailAfter: 2} {
		s := faultblob.New(inner, func(faultblob.Op, string) faultblob.Fault { return fault })
		var last error
		listed := 0
		for _, err := range s.List(t.Context(), blob.ListOptions{}) {
			if last = err; err == nil {
				listed++
			}
		}
		require.ErrorIs(t, last, faultblob.ErrInjected)
		require.Equal(t, want, listed)
	}
}

func TestHookReceivesOperationsInOrder(t *testing.T) {
	var seen []string
	s := faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, key string) faultblob.Fault {
		seen = append(seen, string(op)+" "+key)
		return faultblob.None
	})
	ctx := t.Context()
	_, _ = s.Create(ctx, "a", nil)
	_, _ = s.Put(ctx, "b", nil)
	_, _, _ = s.Get(ctx, "a")
	listing := s.List(ctx, blob.ListOptions{Prefix: "p/"})
	for _, err := range listing {
		_ = err
	}
	_ = s.Delete(ctx, "a")
	require.True(t, slices.Equal([]string{"create a", "put b", "get a", "list p/", "delete a"}, seen), "%q", seen)
}
