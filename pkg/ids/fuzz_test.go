package ids_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// If a partition key is parsed and encoded again, the result is the same key. Different keys name different tasks.
func FuzzParsePartition(f *testing.F) {
	for _, seed := range [][2]string{
		{"", `{"date":"2025-01-15"}`},
		{`{"date":"2025-01-15"}`, `{"date":"2025-01-15","region":"eu"}`},
		{`{"a":"1,b=2"}`, `{"a":"1","b":"2"}`},
		{`{"a":"]"}`, `{"a":"%5D"}`},
		{`{"a":"\ud800"}`, "{\"a\":\"\xff\"}"},
		{`{"a":"1","a":"2"}`, `{ "a": "1" }`},
		{"null", "{}"},
		{`{"b":"","a":""}`, `{"":""}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		p, err := ids.ParsePartition(a)
		if err != nil {
			require.ErrorContains(t, err, "partition key ")
			return
		}
		require.Equal(t, a, p.Key())
		asset := ids.AssetKey{Namespace: "n", Name: "a"}
		require.NotEqual(t, ids.GroupKey(asset), ids.TaskKey(asset, p))
		if q, err := ids.ParsePartition(b); err == nil && a != b {
			require.NotEqual(t, ids.TaskKey(asset, p), ids.TaskKey(asset, q))
		}
	})
}

func FuzzParseAssetKey(f *testing.F) {
	for _, seed := range []string{"raw/events", "a/b/c", "/", "", "A/b", "a/b ", "a_1/2", "ä/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := ids.ParseAssetKey(s)
		if err != nil {
			require.ErrorContains(t, err, "expected namespace/name")
			return
		}
		require.Equal(t, s, key.String())
	})
}
