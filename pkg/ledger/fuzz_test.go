package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

func FuzzParseKey(f *testing.F) {
	d, entry := ids.Domain{Tenant: "acme", Workspace: "prod"}, "01KAJ2T0000000000000000000"
	for _, seed := range []string{
		ledger.Key(d, entry), ledger.Prefix(d), ledger.Key(d, "x"), ledger.Key(d, entry) + ".json", ledger.Key(d, "x/"+entry),
		ledger.Key(ids.Domain{Tenant: "a/workspace=b", Workspace: "c"}, entry), ledger.Key(ids.Domain{}, entry),
		ledger.Key(d, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), ledger.Key(d, "01kaj2t0000000000000000000"), "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		d, entry, err := ledger.ParseKey(key)
		if err != nil {
			require.ErrorContains(t, err, "is not the key of a ledger entry")
			return
		}
		require.NoError(t, d.Validate())
		require.True(t, ids.Valid(entry))
		require.Equal(t, key, ledger.Key(d, entry))
	})
}
