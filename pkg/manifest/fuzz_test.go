package manifest_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Any bytes that are stored as the boundary either decode to a valid boundary that round-trips, or cause an error
// that names the key. Load then returns this error.
func FuzzBoundary(f *testing.F) {
	good, err := json.Marshal(manifest.Boundary{Timeline: timeline, DeletedThrough: 2})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good) + "{}", string(good[:20]), "", "null", "[]", "{}", `{"timeline":"` + timeline + `"}`,
		`{"timeline":"x","deleted_through":1}`, `{"timeline":"` + timeline + `","deleted_through":-1}`,
		`{"timeline":"` + timeline + `","deleted_through":1e2}`, `{"timeline":"` + timeline + `","deleted_through":3}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fx := newFixture()
		newest := publish(t, fx.writer(), nil, 3)
		key := manifest.BoundaryKey(domain)
		_, err := fx.blobs.Put(t.Context(), key, data)
		require.NoError(t, err)
		b, version, err := fx.writer().Boundary(t.Context())
		m, loadErr := fx.writer().Load(t.Context())
		if err != nil {
			var corrupt *manifest.CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.Equal(t, key, corrupt.Key)
			require.EqualError(t, loadErr, err.Error())
			return
		}
		require.True(t, ids.Valid(b.Timeline))
		require.GreaterOrEqual(t, b.DeletedThrough, int64(0))
		require.NotZero(t, version)
		if loadErr == nil {
			require.Equal(t, newest, m)
		}
		require.Equal(t, b.Covers(3), loadErr != nil, "%v", loadErr)

		again, err := json.Marshal(b)
		require.NoError(t, err)
		_, err = fx.blobs.Put(t.Context(), key, again)
		require.NoError(t, err)
		read, _, err := fx.writer().Boundary(t.Context())
		require.NoError(t, err)
		require.Equal(t, b, read)
	})
}

func FuzzHint(f *testing.F) {
	for _, seed := range []string{
		`{"revision":3}` + "\n", `{"revision":1}`, `{"revision":4}`, `{"revision":0}`, `{"revision":-3}`, `{"revision":"3"}`,
		`{"revision":9223372036854775807}`, `{"revision":1e30}`, "", "{}", "null", "[3]", `{"revision":`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fx := newFixture()
		newest := publish(t, fx.writer(), nil, 3)
		_, err := fx.blobs.Put(t.Context(), manifest.HintKey(domain), data)
		require.NoError(t, err)
		m, err := fx.writer().Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, newest, m)
	})
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		manifest.Key(domain, 1), manifest.Key(domain, 1<<62), manifest.PinKey(domain, 1), manifest.BoundaryKey(domain),
		manifest.Prefix(domain), manifest.Key(domain, 0), manifest.Key(domain, -1), manifest.Key(domain, 1) + "/",
		manifest.Prefix(domain) + "1.json", manifest.Prefix(domain) + "+0000000000000000001.json",
		manifest.Key(ids.Domain{Tenant: "a/b", Workspace: "c"}, 1), manifest.Key(ids.Domain{}, 1), "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		d, revision, err := manifest.ParseKey(key)
		if err != nil {
			require.ErrorContains(t, err, "is not a ")
			return
		}
		require.NoError(t, d.Validate())
		require.Positive(t, revision)
		require.Equal(t, key, manifest.Key(d, revision))
	})
}
