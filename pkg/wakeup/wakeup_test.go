package wakeup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

var (
	noon  = event.At(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	acme  = ids.Domain{Tenant: "acme", Workspace: "prod"}
	other = ids.Domain{Tenant: "globex", Workspace: "prod"}
)

func TestKeyMatchesDocumentedFormat(t *testing.T) {
	m := wakeup.Wakeup{At: noon, Domain: acme}
	require.Equal(t, "wakeups/20261122T1200/acme/prod", m.Key())
	again, err := wakeup.ParseKey(m.Key())
	require.NoError(t, err)
	require.Equal(t, m, again)
	require.Equal(t, noon, wakeup.Minute(noon.Add(59*time.Second)))
	for _, key := range []string{
		"", "wakeups/", "wakeups/20261122T1200/acme", "wakeups/20261122T1200/acme/prod/x", "wakeups/20261122T12/acme/prod", "wakeups/20261122T1200//prod",
		"wakeups/20261122T1261/acme/prod", "x/20261122T1200/acme/prod", "wakeups/20261122T1200/acme/../prod",
	} {
		_, err := wakeup.ParseKey(key)
		require.Error(t, err, key)
	}
}

func TestListStopsAtCurrentMinute(t *testing.T) {
	store := memblob.New(memblob.Options{})
	late := wakeup.Wakeup{At: noon.Add(-400 * 24 * time.Hour), Domain: other}
	now := wakeup.Wakeup{At: noon, Domain: acme}
	for _, m := range []wakeup.Wakeup{now, late, {At: noon.Add(time.Minute), Domain: acme}, {At: noon.Add(time.Hour), Domain: other}} {
		require.NoError(t, wakeup.Create(t.Context(), store, m))
		require.NoError(t, wakeup.Create(t.Context(), store, m), "it exists already")
	}
	_, err := store.Create(t.Context(), "wakeups/20200101T0000/stray", nil)
	require.NoError(t, err)
	wakeups, err := wakeup.List(t.Context(), store, noon.Add(59*time.Second))
	require.NoError(t, err)
	require.Equal(t, []wakeup.Wakeup{late, now}, wakeups)
	for range 2 {
		require.NoError(t, wakeup.Delete(t.Context(), store, now))
	}
	wakeups, err = wakeup.List(t.Context(), store, noon)
	require.NoError(t, err)
	require.Equal(t, []wakeup.Wakeup{late}, wakeups)
}

// If no wakeup is due, a listing reads one page, however many future wakeups exist.
func TestListOfIdleIndexIsOnePage(t *testing.T) {
	store := cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{})
	for i := range 2500 {
		require.NoError(t, wakeup.Create(t.Context(), store, wakeup.Wakeup{At: noon.Add(time.Duration(1+i) * time.Minute), Domain: acme}))
	}
	before := store.Usage()["wakeups"].ClassA
	wakeups, err := wakeup.List(t.Context(), store, noon)
	require.NoError(t, err)
	require.Empty(t, wakeups)
	require.Equal(t, int64(1), store.Usage()["wakeups"].ClassA-before)
}

func TestStoreErrorsAreReturned(t *testing.T) {
	store := faultblob.New(memblob.New(memblob.Options{}), func(faultblob.Op, string) faultblob.Fault { return faultblob.FailBefore })
	_, err := wakeup.List(t.Context(), store, noon)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.ErrorIs(t, wakeup.Create(t.Context(), store, wakeup.Wakeup{At: noon, Domain: acme}), faultblob.ErrInjected)
	require.ErrorIs(t, wakeup.Delete(t.Context(), store, wakeup.Wakeup{At: noon, Domain: acme}), faultblob.ErrInjected)
}
