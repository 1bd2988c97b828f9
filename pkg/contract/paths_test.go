package contract_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
)

var asset = ids.AssetKey{Namespace: "raw", Name: "events"}

func TestObjectKeysHaveDocumentedForm(t *testing.T) {
	const day = `{"date":"2012-01-01"}`
	base := "assets/acme/main/raw/events/"
	require.Equal(t, base+"_/", contract.AssetPrefix(domain, asset, ""))
	require.Equal(t, base+"date-2012-01-01/", contract.AssetPrefix(domain, asset, day))
	require.Equal(t, base+"date-2012-01-01/M/", contract.MaterializationPrefix(domain, asset, day, "M"))
	require.Equal(t, base+"date-2012-01-01/M/_commit.json", contract.CommitMarkerKey(domain, asset, day, "M"))
	uri := contract.ExecutionPrefix(domain, asset, day, "M", "A", "n")
	require.Equal(t, base+"date-2012-01-01/M/A-n/", uri)
	require.Equal(t, contract.CommitMarkerKey(domain, asset, day, "M"), contract.CommitMarkerKeyOf(uri))
	require.Equal(t, "logs/tenant=acme/workspace=main/R/raw%2Fevents%5Bdate%3D2012-01-01%5D/2-A.log",
		contract.LogKey(domain, "R", "raw/events[date=2012-01-01]", 2, "A"))
}

func TestPartitionSegmentIsSafe(t *testing.T) {
	for key, want := range map[string]string{
		`{"date":"2012-01-01","region":"eu"}`: "date-2012-01-01,region-eu",
		`{"a":"x,b=y"}`:                       "a-x%2Cb%3Dy",
		`{"a-b":"c-d"}`:                       "a%2Db-c-d",
		`{"a":"../.."}`:                       "a-..%2F..",
		`{"a":"ä%"}`:                          "a-%C3%A4%25",
		`{"a":""}`:                            "a-",
	} {
		require.Equal(t, want, contract.PartitionSegment(key))
	}
	long := contract.PartitionSegment(ids.Partition{"a": strings.Repeat("x", 300)}.Key())
	require.True(t, strings.HasPrefix(long, "~"))
	require.Len(t, long, 65)
	require.True(t, strings.HasPrefix(contract.PartitionSegment("not a partition"), "~"))
}

func TestPartitionSegmentIsUnique(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("aA=-,%~/._é\x00")), 0, 90, -1)
	partition := rapid.MapOfN(text, text, 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids.Partition(partition.Draw(t, "a")).Key(), ids.Partition(partition.Draw(t, "b")).Key()
		sa, sb := contract.PartitionSegment(a), contract.PartitionSegment(b)
		if (sa == sb) != (a == b) {
			t.Fatalf("%q and %q have the segments %q and %q", a, b, sa, sb)
		}
		if len(sa) > 200 || strings.ContainsAny(sa, "/=\x00\\") || strings.Trim(sa, ".") == "" {
			t.Fatalf("segment %q is not safe", sa)
		}
	})
}

func TestLogKeyIsUniquePerTask(t *testing.T) {
	seen := map[string]string{}
	for _, task := range []string{"a/b", "a_b", "a%2Fb", ".", "..", strings.Repeat("x", 400), strings.Repeat("/", 150)} {
		key := contract.LogKey(domain, "R", task, 1, "A")
		require.NotContains(t, seen, key)
		seen[key] = task
		for segment := range strings.SplitSeq(key, "/") {
			require.LessOrEqual(t, len(segment), 255)
			require.NotEmpty(t, strings.Trim(segment, "."))
		}
	}
}

func TestIsExecutionURIRejectsOtherDirectories(t *testing.T) {
	prefix := contract.MaterializationPrefix(domain, asset, "", "M")
	require.True(t, contract.IsExecutionURI(prefix+"A-n/", prefix))
	for _, uri := range []string{
		"", prefix, prefix + "/", prefix + "A-n", prefix + "A-n//", prefix + "../", prefix + "./", prefix + "a/b/",
		prefix + "a/../../x/", prefix + "a\x00/", prefix + "é/", "gs://bucket/x/", contract.MaterializationPrefix(domain, asset, "", "N") + "A-n/",
		contract.MaterializationPrefix(ids.Domain{Tenant: "other", Workspace: "main"}, asset, "", "M") + "A-n/",
	} {
		require.False(t, contract.IsExecutionURI(uri, prefix), uri)
	}
}
