package due_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/cloudblob"
	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

var (
	noon  = event.At(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	acme  = ids.Domain{Tenant: "acme", Workspace: "prod"}
	other = ids.Domain{Tenant: "globex", Workspace: "prod"}
)

func TestKeyMatchesDocumentedFormat(t *testing.T) {
	m := due.Marker{At: noon, Domain: acme}
	require.Equal(t, "due/20261122T1200/acme/prod", m.Key())
	again, err := due.ParseKey(m.Key())
	require.NoError(t, err)
	require.Equal(t, m, again)
	require.Equal(t, noon, due.Minute(noon.Add(59*time.Second)))
	for _, key := range []string{
		"", "due/", "due/20261122T1200/acme", "due/20261122T1200/acme/prod/x", "due/20261122T12/acme/prod", "due/20261122T1200//prod",
		"due/20261122T1261/acme/prod", "x/20261122T1200/acme/prod", "due/20261122T1200/acme/../prod",
	} {
		_, err := due.ParseKey(key)
		require.Error(t, err, key)
	}
}

func TestListStopsAtCurrentMinute(t *testing.T) {
	store := memblob.New(memblob.Options{})
	late := due.Marker{At: noon.Add(-400 * 24 * time.Hour), Domain: other}
	now := due.Marker{At: noon, Domain: acme}
	for _, m := range []due.Marker{now, late, {At: noon.Add(time.Minute), Domain: acme}, {At: noon.Add(time.Hour), Domain: other}} {
		require.NoError(t, due.Create(t.Context(), store, m))
		require.NoError(t, due.Create(t.Context(), store, m), "it exists already")
	}
	_, err := store.Create(t.Context(), "due/20200101T0000/stray", nil)
	require.NoError(t, err)
	wakeups, err := due.List(t.Context(), store, noon.Add(59*time.Second))
	require.NoError(t, err)
	require.Equal(t, []due.Marker{late, now}, wakeups)
	for range 2 {
		require.NoError(t, due.Delete(t.Context(), store, now))
	}
	wakeups, err = due.List(t.Context(), store, noon)
	require.NoError(t, err)
	require.Equal(t, []due.Marker{late}, wakeups)
}

// Future wakeups are not read, however many domains have them.
func TestListOfIdleIndexIsOnePage(t *testing.T) {
	store := cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{})
	for i := range 2500 {
		require.NoError(t, due.Create(t.Context(), store, due.Marker{At: noon.Add(time.Duration(1+i) * time.Minute), Domain: acme}))
	}
	before := store.Usage()["due"].ClassA
	wakeups, err := due.List(t.Context(), store, noon)
	require.NoError(t, err)
	require.Empty(t, wakeups)
	require.Equal(t, int64(1), store.Usage()["due"].ClassA-before)
}

func TestStoreErrorsAreReturned(t *testing.T) {
	store := faultblob.New(memblob.New(memblob.Options{}), func(faultblob.Op, string) faultblob.Fault { return faultblob.FailBefore })
	_, err := due.List(t.Context(), store, noon)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.ErrorIs(t, due.Create(t.Context(), store, due.Marker{At: noon, Domain: acme}), faultblob.ErrInjected)
	require.ErrorIs(t, due.Delete(t.Context(), store, due.Marker{At: noon, Domain: acme}), faultblob.ErrInjected)
}
