package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

func TestDomainsHaveTheirOwnIDSources(t *testing.T) {
	store := memblob.New(memblob.Options{})
	now := clock.System{}.Now()
	c := &compactors{
		store: store, codec: snapshot.NewMemoryCodec(), writer: "test", archiving: make(chan struct{}, 1),
		server: &server{metrics: newMetrics(), clock: clock.System{}, logger: silent},
	}
	var sources []*ids.Source
	for _, tenant := range []string{"ahead", "other"} {
		d := ids.Domain{Tenant: tenant, Workspace: "main"}
		_, err := store.Create(t.Context(), ledger.Key(d, ids.AtTime(now)), []byte("{}\n"))
		require.NoError(t, err)
		opened, err := c.open(t.Context(), d)
		require.NoError(t, err)
		sources = append(sources, opened.value.IDs)
	}
	sources[0].Observe(ids.AtTime(now.Add(20 * time.Minute))) // the largest skew that is followed
	require.True(t, ids.Time(sources[0].New()).After(now.Add(19*time.Minute)))
	require.WithinDuration(t, now, ids.Time(sources[1].New()), time.Minute, "the ids of another tenant do not advance")
}
