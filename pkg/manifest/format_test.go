package manifest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

func TestEncodeMatchesDocumentedExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/manifest.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```json\n")
	require.True(t, found)
	example, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	var want bytes.Buffer
	require.NoError(t, json.Compact(&want, []byte(example)))
	got, err := manifest.Encode(full())
	require.NoError(t, err)
	require.Equal(t, want.String(), strings.TrimSuffix(string(got), "\n"))
}

func TestKeysMatchDocumentedLayout(t *testing.T) {
	for want, got := range map[string]string{
		"manifests/orchestration/tenant=acme/workspace=prod/00000000000000000042.json": manifest.Key(domain, 42),
		"pins/orchestration/tenant=acme/workspace=prod/00000000000000000042.json":      manifest.PinKey(domain, 42),
		"hints/orchestration/tenant=acme/workspace=prod.json":                          manifest.HintKey(domain),
		"boundary/orchestration/tenant=acme/workspace=prod.json":                       manifest.BoundaryKey(domain),
		"state/orchestration/tenant=acme/workspace=prod/runs/l0/X.parquet":             manifest.StateKey(domain, "runs", manifest.TierL0, "X"),
	} {
		require.Equal(t, want, got)
	}
}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	data, err := manifest.Encode(full())
	require.NoError(t, err)
	got, err := manifest.Decode("key", domain, 5, data)
	require.NoError(t, err)
	require.Equal(t, full(), got)
	require.Len(t, got.Files(), 4)
}

// If another build or a person has written inline rows, their JSON may be formatted differently. This test fails if
// Encode encodes such rows again instead of copying them.
func TestEncodeCopiesInlineRowsByteForByte(t *testing.T) {
	m := full()
	m.L0[1].Inline = []manifest.Rows{manifest.NewRows("limits", 1, []byte(`[ {"scope":"\u003c\/", "name" : "db", "row_seq":7.0e0} ]`))}
	data, err := manifest.Encode(m)
	require.NoError(t, err)
	got, err := manifest.Decode("key", domain, 5, data)
	require.NoError(t, err)
	require.Equal(t, m, got)
}

// A manifest is stored as the same bytes whether its deltas were encoded before or not.
func TestPublishReusesEncodedDeltas(t *testing.T) {
	fx := newFixture()
	s := fx.writer()
	m := full()
	m.Parent, m.OrphanFloor, m.Nonce = nil, "", ""
	source := ids.NewSource(now, nil)
	m.L1[0].ID = source.New()
	for i := range 2 {
		m.L0[i].ID = source.New()
	}
	for range 3 {
		require.NoError(t, s.Publish(t.Context(), m))
		data, _, err := fx.blobs.Get(t.Context(), manifest.Key(domain, m.Revision))
		require.NoError(t, err)
		fresh, err := manifest.Encode(m)
		require.NoError(t, err)
		require.Equal(t, string(fresh), string(data))
		m = m.Successor("compactor-1")
		m.L0 = append(m.L0[1:], manifest.Delta{ID: source.New(), Revision: m.Revision, Inline: m.L0[1].Inline, Rows: 1, Bytes: 52})
	}
	m.L0[1].Rows = -1
	require.ErrorContains(t, s.Publish(t.Context(), m), "l0_deltas[1].rows", "unknown deltas are validated")
}

// A publish drops rows of a delta, and fails. The next publish may drop other rows of the same delta, and still leave
// the same number of rows and bytes. It must not reuse the encoded rows of the failed publish.
func TestPublishEncodesRemainingRowsOfDelta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		s := fx.writer()
		m := full()
		m.Parent, m.OrphanFloor, m.Nonce = nil, "", ""
		source := ids.NewSource(now, nil)
		m.L1[0].ID = source.New()
		for i := range 2 {
			m.L0[i].ID = source.New()
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		fx.faults(func(faultblob.Op, string) faultblob.Fault { return faultblob.FailBefore })
		require.Error(t, s.Publish(ctx, m))
		fx.faults(nil)
		other := manifest.NewRows("limits", 1, []byte(`[{"scope":"pool","name":"DB","slots":2,"row_seq":7}]`))
		require.Len(t, other.JSON, len(m.L0[1].Inline[0].JSON))
		m.L0[1].Inline = []manifest.Rows{other}
		require.NoError(t, s.Publish(t.Context(), m))
		got, err := s.Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, string(other.JSON), string(got.L0[1].Inline[0].JSON))
	})
}

func TestSuccessorSharesNoMutableData(t *testing.T) {
	m := full()
	next := m.Successor("other")
	require.Equal(t, &manifest.Ref{Revision: 5, Nonce: m.Nonce}, next.Parent)
	require.Empty(t, next.Nonce)
	next.L0 = append(next.L0[:0], manifest.Delta{})
	next.L1[0] = manifest.Delta{}
	next.BaseSnapshot.Files[0] = manifest.File{}
	delete(next.History, "runs")
	next.RowCounts["runs"] = 9
	require.Equal(t, full(), m)
}

func TestDecoderRemembersManifests(t *testing.T) {
	first := full()
	good, err := manifest.Encode(first)
	require.NoError(t, err)
	decoder := &manifest.Decoder{Domain: domain, Remember: 1}
	one, err := decoder.Decode("manifests/the.json", first.Revision, good)
	require.NoError(t, err)
	want, err := manifest.Decode("manifests/the.json", domain, first.Revision, good)
	require.NoError(t, err)
	one.RowCounts["runs"], one.L0[0].Rows, one.BaseSnapshot.Files[0].Size = 99, 98, 97
	two, err := decoder.Decode("manifests/the.json", first.Revision, good)
	require.NoError(t, err)
	require.Equal(t, want, two, "a caller that changes its copy does not change that of another one")
	_, err = decoder.Decode("manifests/the.json", first.Revision+1, good)
	require.ErrorContains(t, err, "it contains revision")
}

func TestDecodeRejectsDamagedManifest(t *testing.T) {
	good, err := manifest.Encode(full())
	require.NoError(t, err)
	reader := &manifest.Decoder{Domain: domain}
	first, err := reader.Decode("key", 5, good)
	require.NoError(t, err)
	again, err := reader.Decode("key", 5, good)
	require.NoError(t, err)
	require.Equal(t, first, again)
	for name, c := range map[string]struct{ from, to, reason string }{
		"not JSON":                {"{", "(", "not a JSON object"},
		"trailing data":           {"}]}\n", "}]}{}", "after top-level value"},
		"a newer format":          {`"schema_version":1`, `"schema_version":2`, "upgrade servo"},
		"an unknown field":        {`"fold_seq"`, `"surprise":1,"fold_seq"`, "surprise"},
		"another tenant":          {`"tenant_id":"acme"`, `"tenant_id":"evil"`, "base_snapshot.files[0].key"},
		"files of another tenant": {`/tenant=acme/workspace=prod/runs/base`, `/tenant=evil/workspace=prod/runs/base`, "base_snapshot.files[0].key"},
		"path traversal":          {`runs/base/`, `runs/base/../`, "base_snapshot.files[0].key"},
		"a file of another tier":  {`tasks/l0`, `tasks/l1`, "l0_deltas[0].files[0].key"},
		"a negative size":         {`"size":12`, `"size":-12`, "size"},
		"another count":           {`"l0_count":2`, `"l0_count":1`, "l0_count"},
		"a wrong parent":          {`"parent":{"revision":4`, `"parent":{"revision":0`, "parent.revision"},
		"no writer":               {`"writer":"compactor-1"`, `"writer":""`, "writer"},
		"an invalid floor":        {`"orphan_floor":"`, `"orphan_floor":"x`, "orphan_floor"},
		"a later delta":           {`"revision":5,"rows"`, `"revision":6,"rows"`, "l0_deltas[1].revision"},
		"a delta of the base":     {`"revision":3,"files"`, `"revision":2,"files"`, "revision 2 must be greater than 2"},
		"deltas out of order":     {`"revision":4,"files"`, `"revision":3,"files"`, "revision 3 must be greater than 3"},
		"an invalid table":        {`"row_counts":{"runs"`, `"row_counts":{"../runs"`, "row_counts"},
		"a later base":            {`"revision":2,"published_at"`, `"revision":6,"published_at"`, "base_snapshot.revision"},
		"a later cutoff":          {`"fold_seq":5`, `"fold_seq":8`, "base_snapshot.fold_seq"},
		"a deletable wakeup":      {`"through":"2023-11-14T22:10`, `"through":"2023-11-14T22:20`, "wakeup.at"},
		"an invalid entry":        {`"entries_from":"0`, `"entries_from":"x`, "base_snapshot.entries_from"},
		"an invalid run":          {`"runs_from":"0`, `"runs_from":"x`, "base_snapshot.runs_from"},
		"a modified row":          {`"slots":2`, `"slots":3`, "l0_deltas[1].inline[0].rows: checksum is not"},
		"rows of another tier":    {`"rows":3,"bytes":12}],"l0_deltas"`, `"rows":3,"bytes":12,"inline":[{"table":"runs","crc32c":0,"count":0,"rows":[]}]}],"l0_deltas"`, "l1[0].inline"},
		"rows without a table":    {`"inline":[{"table":"limits"`, `"inline":[{"table":""`, "l0_deltas[1].inline[0].table"},
		"a checksum over 32 bits": {`"crc32c":1`, `"crc32c":91`, "not a manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := bytes.Replace(good, []byte(c.from), []byte(c.to), 1)
			require.NotEqual(t, string(good), string(changed))
			_, err := manifest.Decode("manifests/the.json", domain, 5, changed)
			_, same := reader.Decode("manifests/the.json", 5, changed)
			require.Equal(t, err, same, "a decoder that knows the deltas returns the same error")
			var corrupt *manifest.CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.Contains(t, err.Error(), "manifests/the.json")
			require.Contains(t, err.Error(), "servo admin rebuild")
			require.Contains(t, corrupt.Reason, c.reason)
		})
	}
	_, err = manifest.Decode("key", domain, 3, good)
	require.ErrorContains(t, err, "revision 5")
}

func TestCodecRejectsTooLargeManifest(t *testing.T) {
	_, err := manifest.Decode("key", domain, 1, bytes.Repeat([]byte(" "), 33<<20))
	require.ErrorContains(t, err, "bytes")
	m := full()
	m.L0 = make([]manifest.Delta, 5000)
	m.L0Count = 5000
	_, err = manifest.Encode(m)
	require.ErrorContains(t, err, "l0_deltas")
}

func FuzzDecode(f *testing.F) {
	good, err := manifest.Encode(full())
	require.NoError(f, err)
	first := manifest.First(domain, timeline, "w")
	first.Nonce, first.PublishedAt = timeline, event.Time(1)
	small, err := manifest.Encode(first)
	require.NoError(f, err)
	for _, seed := range [][]byte{good, small, nil, []byte("{}"), []byte("null"), []byte(`{"schema_version":1,"parent":null,"history":{"":{}}}`)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, revision := range []int64{1, 5} {
			m, err := manifest.Decode("key", domain, revision, data)
			if err != nil {
				continue
			}
			for _, file := range m.Files() {
				require.True(t, strings.HasPrefix(file.Key, manifest.StatePrefix(domain)), "files belong to the domain")
			}
			out, err := manifest.Encode(m)
			require.NoError(t, err)
			again, err := manifest.Decode("key", domain, revision, out)
			require.NoError(t, err)
			twice, err := manifest.Encode(again)
			require.NoError(t, err)
			require.Equal(t, string(out), string(twice))
		}
	})
}

func TestFirstHasNoParent(t *testing.T) {
	m := manifest.First(ids.Domain{Tenant: "a", Workspace: "b"}, timeline, "w")
	require.Nil(t, m.Parent)
	require.EqualValues(t, 1, m.Revision)
}
