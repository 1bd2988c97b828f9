package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/eventtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

func TestKeyMatchesDocumentedLayout(t *testing.T) {
	require.Equal(t, "ledger/orchestration/tenant=acme/workspace=prod/01JHK4W300000000000000000A.json",
		ledger.Key(domain, "01JHK4W300000000000000000A"))
}

func TestParseKeyInvertsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := eventtest.Envelope().Draw(t, "event").Domain
		id := eventtest.ULID().Draw(t, "entry")
		key := ledger.Key(d, id)
		require.NoError(t, blob.ValidateKey(key))
		gotDomain, gotID, err := ledger.ParseKey(key)
		require.NoError(t, err)
		require.Equal(t, d, gotDomain)
		require.Equal(t, id, gotID)
	})
}

func TestParseKeyRejectsOtherObjects(t *testing.T) {
	for _, key := range []string{
		"", "ledger/orchestration/", "ledger/orchestration/tenant=a/workspace=b/x.json",
		"ledger/orchestration/tenant=a/workspace=b/01JHK4W300000000000000000A",
		"ledger/orchestration/tenant=a/workspace=b/c/01JHK4W300000000000000000A.json",
		"ledger/orchestration/tenant=A/workspace=b/01JHK4W300000000000000000A.json",
		"ledger/orchestration/tenant=a/01JHK4W300000000000000000A.json",
		"manifests/orchestration/tenant=a/workspace=b/01JHK4W300000000000000000A.json",
	} {
		_, _, err := ledger.ParseKey(key)
		require.Error(t, err, key)
	}
}

func TestListStartsAfterULIDAndSkipsStrays(t *testing.T) {
	store := memblob.New(memblob.Options{})
	at := func(second int64) string { return ids.AtTime(time.Unix(second, 0)) }
	neighbour := ids.Domain{Tenant: "acme", Workspace: "prod-2"}
	for _, key := range []string{
		ledger.Key(domain, at(1)), ledger.Key(domain, at(2)), ledger.Key(domain, at(3)),
		ledger.Prefix(domain) + "README.txt", ledger.Key(neighbour, at(2)),
	} {
		_, err := store.Create(t.Context(), key, []byte("{}\n"))
		require.NoError(t, err)
	}
	list := func(after string) (names []string) {
		for name, err := range ledger.List(t.Context(), store, domain, after) {
			require.NoError(t, err)
			require.Equal(t, ledger.Key(domain, name.Entry), name.Object.Key)
			names = append(names, name.Entry)
		}
		return names
	}
	require.Equal(t, []string{at(1), at(2), at(3)}, list(""))
	require.Equal(t, []string{at(3)}, list(at(2)))
	require.Empty(t, list(at(3)))
}

func TestReadReturnsNotFound(t *testing.T) {
	_, err := ledger.Read(t.Context(), memblob.New(memblob.Options{}), ledger.Key(domain, ids.AtTime(time.Unix(1, 0))))
	require.ErrorIs(t, err, blob.ErrNotFound)
}
