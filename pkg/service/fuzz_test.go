package service_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/service"
)

// storedKeys is the documented format of the file of signing keys.
type storedKeys struct {
	Current string            `json:"current"`
	Secrets map[string][]byte `json:"secrets"`
}

// ReadKeys returns a keyring that can sign, or an error that names the file and reveals no key.
func FuzzReadKeys(f *testing.F) {
	secret := []byte(strings.Repeat("s", contract.MinSecret))
	for _, v := range []storedKeys{
		{"a", map[string][]byte{"a": secret}},
		{"a", map[string][]byte{"a": secret, "b": secret}},
		{"a", map[string][]byte{"a": secret[1:]}},
		{"b", map[string][]byte{"a": secret}},
		{"", map[string][]byte{"": secret}},
		{},
	} {
		data, err := json.Marshal(v)
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	for _, seed := range []string{`{"current":"a","secrets":{"a":"?"}}`, `{"current":"a","secrets":{"a":7}}`, `{"secrets":[]}`, "null", "[]", "", "{}{}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), service.KeysFile)
		require.NoError(t, os.WriteFile(file, data, 0o600))
		keys, err := service.ReadKeys(file)
		if err != nil {
			require.ErrorContains(t, err, file)
			require.ErrorContains(t, err, "remove the file")
			return
		}
		env := &contract.Envelope{Tenant: "acme", Workspace: "prod", RunID: ids.AtTime(ids.Time(""))}
		_, err = contract.Seal(env, keys, 1)
		require.NoError(t, err)
		stored, err := json.Marshal(storedKeys{keys.Current, keys.Secrets})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, stored, 0o600))
		again, err := service.ReadKeys(file)
		require.NoError(t, err)
		require.Equal(t, keys, again)
	})
}
