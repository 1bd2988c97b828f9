package embedded_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/embedded"
)

// ReadOwner either returns an owner that is the same after it is written and read again, or an error that names the
// file.
func FuzzReadOwnerRoundTripsOrNamesFile(f *testing.F) {
	good, err := json.Marshal(embedded.Owner{PID: 7, URL: "http://127.0.0.1:1", Domain: "acme/prod"})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), string(good) + "x", `{"pid":"7"}`, `{"pid":-1,"url":":"}`, `{"pid":1e99}`, "null", "[]", "{}", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		file := filepath.Join(dir, "owner.json")
		require.NoError(t, os.WriteFile(file, data, 0o600))
		owner, err := embedded.ReadOwner(dir)
		if err != nil {
			require.ErrorContains(t, err, file)
			return
		}
		stored, err := json.Marshal(owner)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, stored, 0o600))
		again, err := embedded.ReadOwner(dir)
		require.NoError(t, err)
		require.Equal(t, owner, again)
	})
}
