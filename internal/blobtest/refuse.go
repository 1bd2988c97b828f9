package blobtest

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// everyMethod calls each method that takes a key.
func everyMethod(ctx context.Context, s blob.Store, key string) map[string]error {
	errs := map[string]error{}
	_, errs["Create"] = s.Create(ctx, key, []byte("new"))
	_, errs["CreateFrom"] = s.CreateFrom(ctx, key, strings.NewReader("new"))
	_, errs["Replace of none"] = s.Replace(ctx, key, []byte("new"), 0)
	_, errs["Replace"] = s.Replace(ctx, key, []byte("new"), 1)
	_, errs["Put"] = s.Put(ctx, key, []byte("new"))
	_, _, errs["Get"] = s.Get(ctx, key)
	var r io.ReadCloser
	if r, _, errs["Open"] = s.Open(ctx, key); r != nil {
		_ = r.Close()
	}
	_, errs["Head"] = s.Head(ctx, key)
	errs["Delete"] = s.Delete(ctx, key)
	return errs
}

func absent(t *testing.T, s blob.Store) {
	ctx := t.Context()
	_, err := s.Create(ctx, "f/there", []byte("x"))
	require.NoError(t, err)
	for _, key := range []string{"f/absent", "g/absent", "f/the", "f/there2", "f", "f/there/below"} {
		_, _, err := s.Get(ctx, key)
		require.ErrorIs(t, err, blob.ErrNotFound, "Get of %q", key)
		require.ErrorContains(t, err, key, "the error names the key")
		_, _, err = s.Open(ctx, key)
		require.ErrorIs(t, err, blob.ErrNotFound, "Open of %q", key)
		_, err = s.Head(ctx, key)
		require.ErrorIs(t, err, blob.ErrNotFound, "Head of %q", key)
		require.NoError(t, s.Delete(ctx, key), "Delete of %q", key)
	}
	require.Equal(t, []string{"f/there"}, keys(list(t, s, blob.ListOptions{})))
}

func invalidKeys(t *testing.T, s blob.Store) {
	for _, key := range []string{
		"", "/", "/etc/passwd", "a/", "a//b", ".", "..", "../escape", "a/../../escape", "a/./b",
		"nul\x00", "line\nbreak", "not utf-8 \xff", blob.TempPrefix, "a/" + blob.TempPrefix + "-x/b",
		strings.Repeat("s", blob.MaxSegmentBytes+1), strings.Repeat("k/", blob.MaxKeyBytes),
	} {
		for method, err := range everyMethod(t.Context(), s, key) {
			require.ErrorIs(t, err, blob.ErrInvalid, "%s of %q", method, key)
		}
	}
	require.Empty(t, list(t, s, blob.ListOptions{}), "refused objects do not exist")
	for _, prefix := range []string{"/", "../", "a//", "./", blob.TempPrefix, blob.TempPrefix + "/", "\xff/", "\x00"} {
		require.Empty(t, list(t, s, blob.ListOptions{Prefix: prefix}), "no key begins with %q", prefix)
	}
}

func finishedContext(t *testing.T, s blob.Store) {
	kept, err := s.Create(t.Context(), "kept", []byte("old"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, key := range []string{"kept", "new"} {
		for method, err := range everyMethod(ctx, s, key) {
			require.ErrorIs(t, err, context.Canceled, "%s of %q", method, key)
		}
	}
	calls := 0
	for _, err := range s.List(ctx, blob.ListOptions{}) {
		calls++
		require.ErrorIs(t, err, context.Canceled, "List")
	}
	require.Equal(t, 1, calls, "a listing ends with its error")

	listed := list(t, s, blob.ListOptions{})
	require.Len(t, listed, 1)
	requireSame(t, kept, listed[0], "List after refused calls")
}

func bytesAreOwned(t *testing.T, s blob.Store) {
	ctx := t.Context()
	data := []byte("original")
	_, err := s.Create(ctx, "k", data)
	require.NoError(t, err)
	copy(data, "SCRIBBLE")
	got, _, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "original", string(got), "the caller may reuse its buffer")
	copy(got, "SCRIBBLE")
	got, _, err = s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "original", string(got), "the caller may change the returned bytes")
}
