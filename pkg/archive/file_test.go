package archive_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// drawData draws the content of an entry: events, and lines that resemble them.
func drawData(t *rapid.T) []byte {
	piece := rapid.SampledFrom([]string{
		"{\"event_type\":\"TaskFinished\"}\n", "{\"a\":\"é\\u0000\"}\n", "{}", "{}\r\n", "\n", "\r\n", " {}\n", "[1]\n", "null\n",
		"{\"a\":1,\"a\":2}\n", "{\"a\":\"\\ud800\"}\n", "{\"a\":\"\xff\"}\n", "\x00", "{\"a\":", "\"x\"\n",
	})
	return []byte(strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "pieces"), "") + string(rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "rest")))
}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := ids.NewSource((&still{now: epoch}).Now, nil)
		var entries []archive.Entry
		for range rapid.IntRange(1, 8).Draw(t, "entries") {
			entries = append(entries, archive.Entry{ID: source.New(), Data: drawData(t)})
		}
		data, err := archive.Encode(entries)
		require.NoError(t, err)
		decoded, err := archive.Decode(data)
		require.NoError(t, err)
		require.Len(t, decoded, len(entries))
		for i, e := range entries {
			require.Equal(t, e.ID, decoded[i].ID)
			require.Equal(t, string(e.Data), string(decoded[i].Data))
		}
	})
}

func TestEncodeIsDeterministic(t *testing.T) {
	entries := []archive.Entry{{ID: cutoff(epoch), Data: []byte("{}\n")}, {ID: cutoff(epoch.Add(1e9)), Data: []byte("no JSON")}}
	one, err := archive.Encode(entries)
	require.NoError(t, err)
	two, err := archive.Encode(entries)
	require.NoError(t, err)
	require.Equal(t, one, two)
}

func TestKeyContainsDayAndFirstEntry(t *testing.T) {
	require.Equal(t, "archive/orchestration/tenant=acme/workspace=prod/date=2025-01-14/01JHK4W300000000000000000A.parquet",
		archive.Key(domain, "01JHK4W300000000000000000A"))
	var keys []string
	for _, at := range []int64{0, 1, 86_399_999, 86_400_000, 1_767_225_599_999, 1_767_225_600_000, 253_402_300_799_999} {
		keys = append(keys, archive.Key(domain, ids.AtTime(time.UnixMilli(at))))
	}
	require.True(t, slices.IsSorted(keys), "keys sort like entries")
}

func FuzzDecode(f *testing.F) {
	data, err := archive.Encode([]archive.Entry{{ID: cutoff(epoch), Data: []byte("{}\n{}\n")}, {ID: cutoff(epoch.Add(1e9)), Data: []byte("x")}})
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte("PAR1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := archive.Decode(data)
		if err != nil {
			return
		}
		require.True(t, slices.IsSortedFunc(entries, func(a, b archive.Entry) int { return strings.Compare(a.ID, b.ID) }))
	})
}
