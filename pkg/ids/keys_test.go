package ids_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
)

func TestParseAssetKey(t *testing.T) {
	key, err := ids.ParseAssetKey("raw/events_2")
	require.NoError(t, err)
	require.Equal(t, ids.AssetKey{Namespace: "raw", Name: "events_2"}, key)
	require.Equal(t, "raw.events_2", key.SQL())
	for _, bad := range []string{"", "raw", "raw/", "/events", "raw/events/x", "Raw/events", "raw/ev-ents", "raw/événements"} {
		_, err := ids.ParseAssetKey(bad)
		require.Error(t, err, bad)
	}
}

func TestTaskKeyIsReadable(t *testing.T) {
	asset := ids.AssetKey{Namespace: "raw", Name: "events"}
	for want, p := range map[string]ids.Partition{
		"raw/events":                             nil,
		"raw/events[date=2025-01-15]":            {"date": "2025-01-15"},
		"raw/events[date=2025-01-15;region=eu]":  {"region": "eu", "date": "2025-01-15"},
		"raw/events[x=%5B%2C%3B%3D%5D%25%2F%3A]": {"x": "[,;=]%/:"},
		"raw/events[a%3Db=]":                     {"a=b": ""},
	} {
		require.Equal(t, want, ids.TaskKey(asset, p))
		require.NoError(t, ids.ValidateTaskKey(want))
	}
	require.Equal(t, "raw/events[*]", ids.GroupKey(asset))
	require.Equal(t, "date=2025-01-15;hour=T02:00+01:00", ids.Partition{"hour": "T02:00+01:00", "date": "2025-01-15"}.Text())
}

func TestLongTaskKeyIsShortened(t *testing.T) {
	asset := ids.AssetKey{Namespace: "raw", Name: "events"}
	long := strings.Repeat("a/", 127)
	key := ids.TaskKey(asset, ids.Partition{"date": "2025-01-15", "tenant": long + "b"})
	require.NoError(t, ids.ValidateTaskKey(key))
	require.True(t, strings.HasPrefix(key, "raw/events[date=2025-01-15;tenant=a%2Fa%2F"), key)
	require.NotEqual(t, key, ids.TaskKey(asset, ids.Partition{"date": "2025-01-15", "tenant": long + "c"}))
	_, _, err := ids.ParseTaskKey(key)
	require.ErrorContains(t, err, "is not DIMENSION=VALUE")
	// A key of the maximum length is not changed.
	require.Len(t, ids.TaskKey(asset, ids.Partition{"x": strings.Repeat("a", ids.MaxTaskKey-len("raw/events[x=]"))}), ids.MaxTaskKey)
	require.NoError(t, ids.ValidateTaskKey(ids.TaskKey(asset, ids.Partition{"x": strings.Repeat("é", ids.MaxTaskKey)})))
}

func partitions() *rapid.Generator[ids.Partition] {
	// Short texts of few, awkward characters: if two partitions can have the same key, the test is likely to find them.
	text := rapid.StringOfN(rapid.SampledFrom([]rune(`a,;=[]%2CD53B/:*`)), 0, 4, -1)
	return rapid.Map(rapid.MapOfN(text, text, 0, 3), func(m map[string]string) ids.Partition { return m })
}

func TestTaskKeysOfDifferentPartitionsDiffer(t *testing.T) {
	word := rapid.StringMatching(`[ab]{1,2}`)
	rapid.Check(t, func(t *rapid.T) {
		asset := func(label string) ids.AssetKey {
			return ids.AssetKey{Namespace: word.Draw(t, label+" namespace"), Name: word.Draw(t, label+" name")}
		}
		a, b := asset("a"), asset("b")
		p, q := partitions().Draw(t, "p"), partitions().Draw(t, "q")
		same := a == b && p.Key() == q.Key()
		require.Equal(t, same, ids.TaskKey(a, p) == ids.TaskKey(b, q))
		require.NotEqual(t, ids.GroupKey(a), ids.TaskKey(b, q), "a group key differs from every task key")
	})
}

func TestParsePartitionInvertsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := ids.Partition(rapid.MapOfN(rapid.String(), rapid.String(), 1, 4).Draw(t, "partition"))
		got, err := ids.ParsePartition(p.Key())
		require.NoError(t, err)
		require.Equal(t, p, got)
	})
	empty, err := ids.ParsePartition("")
	require.NoError(t, err)
	require.Empty(t, empty)
	require.Empty(t, ids.Partition{}.Key())
}

// The test fails if a key whose texts need no escapes differs from the canonical JSON of the partition.
func TestKeyIsCanonicalJSON(t *testing.T) {
	text := rapid.StringMatching(`[ -~\x7fé\n]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.MapOfN(text, text, 1, 4).Draw(t, "partition")
		raw, err := json.Marshal(p)
		require.NoError(t, err)
		want := jsontext.Value(raw)
		require.NoError(t, want.Canonicalize())
		require.Equal(t, string(want), ids.Partition(p).Key())
	})
}

func TestParsePartitionRejectsNonCanonicalKeys(t *testing.T) {
	for _, bad := range []string{
		`{}`, `null`, `[]`, `"x"`, `{"date": "2025-01-15"}`, `{"b":"1","a":"2"}`, `{"a":"1","a":"1"}`,
		`{"a":1}`, `{"a":null}`, `{"a":"\u0062"}`, `{"a":"b"} `, `{`,
	} {
		_, err := ids.ParsePartition(bad)
		require.Error(t, err, bad)
	}
}

func TestValidateTaskKey(t *testing.T) {
	require.NoError(t, ids.ValidateTaskKey(strings.Repeat("k", ids.MaxTaskKey)))
	for _, bad := range []string{"", strings.Repeat("k", ids.MaxTaskKey+1), "a\nb", "a\x00b", "a\x7fb", "a\xffb", "a\ufffdb"} {
		require.Error(t, ids.ValidateTaskKey(bad), bad)
	}
}

func TestParseTaskKeyInvertsTaskKey(t *testing.T) {
	asset := ids.AssetKey{Namespace: "raw", Name: "x"}
	for _, p := range []ids.Partition{nil, {"date": "2025-01-15"}, {"a": "1;2,3=[]/:%", "b": ""}} {
		key := ids.TaskKey(asset, p)
		gotAsset, got, err := ids.ParseTaskKey(key)
		require.NoError(t, err, key)
		require.Equal(t, asset, gotAsset)
		require.Equal(t, p, got, key)
	}
	_, got, err := ids.ParseTaskKey("raw/x[a=1,b=2]")
	require.NoError(t, err)
	require.Equal(t, ids.Partition{"a": "1", "b": "2"}, got, "people write commas")
	for _, bad := range []string{"x", "raw/x[a=1", "raw/x[a]", "raw/x[a=1;a=2]"} {
		_, _, err := ids.ParseTaskKey(bad)
		require.Error(t, err, bad)
	}
}

func TestReadableKeyIsUnescapedAndUnique(t *testing.T) {
	asset := ids.AssetKey{Namespace: "raw", Name: "hourly"}
	seen := map[string]bool{}
	for _, hour := range []string{"2025-03-30T08:00+02:00", "2025-03-30T08%3A00+02%3A00", "2025-03-30T08%253A00", "a:b%3Ac", "a%3Ab:c"} {
		key := ids.TaskKey(asset, ids.Partition{"hour": hour})
		readable := ids.ReadableKey(key)
		require.Equal(t, key, ids.StoredKey(readable))
		require.Equal(t, key, ids.StoredKey(key), "a stored key stays as it is")
		require.False(t, seen[readable])
		seen[readable] = true
	}
	require.True(t, seen["raw/hourly[hour=2025-03-30T08:00+02:00]"])
}
