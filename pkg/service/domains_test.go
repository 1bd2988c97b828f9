package service_test

import (
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/service"
)

// withFolder is a store with one more object, such as the empty object that the console of Cloud Storage creates for a
// folder. The other stores of tests refuse such keys.
type withFolder struct {
	blob.Store

	key string
}

func (s withFolder) List(ctx context.Context, o blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		if strings.HasPrefix(s.key, o.Prefix) && s.key > o.StartAfter && !yield(blob.Object{Key: s.key}, nil) {
			return
		}
		s.Store.List(ctx, o)(yield) // all keys of the test are greater than the folder
	}
}

func TestObjectOfFolderHidesNoDomain(t *testing.T) {
	t.Parallel()
	d := ids.Domain{Tenant: "acme", Workspace: "main"}
	store := memblob.New(memblob.Options{})
	_, err := store.Create(t.Context(), ledger.Prefix(d)+"x", []byte("x"))
	require.NoError(t, err)
	tenant := strings.TrimSuffix(ledger.Prefix(d), "workspace=main/")
	for _, folder := range []string{tenant, strings.TrimSuffix(tenant, "tenant=acme/"), tenant + "file", strings.TrimSuffix(tenant, "/")} {
		found, err := service.Domains(t.Context(), withFolder{store, folder})
		require.NoError(t, err)
		require.Equal(t, []ids.Domain{d}, found, folder)
	}
}
