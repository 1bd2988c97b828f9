package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

func TestDomainsHaveTheirOwnIDSources(t *testing.T) {
	store := memblob.New(memblob.Options{})
	now := clock.System{}.Now()
	ahead := ids.AtTime(now.Add(20 * time.Minute)) // sources of ids ignore ids that are more than 30 minutes ahead
	c := &compactors{
		store: store, codec: snapshot.NewMemoryCodec(), writer: "test", archiving: make(chan struct{}, 1),
		server: &server{metrics: newMetrics(), clock: clock.System{}, logger: silent},
	}
	minted := map[string]time.Time{}
	for _, tenant := range []string{"ahead", "other"} {
		d := ids.Domain{Tenant: tenant, Workspace: "main"}
		source := ids.NewSource(func() time.Time { return now }, nil)
		manifests := manifest.New(manifest.Config{Domain: d, Store: store, IDs: source, Clock: clock.System{}, Logger: silent})
		if tenant == "ahead" { // a writer whose clock is fast
			m := manifest.First(d, source.New(), "test")
			m.Watermarks.EventsProcessedThrough = ahead
			require.NoError(t, manifests.Publish(t.Context(), m))
		}
		_, err := store.Create(t.Context(), ledger.Key(d, ids.AtTime(now)), []byte("{}\n"))
		require.NoError(t, err)
		opened, err := c.open(t.Context(), d)
		require.NoError(t, err)
		_, err = opened.value.Step(t.Context(), compactor.Request{Barrier: true})
		require.NoError(t, err)
		m, err := manifests.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, m.L0, 1)
		minted[tenant] = ids.Time(m.L0[0].ID)
	}
	require.True(t, minted["ahead"].After(now.Add(19*time.Minute)))
	require.WithinDuration(t, now, minted["other"], time.Minute, "the ids of another tenant do not advance")
}
