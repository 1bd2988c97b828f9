package event

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// Earlier builds read ledgers with encoding/json, so split must return the same members.
func FuzzSplitMatchesEncodingJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"a":1,"b":{"c":[1,2]},"a":"twice"}`, ` {"a" : 1 } `, `{"a":1}{"b":2}`, `{"a":1}]`, `[]`, `"x"`, ``, `{"\u0061":1}`, `{"a\"run_id":1}`, `{"run_id\\":1}`, `{ "\\\"run_id" :1, "run_id":2}`,
		`{"\ud800":"\udc00"}`, `{"a":` + "\"\xff\"" + `}`, `{"a":01}`, `{"a":1,}`, `{"a":nul}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want map[string]json.RawMessage
		wantErr := json.Unmarshal(raw, &want)
		found, err := split(raw)
		if wantErr != nil {
			require.EqualError(t, err, wantErr.Error())
			return
		}
		require.NoError(t, err)
		require.Equal(t, want == nil, found == nil)
		got := found.byName()
		require.Len(t, got, len(want))
		for name, value := range want {
			require.Equal(t, string(value), string(got[name]))
		}
	})
}
