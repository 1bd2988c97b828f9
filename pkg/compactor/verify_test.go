package compactor_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/repair"
)

// Verify does not keep history in memory: it reads each segment once and keeps checksums. It keeps all rows only if
// checksums differ, to report the rows that differ.
func TestVerifyReadsEachSegmentOnce(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	run, entries := w.endedRun(c)
	for range 300 { // enough groups for the replay to release closed rows before its end
		w.endedRun(c)
		w.clock.pass(20 * time.Second)
	}
	w.moveClosedToHistory(c)
	c.AwaitMerges()
	require.Nil(t, latest(c).State.Runs.Get(run))
	require.Less(t, latest(c).State.Runs.Len(), 100)

	var mu sync.Mutex
	reads := map[string]int{}
	verify := func() repair.Report {
		w.faults(func(op faultblob.Op, key string) faultblob.Fault {
			mu.Lock()
			defer mu.Unlock()
			if op == faultblob.Get && strings.Contains(key, "/history/") {
				reads[key]++
			}
			return faultblob.None
		})
		report, err := repair.Verify(t.Context(), w.repair())
		require.NoError(t, err)
		return report
	}
	report := verify()
	require.Zero(t, report.Differences)
	require.Greater(t, report.Groups, 600)
	require.NotEmpty(t, reads)
	for key, n := range reads {
		require.Equal(t, 1, n, key)
	}

	key := ledger.Key(foldtest.Domain, entries[1].ID)
	changed := bytes.Replace(entries[1].Data, []byte(`"row_count":1`), []byte(`"row_count":2`), 1)
	require.NotEqual(t, entries[1].Data, changed)
	_, err := w.blobs.Put(t.Context(), key, changed)
	require.NoError(t, err)
	report = verify()
	require.NotZero(t, report.Differences)
	require.Contains(t, strings.Join(report.Problems, "\n"), "history: tasks: tasks run_id="+run)

	_, err = w.blobs.Put(t.Context(), key, entries[1].Data)
	require.NoError(t, err)
	require.Zero(t, verify().Differences)
}

func TestVerifyReportsDeletedManifests(t *testing.T) {
	w := newWorld(t)
	report, err := repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.Equal(t, repair.Report{}, report, "a new domain has nothing to verify")

	c := w.open("one")
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	for _, left := range []string{"hints/", "state/", "ledger/"} { // any remaining object reveals the loss
		remove(t, w, "manifests/")
		report, err = repair.Verify(t.Context(), w.repair())
		require.NoError(t, err)
		require.True(t, report.NoManifest)
		require.Len(t, report.Problems, 1)
		require.Contains(t, report.Problems[0], "ledger/")
		if left != "ledger/" {
			remove(t, w, left)
		}
	}
	remove(t, w, "ledger/")
	report, err = repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.False(t, report.NoManifest)
}
