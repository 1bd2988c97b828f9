package manifest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// segment returns a history segment of runs with run ids in [from, to].
func segment(id, from, to string) manifest.File {
	return manifest.File{
		Table: "runs", Key: manifest.StateKey(domain, "runs", manifest.TierHistory, id), Size: 12, Rows: 3, CRC32C: blob.CRC32C([]byte("x")),
		MinRun: from, MaxRun: to,
	}
}

func TestRunSegmentsFindsSegmentsOfRun(t *testing.T) {
	fx := newFixture()
	s := fx.writer()
	run := func(n int) string { return "01HF7YAT00000000000000000" + string(rune('0'+n)) }
	segments := []manifest.File{segment(run(1), run(3), run(5)), segment(run(2), run(1), run(4))}
	data, index, err := manifest.EncodeIndex(manifest.IndexKey(domain, "runs", run(9)), "runs", segments)
	require.NoError(t, err)
	require.Equal(t, run(1), index.MinRun)
	require.Equal(t, run(5), index.MaxRun)
	require.EqualValues(t, 6, index.Rows)
	_, err = s.Segments(t.Context(), index)
	require.ErrorIs(t, err, manifest.ErrMissing)
	_, err = fx.blobs.Create(t.Context(), index.Key, data)
	require.NoError(t, err)
	got, err := s.Segments(t.Context(), index)
	require.NoError(t, err)
	require.Equal(t, segments, got)
	for n, want := range map[int][]manifest.File{0: nil, 2: segments[1:], 4: segments, 5: segments[:1], 6: nil} {
		got, err := s.RunSegments(t.Context(), index, run(n))
		require.NoError(t, err)
		require.Equal(t, want, got, "run %d", n)
	}
}

func TestSegmentsRejectsDamagedIndex(t *testing.T) {
	id := "01HF7YAT000000000000000000"
	good, _, err := manifest.EncodeIndex("", "runs", []manifest.File{segment(id, id, id)})
	require.NoError(t, err)
	for name, c := range map[string]struct{ from, to, reason string }{
		"not JSON":       {"{", "(", "invalid character"},
		"a newer format": {`"schema_version":1`, `"schema_version":2`, "upgrade servo"},
		"another table":  {`"table":"runs","segments"`, `"table":"tasks","segments"`, "belongs to table"},
		"another tenant": {"tenant=acme", "tenant=evil", "segments[0].key"},
		"another tier":   {"runs/history", "runs/base", "segments[0].key"},
		"unknown fields": {`"segments"`, `"more":1,"segments"`, "more"},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture()
			changed := []byte(strings.Replace(string(good), c.from, c.to, 1))
			require.NotEqual(t, string(good), string(changed))
			f := manifest.File{
				Table: "runs", Key: manifest.IndexKey(domain, "runs", id), Size: int64(len(changed)), CRC32C: blob.CRC32C(changed),
			}
			_, err := fx.blobs.Create(t.Context(), f.Key, changed)
			require.NoError(t, err)
			_, err = fx.writer().Segments(t.Context(), f)
			var corrupt *manifest.CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.Contains(t, corrupt.Reason, c.reason)
		})
	}
}
