package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

func TestPinKeepsOneCopyOfTheRevision(t *testing.T) {
	w := newFixture(t, false)
	w.run(request(asset("a")))
	until := clock.System{}.Now().Add(time.Hour)
	missing, err := w.Pin(t.Context(), 1, until, "report")
	require.NoError(t, err)
	require.Zero(t, missing)
	missing, err = w.Pin(t.Context(), 1, until, "it is pinned already")
	require.NoError(t, err)
	require.Zero(t, missing)
	_, err = w.Pin(t.Context(), 1_000, until, "never published")
	require.ErrorIs(t, err, engine.ErrNotFound)
}

// While the command is appended, a collector whose state does not contain the pin deletes the copy. Then a delayed
// request of another collector creates the copy again. In between, a collector may have deleted outputs, because no
// copy protected them.
func TestPinRejectsCopyThatWasCreatedAgain(t *testing.T) {
	w := newFixture(t, false)
	w.run(request(asset("a")))
	key := manifest.PinKey(foldtest.Domain, 1)
	recreated := false
	w.faults(func(_ faultblob.Op, written string) faultblob.Fault {
		if !recreated && strings.HasPrefix(written, "ledger/") {
			recreated = true
			data, _, err := w.blobs.Get(t.Context(), key)
			require.NoError(t, err, "the copy comes first")
			require.NoError(t, w.blobs.Delete(t.Context(), key))
			_, err = w.blobs.Create(t.Context(), key, data)
			require.NoError(t, err)
		}
		return faultblob.None
	})
	_, err := w.Pin(t.Context(), 1, clock.System{}.Now().Add(time.Hour), "report")
	require.True(t, recreated)
	require.ErrorIs(t, err, engine.ErrNotFound)
}
