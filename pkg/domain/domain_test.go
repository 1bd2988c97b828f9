package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// fixedClock is a clock that does not move.
type fixedClock struct{ clock.System }

func (fixedClock) Now() time.Time { return foldtest.Epoch }

func open(store *memblob.Store) *domain.Handle {
	return domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, Clock: fixedClock{}})
}

func newStore() *memblob.Store { return memblob.New(memblob.Options{Now: fixedClock{}.Now}) }

func TestNewDomainHasNoState(t *testing.T) {
	_, err := open(newStore()).Load(t.Context())
	require.ErrorIs(t, err, manifest.ErrNone)
}

func TestIDsSortAfterLoadedState(t *testing.T) {
	store := newStore()
	m := manifest.First(foldtest.Domain, ids.AtTime(foldtest.Epoch), "test")
	m.Watermarks.EventsProcessedThrough = ids.AtTime(foldtest.Epoch.Add(time.Minute))
	require.NoError(t, open(store).Manifests.Publish(t.Context(), m))

	h := open(store)
	loaded, err := h.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), loaded.Revision)
	require.Greater(t, h.IDs.New(), m.Watermarks.EventsProcessedThrough, "the clock is a minute behind the state")
}

func TestAppenderUsesPortsOfHandle(t *testing.T) {
	store := newStore()
	h := open(store)
	appended, err := h.Appender(ledger.Config{}).Append(t.Context(), []*event.Envelope{
		{Domain: foldtest.Domain, Payload: &event.RunCancelRequested{RunID: h.IDs.New()}},
	})
	require.NoError(t, err)
	data, err := ledger.Read(t.Context(), store, ledger.Key(foldtest.Domain, appended.Entry))
	require.NoError(t, err)
	require.NotEmpty(t, data)
}
