package compactor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// In an earlier build, a compactor whose clock was ahead deleted revisions and pins that were not old enough.
func TestMaintainKeepsRevisionsIfClockIsAhead(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	_, first := w.trigger(foldtest.Task("a"))
	w.step(c, first)
	asked := w.newest().Revision
	w.step(c, w.append(&event.RevisionPinned{CommandID: w.ids.New(), Revision: asked, Until: event.At(w.clock.Now().Add(90 * day)), Reason: "audit"}))
	_, err := w.manifests().Pin(t.Context(), asked)
	require.NoError(t, err)
	for range 3 {
		_, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
	}

	clock := &steppedClock{now: w.clock.Now().Add(365 * day)}
	wrong := w.open("wrong", func(cfg *compactor.Config) {
		manifests := manifest.New(manifest.Config{Domain: foldtest.Domain, Store: w.store(), IDs: w.ids, Clock: clock})
		cfg.Handle = domain.Open(domain.Handle{Domain: foldtest.Domain, Store: w.store(), Manifests: manifests, Codec: codec, IDs: w.ids, Clock: clock})
	})
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(wrong, entry)
	for more := true; more; {
		more, err = wrong.Maintain(t.Context())
		require.NoError(t, err)
	}
	for revision := int64(1); revision <= w.newest().Revision; revision++ {
		_, err := w.manifests().LoadAt(t.Context(), revision)
		require.NoError(t, err, revision)
	}
}
