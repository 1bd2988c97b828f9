// Package blobtest contains the contract of [blob.Store] as tests. Every implementation and every fake must pass them.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// Run checks that stores fulfil the contract. Each call of open must return an empty store.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	t.Helper()
	for _, row := range []struct {
		name  string
		check func(t *testing.T, s blob.Store)
	}{
		{"a created object is read back with the same description by every method", readsBack},
		{"an object may be empty, and an empty object exists", emptyObject},
		{"an object may be large", largeObject},
		{"an object above the caller's limit is not read", limitedGet},
		{"create of an existing key is refused and changes nothing", createRefuses},
		{"one of several racing creates wins and its content is stored", createRace},
		{"a streamed create appears whole or not at all", streamedCreate},
		{"replace succeeds only for the current version", replaceMatches},
		{"one of several racing replaces wins", replaceRace},
		{"one of several racing creates and replaces of an absent key wins", createReplaceRace},
		{"every write creates a new version", versionsDiffer},
		{"put stores unconditionally", putOverwrites},
		{"delete removes an object or accepts that it is absent", deleteIdempotent},
		{"an absent object is ErrNotFound", absent},
		{"every method rejects an invalid key with ErrInvalid", invalidKeys},
		{"a call with a finished context fails and changes nothing", finishedContext},
		{"the caller may change bytes that it has stored or received", bytesAreOwned},
		{"a listing is in bytewise order of whole keys", listOrder},
		{"a listing accepts any prefix and start", listNarrows},
		{"a listing may be ended early", listLeft},
		{"a listing shows every object created before it began", listConsistent},
		{"a reader sees the old or the new content, never a mixture", readsAreAtomic},
		{"any sequence of operations behaves like a map", behavesAsMap},
		{"goroutines with keys of their own do not disturb each other", concurrentMaps},
	} {
		t.Run(row.name, func(t *testing.T) { row.check(t, open(t)) })
	}
}

func readsBack(t *testing.T, s blob.Store) {
	ctx := t.Context()
	data := []byte("hello, wörld\x00\xff")
	for _, key := range trickyKeys {
		created, err := s.Create(ctx, key, data)
		require.NoError(t, err, "Create of %q", key)
		require.Equal(t, key, created.Key, "Create returns the key")
		require.EqualValues(t, len(data), created.Size, "Create returns the size")
		require.Equal(t, blob.CRC32C(data), created.CRC32C, "Create returns the CRC-32C")
		require.Positive(t, created.Version, "0 means absent")
		require.False(t, created.Updated.IsZero(), "Create returns the time")

		got, described, err := s.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, data, got)
		requireSame(t, created, described, "Get")
		require.Equal(t, created.CRC32C, described.CRC32C, "Get returns the CRC-32C")

		r, described, err := s.Open(ctx, key)
		require.NoError(t, err)
		got, err = io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.Equal(t, data, got)
		requireSame(t, created, described, "Open")

		described, err = s.Head(ctx, key)
		require.NoError(t, err)
		requireSame(t, created, described, "Head")

		listed := list(t, s, blob.ListOptions{Prefix: key})
		require.Len(t, listed, 1)
		requireSame(t, created, listed[0], "List")
	}
}

// requireSame compares two descriptions of one object. It accepts a CRC of 0 from every method, and a missing time from
// Get and Open.
func requireSame(t *testing.T, want, got blob.Object, by string) {
	t.Helper()
	if got.Updated.IsZero() && (strings.HasPrefix(by, "Get") || by == "Open") {
		got.Updated = want.Updated
	}
	require.True(t, want.Updated.Equal(got.Updated), "%s returns the time %v, want %v", by, got.Updated, want.Updated)
	if got.CRC32C == 0 {
		got.CRC32C = want.CRC32C
	}
	got.Updated = want.Updated
	require.Equal(t, want, got, "%s describes another object", by)
}

func emptyObject(t *testing.T, s blob.Store) {
	ctx := t.Context()
	for _, create := range []func(key string) (blob.Object, error){
		func(key string) (blob.Object, error) { return s.Create(ctx, key, nil) },
		func(key string) (blob.Object, error) { return s.CreateFrom(ctx, key, strings.NewReader("")) },
		func(key string) (blob.Object, error) { return s.Put(ctx, key, nil) },
		func(key string) (blob.Object, error) { return s.Replace(ctx, key, nil, 0) },
	} {
		o, err := create("empty")
		require.NoError(t, err)
		require.Zero(t, o.Size)
		data, o, err := s.Get(ctx, "empty")
		require.NoError(t, err)
		require.NotNil(t, data)
		require.Empty(t, data)
		require.Zero(t, o.CRC32C)
		_, err = s.Create(ctx, "empty", []byte("x"))
		require.ErrorIs(t, err, blob.ErrExists, "an empty object exists")
		require.NoError(t, s.Delete(ctx, "empty"))
	}
}

func largeObject(t *testing.T, s blob.Store) {
	ctx := t.Context()
	data := make([]byte, 9<<20+7)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)

	o, err := s.Create(ctx, "large/at-once", data)
	require.NoError(t, err)
	require.Equal(t, blob.CRC32C(data), o.CRC32C)
	o, err = s.CreateFrom(ctx, "large/streamed", iotest.HalfReader(bytes.NewReader(data)))
	require.NoError(t, err)
	require.Equal(t, blob.CRC32C(data), o.CRC32C)

	for _, key := range []string{"large/at-once", "large/streamed"} {
		got, o, err := s.Get(ctx, key)
		require.NoError(t, err)
		require.EqualValues(t, len(data), o.Size)
		require.True(t, bytes.Equal(data, got), "Get of %q returns other bytes", key)

		r, _, err := s.Open(ctx, key)
		require.NoError(t, err)
		got, err = io.ReadAll(r)
		require.NoError(t, errors.Join(err, r.Close()))
		require.True(t, bytes.Equal(data, got), "Open of %q returns other bytes", key)
	}
}

func limitedGet(t *testing.T, s blob.Store) {
	ctx := t.Context()
	_, err := s.Create(ctx, "a/limited", []byte("four"))
	require.NoError(t, err)
	for limit, allowed := range map[int64]bool{0: false, 3: false, 4: true, 5: true} {
		data, o, err := blob.Get(ctx, s, "a/limited", limit)
		if allowed {
			require.NoError(t, err, "limit %d", limit)
			require.Equal(t, "four", string(data))
			require.EqualValues(t, 4, o.Size)
			continue
		}
		var refused *blob.TooLargeError
		require.ErrorAs(t, err, &refused, "limit %d", limit)
		require.Equal(t, blob.TooLargeError{Key: "a/limited", Size: 4, Limit: limit}, *refused)
		require.Nil(t, data)
	}
	_, _, err = blob.Get(ctx, s, "a/absent", 0)
	require.ErrorIs(t, err, blob.ErrNotFound)
}

func createRefuses(t *testing.T, s blob.Store) {
	ctx := t.Context()
	first, err := s.Create(ctx, "a/b", []byte("first"))
	require.NoError(t, err)
	_, err = s.Create(ctx, "a/b", []byte("second"))
	require.ErrorIs(t, err, blob.ErrExists)
	require.ErrorContains(t, err, "a/b", "the error names the key")
	_, err = s.CreateFrom(ctx, "a/b", strings.NewReader("third"))
	require.ErrorIs(t, err, blob.ErrExists)
	_, err = s.Create(ctx, "a/b", []byte("first"))
	require.ErrorIs(t, err, blob.ErrExists, "a create with the same bytes is refused, too")

	got, o, err := s.Get(ctx, "a/b")
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	require.Equal(t, first.Version, o.Version, "a refused create changes nothing")
}

// race calls do in 16 goroutines, with the index of the goroutine. It returns the indices of the calls that succeeded,
// and the errors of the other calls.
func race(do func(i int) error) (winners []int, others []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 16 {
		wg.Go(func() {
			<-start
			err := do(i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				winners = append(winners, i)
			} else {
				others = append(others, err)
			}
		})
	}
	close(start)
	wg.Wait()
	return winners, others
}

func createRace(t *testing.T, s blob.Store) {
	ctx := t.Context()
	for _, key := range []string{"race/1", "race/2", "race/new/folder/3", "race/new/folder/4", "race/5"} {
		content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 1000+i) }
		winners, others := race(func(i int) error {
			if i%2 == 0 {
				_, err := s.Create(ctx, key, content(i))
				return err
			}
			_, err := s.CreateFrom(ctx, key, bytes.NewReader(content(i)))
			return err
		})
		require.Len(t, winners, 1, "exactly one create of %q wins", key)
		for _, err := range others {
			require.ErrorIs(t, err, blob.ErrExists)
		}
		got, _, err := s.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, string(content(winners[0])), string(got), "%q has the winner's content", key)
	}
}

func streamedCreate(t *testing.T, s blob.Store) {
	ctx := t.Context()
	broken := errors.New("the source broke")
	for _, r := range []io.Reader{
		iotest.ErrReader(broken),
		io.MultiReader(strings.NewReader(strings.Repeat("x", 100_000)), iotest.ErrReader(broken)),
	} {
		_, err := s.CreateFrom(ctx, "streamed", r)
		require.ErrorIs(t, err, broken, "CreateFrom returns the reader's error")
		_, err = s.Head(ctx, "streamed")
		require.ErrorIs(t, err, blob.ErrNotFound, "half an object must not appear")
		require.Empty(t, list(t, s, blob.ListOptions{}))
	}
	cancelled, cancel := context.WithCancel(ctx)
	_, err := s.CreateFrom(cancelled, "streamed", io.MultiReader(
		strings.NewReader("half"), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }), strings.NewReader("rest")))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, list(t, s, blob.ListOptions{}), "a canceled create leaves nothing")

	_, err = s.CreateFrom(ctx, "streamed", iotest.OneByteReader(strings.NewReader("whole")))
	require.NoError(t, err, "after failed creates, the key is still free")
	got, _, err := s.Get(ctx, "streamed")
	require.NoError(t, err)
	require.Equal(t, "whole", string(got))
}

type readerFunc func(p []byte) (int, error)

// Read implements [io.Reader].
func (f readerFunc) Read(p []byte) (int, error) {
	n, err := f(p)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

func replaceMatches(t *testing.T, s blob.Store) {
	ctx := t.Context()
	_, err := s.Replace(ctx, "b/k", []byte("x"), 1)
	require.ErrorIs(t, err, blob.ErrMismatch, "an absent object has no version")
	require.Empty(t, list(t, s, blob.ListOptions{}))

	first, err := s.Replace(ctx, "b/k", []byte("first"), 0)
	require.NoError(t, err, "version 0 creates")
	_, err = s.Replace(ctx, "b/k", []byte("x"), 0)
	require.ErrorIs(t, err, blob.ErrMismatch, "version 0 means absent")
	_, err = s.Replace(ctx, "b/k", []byte("x"), first.Version+1)
	require.ErrorIs(t, err, blob.ErrMismatch)
	require.ErrorContains(t, err, "b/k", "the error names the key")

	second, err := s.Replace(ctx, "b/k", []byte("second"), first.Version)
	require.NoError(t, err)
	require.NotEqual(t, first.Version, second.Version)
	require.Equal(t, blob.CRC32C([]byte("second")), second.CRC32C)
	_, err = s.Replace(ctx, "b/k", []byte("x"), first.Version)
	require.ErrorIs(t, err, blob.ErrMismatch, "the old version no longer matches")
	got, o, err := s.Get(ctx, "b/k")
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
	require.Equal(t, second.Version, o.Version)
}

func replaceRace(t *testing.T, s blob.Store) {
	ctx := t.Context()
	var version int64
	for round := range 5 {
		content := func(i int) string { return strings.Repeat(string(rune('a'+i)), 100+round) }
		var results [16]blob.Object
		winners, others := race(func(i int) (err error) {
			results[i], err = s.Replace(ctx, "boundary", []byte(content(i)), version)
			return err
		})
		require.Len(t, winners, 1, "exactly one replace wins in round %d", round)
		for _, err := range others {
			require.ErrorIs(t, err, blob.ErrMismatch)
		}
		got, o, err := s.Get(ctx, "boundary")
		require.NoError(t, err)
		require.Equal(t, content(winners[0]), string(got))
		require.Equal(t, results[winners[0]].Version, o.Version)
		version = o.Version
	}
}

func createReplaceRace(t *testing.T, s blob.Store) {
	ctx := t.Context()
	for round := range 20 {
		key := fmt.Sprintf("race/%d", round)
		winners, others := race(func(i int) (err error) {
			if i%2 == 0 {
				_, err = s.Create(ctx, key, []byte{byte(i)})
			} else {
				_, err = s.Replace(ctx, key, []byte{byte(i)}, 0)
			}
			return err
		})
		require.Len(t, winners, 1, "exactly one write of %q wins", key)
		for _, err := range others {
			require.True(t, errors.Is(err, blob.ErrExists) || errors.Is(err, blob.ErrMismatch), "%v", err)
		}
		got, _, err := s.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(winners[0])}, got, "%q has the winner's content", key)
	}
}

func versionsDiffer(t *testing.T, s blob.Store) {
	ctx := t.Context()
	seen := map[int64]string{}
	note := func(what string, o blob.Object, err error) int64 {
		t.Helper()
		require.NoError(t, err)
		require.NotContains(t, seen, o.Version, "%s reuses a version", what)
		seen[o.Version] = what
		return o.Version
	}
	data := []byte("always the same bytes")
	for range 20 {
		o, err := s.Create(ctx, "k", data)
		g := note("Create", o, err)
		o, err = s.Replace(ctx, "k", data, g)
		note("Replace", o, err)
		for range 2 {
			o, err = s.Put(ctx, "k", data)
			note("Put", o, err)
		}
		require.NoError(t, s.Delete(ctx, "k"))
	}
}

func putOverwrites(t *testing.T, s blob.Store) {
	ctx := t.Context()
	for _, content := range []string{"first, and the longest", "second", "third"} {
		o, err := s.Put(ctx, "hints/d.json", []byte(content))
		require.NoError(t, err)
		require.Equal(t, blob.CRC32C([]byte(content)), o.CRC32C)
		got, described, err := s.Get(ctx, "hints/d.json")
		require.NoError(t, err)
		require.Equal(t, content, string(got))
		requireSame(t, o, described, "Get after Put")
	}
	winners, _ := race(func(i int) error {
		_, err := s.Put(ctx, "hints/d.json", bytes.Repeat([]byte{byte('a' + i)}, 10_000))
		return err
	})
	require.Len(t, winners, 16, "no put is refused")
	got, _, err := s.Get(ctx, "hints/d.json")
	require.NoError(t, err)
	require.Equal(t, 10_000, bytes.Count(got, got[:1]), "racing puts do not mix")
}

func deleteIdempotent(t *testing.T, s blob.Store) {
	ctx := t.Context()
	require.NoError(t, s.Delete(ctx, "d/e/f"), "an absent key")
	for range 3 {
		_, err := s.Create(ctx, "d/e/f", []byte("x"))
		require.NoError(t, err, "a deleted key may be created again")
		_, err = s.Create(ctx, "d/g", []byte("y"))
		require.NoError(t, err)
		require.NoError(t, s.Delete(ctx, "d/e/f"))
		require.NoError(t, s.Delete(ctx, "d/e/f"), "already deleted")
		_, _, err = s.Get(ctx, "d/e/f")
		require.ErrorIs(t, err, blob.ErrNotFound)
		require.Equal(t, []string{"d/g"}, keys(list(t, s, blob.ListOptions{})), "delete removes one object")
		require.NoError(t, s.Delete(ctx, "d/g"))
	}
	require.Empty(t, list(t, s, blob.ListOptions{}))
}

func readsAreAtomic(t *testing.T, s blob.Store) {
	ctx := t.Context()
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, 20_000+i) }
	_, err := s.Put(ctx, "k", content(0))
	require.NoError(t, err)
	var done atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer done.Store(true)
		for i := range 60 {
			if _, err := s.Put(ctx, "k", content(i)); err != nil {
				t.Errorf("put: %v", err)
				return
			}
		}
	})
	for !done.Load() {
		data, o, err := s.Get(ctx, "k")
		require.NoError(t, err)
		require.EqualValues(t, len(data), o.Size)
		require.Equal(t, blob.CRC32C(data), o.CRC32C)
		require.Equal(t, len(data), bytes.Count(data, data[:1]), "two contents are mixed")
	}
}
