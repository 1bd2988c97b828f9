package memblob_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
)

func TestContract(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return memblob.New(memblob.Options{}) })
}

func TestCopyIsIndependent(t *testing.T) {
	ctx := t.Context()
	s := memblob.New(memblob.Options{})
	for i := range 100 {
		_, err := s.Create(ctx, fmt.Sprintf("k/%03d", i), []byte("old"))
		require.NoError(t, err)
	}
	c := s.Copy()
	_, err := s.Put(ctx, "k/050", []byte("in the store"))
	require.NoError(t, err)
	_, err = c.Put(ctx, "k/051", []byte("in the copy"))
	require.NoError(t, err)
	require.NoError(t, c.Delete(ctx, "k/052"))

	for _, check := range []struct {
		store     *memblob.Store
		key, want string
	}{{s, "k/050", "in the store"}, {s, "k/051", "old"}, {s, "k/052", "old"}, {c, "k/050", "old"}, {c, "k/051", "in the copy"}} {
		data, _, err := check.store.Get(ctx, check.key)
		require.NoError(t, err)
		require.Equal(t, check.want, string(data))
	}
	_, err = c.Head(ctx, "k/052")
	require.ErrorIs(t, err, blob.ErrNotFound)
}

func TestStatsCountRequestsByKind(t *testing.T) {
	ctx := t.Context()
	s := memblob.New(memblob.Options{})
	_, _ = s.Create(ctx, "a", []byte("12345"))
	_, _ = s.Create(ctx, "a", []byte("refused"))
	_, _ = s.Put(ctx, "b", []byte("123"))
	_, _ = s.Replace(ctx, "b", nil, 99)
	_, _, _ = s.Get(ctx, "a")
	_, _, _ = s.Get(ctx, "absent")
	_, _ = s.Head(ctx, "a")
	_ = s.Delete(ctx, "b")
	_, _ = s.Create(ctx, "../invalid", nil)
	for _, err := range s.List(ctx, blob.ListOptions{}) {
		require.NoError(t, err)
	}
	want := memblob.Stats{
		Creates: 2, Replaces: 1, Puts: 1, Gets: 2, Heads: 1, Lists: 1, Deletes: 1,
		BytesWritten: 8, BytesRead: 5,
	}
	require.Equal(t, want, s.Stats())
	require.EqualValues(t, 5, want.Writes())
	require.EqualValues(t, 3, want.Reads())

	before := s.Stats()
	_, _, _ = s.Get(ctx, "a")
	require.Equal(t, memblob.Stats{Gets: 1, BytesRead: 5}, s.Stats().Sub(before))
}

func TestStatsCountListPages(t *testing.T) {
	ctx := t.Context()
	s := memblob.New(memblob.Options{})
	for i := range 2*memblob.PageSize + 1 {
		_, err := s.Create(ctx, fmt.Sprintf("%06d", i), nil)
		require.NoError(t, err)
	}
	for _, err := range s.List(ctx, blob.ListOptions{}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, s.Stats().Lists)
	for _, err := range s.List(ctx, blob.ListOptions{}) {
		require.NoError(t, err)
		break
	}
	require.EqualValues(t, 4, s.Stats().Lists)
}

func TestObjectsAreDatedByGivenClock(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	s := memblob.New(memblob.Options{Now: func() time.Time { return at }})
	o, err := s.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	require.Equal(t, at, o.Updated)
}

func TestKeyCannotBeFolderOfAnother(t *testing.T) {
	ctx := t.Context()
	s := memblob.New(memblob.Options{})
	_, err := s.Create(ctx, "a/b", nil)
	require.NoError(t, err)
	_, err = s.Create(ctx, "a-b", nil)
	require.NoError(t, err)
	_, err = s.Create(ctx, "a", nil)
	require.ErrorIs(t, err, blob.ErrInvalid)
	_, err = s.Put(ctx, "a/b/c", nil)
	require.ErrorIs(t, err, blob.ErrInvalid)
	_, err = s.Create(ctx, "a/bc", nil)
	require.NoError(t, err)
}
