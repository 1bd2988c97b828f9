package api

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// A server keeps a bounded number of snapshots, and drops each of them when the tokens that name it have expired.
func TestPagesForgetListings(t *testing.T) {
	start := time.Date(2025, 1, 15, 0, 0, 0, 0, time.UTC)
	p, revision := newPages(nil, nil), int64(0)
	current := func(context.Context) (*snapshot.Snapshot, error) { //nolint:unparam // the signature that open requires
		return &snapshot.Snapshot{Revision: revision}, nil
	}
	listing := func(now time.Time) string {
		revision++
		opened, err := p.open(t.Context(), &servov1.ListRunsRequest{}, defaultPage, now, current)
		require.NoError(t, err)
		return opened.next("last")
	}
	resume := func(token string, now time.Time) error {
		_, err := p.open(t.Context(), &servov1.ListRunsRequest{PageToken: token}, defaultPage, now, current)
		return err
	}
	first := listing(start)
	require.NoError(t, resume(first, start.Add(tokenLife)))
	err := resume(first, start.Add(tokenLife+time.Second))
	require.Equal(t, pageExpired.name, kindOf(err).name)
	require.ErrorContains(t, err, "began more than 1h0m0s ago")

	later := start.Add(3 * tokenLife)
	second := listing(later)
	require.Len(t, p.kept, 1, "the first one is forgotten")
	for range keptListings {
		listing(later)
	}
	require.Len(t, p.kept, keptListings)
	err = resume(second, later)
	require.Equal(t, pageExpired.name, kindOf(err).name)
	require.ErrorContains(t, err, "no longer holds revision 2")

	opened, err := p.open(t.Context(), &servov1.ListRunsRequest{}, defaultPage, later, current)
	require.NoError(t, err)
	opened.after = "x"
	require.Equal(t, pageExpired.name, kindOf(opened.failed(fmt.Errorf("read a file: %w", blob.ErrNotFound))).name)
	require.ErrorIs(t, opened.failed(context.Canceled), context.Canceled)
}

// A revision that the server does not hold in memory is read from the store. The read fails if the revision was
// collected, or if a rebuild has used its number again.
func TestPagesReadKeptRevisions(t *testing.T) {
	now := time.Date(2025, 1, 15, 0, 0, 0, 0, time.UTC)
	key, stored := []byte("key"), map[int64]*snapshot.Snapshot{}
	at := func(_ context.Context, revision int64) (*snapshot.Snapshot, error) {
		if snap := stored[revision]; snap != nil {
			return snap, nil
		}
		return nil, fmt.Errorf("revision %d is %w", revision, engine.ErrNotFound)
	}
	tokens := map[int64]string{}
	for revision := range int64(2 * keptRead) {
		stored[revision] = &snapshot.Snapshot{Revision: revision, Nonce: fmt.Sprint("n", revision)}
		opened, err := newPages(key, at).open(t.Context(), &servov1.ListRunsRequest{}, defaultPage, now, func(context.Context) (*snapshot.Snapshot, error) {
			return stored[revision], nil
		})
		require.NoError(t, err)
		tokens[revision] = opened.next("last")
	}
	p := newPages(key, at)
	newest := func(context.Context) (*snapshot.Snapshot, error) {
		return &snapshot.Snapshot{Revision: 99, Nonce: "n99"}, nil
	}
	for revision, token := range tokens {
		opened, err := p.open(t.Context(), &servov1.ListRunsRequest{PageToken: token}, defaultPage, now, newest)
		require.NoError(t, err)
		require.Same(t, stored[revision], opened.snap)
		opened.next("later")
		require.LessOrEqual(t, len(p.kept), keptRead)
	}
	p = newPages(key, at)
	read := 0
	p.readRevision = func(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
		read++
		return at(ctx, revision)
	}
	for range 3 { // three clients read the last page of one listing
		_, err := p.open(t.Context(), &servov1.ListRunsRequest{PageToken: tokens[3]}, defaultPage, now, newest)
		require.NoError(t, err)
	}
	require.Equal(t, 1, read)
	p = newPages(key, at)
	delete(stored, 0)
	stored[1] = &snapshot.Snapshot{Revision: 1, Nonce: "another"}
	for _, revision := range []int64{0, 1} {
		_, err := p.open(t.Context(), &servov1.ListRunsRequest{PageToken: tokens[revision]}, defaultPage, now, newest)
		require.Equal(t, pageExpired.name, kindOf(err).name)
	}
}

// After a restart, several clients continue the same listing at the same time. This test fails if the server reads a
// revision from the store more than once.
func TestPagesReadRevisionOnceForAllClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Date(2025, 1, 15, 0, 0, 0, 0, time.UTC)
		stored := &snapshot.Snapshot{Revision: 3, Nonce: "n3"}
		opened, err := newPages([]byte("key"), nil).open(t.Context(), &servov1.ListRunsRequest{}, defaultPage, now,
			func(context.Context) (*snapshot.Snapshot, error) { return stored, nil })
		require.NoError(t, err)
		token := opened.next("last")
		var read atomic.Int32
		release := make(chan struct{})
		p := newPages([]byte("key"), func(context.Context, int64) (*snapshot.Snapshot, error) {
			read.Add(1)
			<-release
			return stored, nil
		})
		results := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := p.open(t.Context(), &servov1.ListRunsRequest{PageToken: token}, defaultPage, now,
					func(context.Context) (*snapshot.Snapshot, error) { return &snapshot.Snapshot{Revision: 99}, nil })
				results <- err
			}()
		}
		synctest.Wait()
		close(release)
		for range 3 {
			require.NoError(t, <-results)
		}
		require.EqualValues(t, 1, read.Load())
	})
}
