package compactor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// If the timeline of an archiver ends while the archiver works, the archiver must delete no entry, because the new
// timeline may still read the entry from the ledger.
func TestArchivingEndsWithItsTimeline(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	_, entries := w.endedRun(c)
	w.clock.pass(15 * 24 * time.Hour)
	w.moveClosedToHistory(c)
	w.clock.pass(2 * time.Hour)
	w.endedRun(c)
	w.endedRun(c)
	ended := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "archive/") && !ended {
			ended = true
			_, err := w.manifests().NewTimeline(t.Context(), "rebuild")
			require.NoError(t, err)
		}
		if op == faultblob.Delete && ended {
			require.False(t, strings.HasPrefix(key, ledger.Prefix(foldtest.Domain)), "it deletes %s", key)
		}
		return faultblob.None
	})
	for range 3 {
		_, _ = c.Maintain(t.Context()) // Maintain may find that its timeline has ended
	}
	require.True(t, ended)
	for _, e := range entries {
		require.True(t, w.inLedger(e.ID))
	}
}
