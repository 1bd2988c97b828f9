package fileblob

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

func TestVersionsGrowByTicks(t *testing.T) {
	for _, tick := range []time.Duration{1, 100, time.Microsecond, time.Second, 2 * time.Second} {
		now := time.Unix(1_900_000_000, 123_456_789)
		s := stamps{now: func() time.Time { return now }, tick: tick}
		last := int64(0)
		for range 5 {
			next := s.next(0)
			require.Greater(t, next, last)
			require.Zero(t, next%int64(tick))
			last = next
		}
		for _, old := range []int64{last + 10*int64(tick) + 7, last + 20*int64(tick)} {
			require.Greater(t, s.next(old), old, "greater than the version that it replaces, step %v", tick)
		}
	}
	early := stamps{now: func() time.Time { return time.Unix(0, 0) }, tick: time.Second}
	require.Positive(t, early.next(0), "0 means absent")
}

func TestListSkipsFoldersOutsideListing(t *testing.T) {
	for _, row := range []struct {
		folder, prefix, after string
		want                  bool
	}{
		{"a/", "", "", true},
		{"a/", "a", "", true},
		{"a/", "a/b", "", true},
		{"ab/", "a", "", true},
		{"b/", "a", "", false},
		{"a/", "a-", "", false},
		{"a/", "", "a/x", true},
		{"a/", "", "a/", true},
		{"a/", "", "a", true},
		{"a/", "", "a0", false},
		{"a-b/", "", "a/x", false},
		{"a0/", "", "a/x", true},
		{"minute=1/", "", "minute=2", false},
	} {
		require.Equal(t, row.want, entry(row.folder).isIn(row.prefix, row.after), "%+v", row)
	}
}

func TestProbeReturnsTick(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, root.Mkdir(blob.TempPrefix, 0o755))
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	tick, err := probe(root)
	require.NoError(t, err)
	require.Positive(t, tick)
	names, err := os.ReadDir(filepath.Join(root.Name(), blob.TempPrefix))
	require.NoError(t, err)
	require.Empty(t, names, "the probe cleans up")
}

// A probe sets an old modification time on its file. Another process that opens the store may therefore delete the
// file as a leftover.
func TestProbeToleratesSweepByAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	stop := make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				assert.NoError(t, s.sweep())
			}
		}
	})
	for range 2000 {
		_, err := probe(s.root)
		require.NoError(t, err)
	}
	close(stop)
	sweeping.Wait()
}
