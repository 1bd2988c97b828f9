package manifest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

func TestLoadOfNewDomainReturnsErrNone(t *testing.T) {
	_, err := newFixture().writer().Load(t.Context())
	require.ErrorIs(t, err, manifest.ErrNone)
}

func TestLoadTakesFourRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		cur := publish(t, fx.writer(), nil, 1)
		before := fx.blobs.Stats()
		got, err := fx.writer().Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, cur, got)
		require.Equal(t, memblob.Stats{Gets: 4}, requests(fx.blobs.Stats().Sub(before)), "hint, 1, 2 (absent), boundary")
	})
}

func TestNextTakesOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		s, reader := fx.writer(), fx.writer()
		cur := publish(t, s, nil, 1)
		old, err := reader.Load(t.Context())
		require.NoError(t, err)

		before := fx.blobs.Stats()
		next, err := reader.Next(t.Context(), old)
		require.NoError(t, err)
		require.Nil(t, next)
		require.Equal(t, memblob.Stats{Gets: 1}, requests(fx.blobs.Stats().Sub(before)))

		want := publish(t, s, cur, 1)
		before = fx.blobs.Stats()
		next, err = reader.Next(t.Context(), old)
		require.NoError(t, err)
		require.Equal(t, want, next)
		require.Equal(t, memblob.Stats{Gets: 1}, requests(fx.blobs.Stats().Sub(before)))

		elapse(t, time.Minute)
		before = fx.blobs.Stats()
		for range 5 {
			absent, err := reader.Next(t.Context(), next)
			require.NoError(t, err)
			require.Nil(t, absent)
		}
		require.Equal(t, memblob.Stats{Gets: 6}, requests(fx.blobs.Stats().Sub(before)), "one read of the boundary per trust window")
	})
}

func TestNextAfterCollectionAsksToReload(t *testing.T) {
	for name, zombie := range map[string]bool{"its successor was collected": false, "its successor is a zombie": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fx := newFixture()
				cur := publish(t, fx.writer(), nil, 1)
				reader := fx.writer()
				old, err := reader.Load(t.Context())
				require.NoError(t, err)
				publish(t, fx.writer(), cur, 5)
				elapse(t, 2*time.Hour)
				fx.collect(t, 5)
				if zombie {
					require.ErrorIs(t, fx.writer().Publish(t.Context(), old.Successor("zombie")), manifest.ErrNotCommitted)
				}
				_, err = reader.Next(t.Context(), old)
				require.ErrorIs(t, err, manifest.ErrReload)
				m, err := reader.Load(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 6, m.Revision)
			})
		})
	}
}

func TestNextRejectsSuccessorOfAnotherParent(t *testing.T) {
	fx := newFixture()
	s := fx.writer()
	cur := publish(t, s, nil, 1)
	publish(t, s, cur, 1)
	stranger := *cur
	stranger.Nonce = ids.AtTime(time.Unix(5, 0))
	_, err := s.Next(t.Context(), &stranger)
	require.ErrorIs(t, err, manifest.ErrReload)
}

func TestLoadIgnoresBadHint(t *testing.T) {
	for name, hint := range map[string]string{
		"missing": "", "garbage": "\x00{", "of another form": `{"revision":"x"}`, "negative": `{"revision":-1}`,
		"far behind": `{"revision":1}`, "ahead": `{"revision":4000}`, "collected": `{"revision":2}`, "an array": `[7]`,
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture()
			publish(t, fx.writer(), nil, 60)
			if name == "collected" {
				fx.collect(t, 10)
				// Load must not return a collected revision that a delayed writer has created again.
				old := manifest.First(domain, timeline, "zombie").Successor("zombie")
				old.Parent.Nonce = timeline
				require.ErrorIs(t, fx.writer().Publish(t.Context(), old), manifest.ErrNotCommitted)
			}
			if hint == "" {
				require.NoError(t, fx.blobs.Delete(t.Context(), manifest.HintKey(domain)))
			} else {
				_, err := fx.blobs.Put(t.Context(), manifest.HintKey(domain), []byte(hint))
				require.NoError(t, err)
			}
			before := fx.blobs.Stats()
			m, err := fx.writer().Load(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 60, m.Revision)
			require.Less(t, fx.blobs.Stats().Sub(before).Reads(), int64(24), "a stale hint costs a bounded number of probes")
		})
	}
}

func TestLoadSkipsUnrelatedObjects(t *testing.T) {
	fx := newFixture()
	publish(t, fx.writer(), nil, 2)
	require.NoError(t, fx.blobs.Delete(t.Context(), manifest.HintKey(domain)))
	_, err := fx.blobs.Put(t.Context(), manifest.Prefix(domain)+"notes.txt", []byte("hello"))
	require.NoError(t, err)
	m, err := fx.writer().Load(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Revision)
}

func TestLoadNamesDamagedRevision(t *testing.T) {
	fx := newFixture()
	publish(t, fx.writer(), nil, 1)
	_, err := fx.blobs.Put(t.Context(), manifest.Key(domain, 2), []byte("{"))
	require.NoError(t, err)
	_, err = fx.writer().Load(t.Context())
	var corrupt *manifest.CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, manifest.Key(domain, 2), corrupt.Key)
}

func TestLoadReportsBoundaryWithoutRevisionAsDamage(t *testing.T) {
	fx := newFixture()
	publish(t, fx.writer(), nil, 1)
	fx.collect(t, 1)
	_, err := fx.writer().Load(t.Context())
	var corrupt *manifest.CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.NotErrorIs(t, err, manifest.ErrNone)
}

func TestNewTimelineReplacesOldRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		old := fx.writer()
		cur := publish(t, old, nil, 3)
		fresh := ids.AtTime(time.Unix(1_000_000, 0))
		const gap = 3 + 1<<20
		fx.boundary(t, fresh, gap)
		require.ErrorIs(t, old.Publish(t.Context(), cur.Successor("old")), manifest.ErrNotCommitted)

		first := manifest.First(domain, fresh, "rebuild")
		first.Revision = gap + 1
		require.NoError(t, fx.writer().Publish(t.Context(), first))
		m, err := fx.writer().Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, first, m)

		elapse(t, 11*time.Second)
		_, err = old.Next(t.Context(), cur)
		require.ErrorIs(t, err, manifest.ErrReload)
		live, err := old.Live(t.Context(), cur)
		require.NoError(t, err)
		require.False(t, live)
	})
}

func TestLoadAsOfFindsKeptRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		s := fx.writer()
		var history []*manifest.Manifest
		var cur *manifest.Manifest
		for range 9 {
			cur = publish(t, s, cur, 1)
			history = append(history, cur)
			elapse(t, time.Minute)
		}
		fx.collect(t, 5, 2, 4)

		var kept []int64
		for revision, err := range s.List(t.Context()) {
			require.NoError(t, err)
			kept = append(kept, revision)
		}
		require.Equal(t, []int64{2, 4, 6, 7, 8, 9}, kept)

		at := func(revision int64) time.Time { return history[revision-1].PublishedAt.Time() }
		for _, c := range []struct {
			t    time.Time
			want int64
		}{
			{at(1), 0},
			{at(2), 2},
			{at(3), 2},
			{at(4).Add(-time.Microsecond), 2},
			{at(5), 4},
			{at(6), 6},
			{at(8).Add(time.Second), 8},
			{at(9).Add(time.Hour), 9},
		} {
			m, err := s.LoadAsOf(t.Context(), c.t)
			if c.want == 0 {
				require.ErrorIs(t, err, manifest.ErrAbsent)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, history[c.want-1], m)
		}
		for revision := range int64(11) {
			m, err := s.LoadAt(t.Context(), revision)
			if revision == 0 || revision == 1 || revision == 3 || revision == 5 || revision == 10 {
				require.ErrorIs(t, err, manifest.ErrAbsent)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, history[revision-1], m)
		}
	})
}

func TestLoadReturnsReadErrors(t *testing.T) {
	fx := newFixture()
	cur := publish(t, fx.writer(), nil, 3)
	for n := range 8 {
		for _, op := range []faultblob.Op{faultblob.Get, faultblob.List} {
			fx.faults(nth(op, n+1, faultblob.FailBefore))
			m, err := fx.writer().Load(t.Context())
			if err == nil {
				require.Equal(t, cur, m)
			} else {
				require.ErrorIs(t, err, faultblob.ErrInjected)
			}
		}
	}
}

func TestLoadRaisesIDsAboveOrphanFloor(t *testing.T) {
	fx := newFixture()
	s := fx.writer()
	floor := ids.AtTime(now().Add(time.Hour))
	next := manifest.First(domain, timeline, "w")
	next.OrphanFloor = floor
	require.NoError(t, s.Publish(t.Context(), next))

	source := ids.NewSource(clock.System{}.Now, nil)
	reader := manifest.New(manifest.Config{Domain: domain, Store: fx.blobs, IDs: source, Clock: clock.System{}})
	_, err := reader.Load(t.Context())
	require.NoError(t, err)
	require.Greater(t, source.New(), floor)
}

func TestLoadFileVerifiesContent(t *testing.T) {
	fx := newFixture()
	s := fx.writer()
	content := []byte("rows, rows, rows")
	f := manifest.File{
		Table: "runs", Key: manifest.StateKey(domain, "runs", manifest.TierL0, timeline),
		Size: int64(len(content)), CRC32C: blob.CRC32C(content),
	}
	_, err := s.LoadFile(t.Context(), f)
	require.ErrorIs(t, err, manifest.ErrMissing)
	require.ErrorContains(t, err, f.Key)
	require.ErrorContains(t, err, "servo admin rebuild")

	_, err = fx.blobs.Create(t.Context(), f.Key, content)
	require.NoError(t, err)
	got, err := s.LoadFile(t.Context(), f)
	require.NoError(t, err)
	require.Equal(t, content, got)

	for n, bad := range [][]byte{content[:5], []byte("rows, rows, bows"), nil} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			_, err := fx.blobs.Put(t.Context(), f.Key, bad)
			require.NoError(t, err)
			_, err = s.LoadFile(t.Context(), f)
			var corrupt *manifest.CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.ErrorContains(t, err, f.Key)
		})
	}
}

func TestStoreWorksOnDirectory(t *testing.T) {
	store, err := fileblob.Open(t.TempDir(), fileblob.Options{NoSync: true})
	require.NoError(t, err)
	open := func() *manifest.Store {
		return manifest.New(manifest.Config{Domain: domain, Store: store, IDs: ids.NewSource(now, nil), Clock: clock.System{}})
	}
	_, err = open().Load(t.Context())
	require.ErrorIs(t, err, manifest.ErrNone)
	cur := publish(t, open(), nil, 40)
	m, err := open().Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, cur, m)
	require.ErrorIs(t, open().Publish(t.Context(), manifest.First(domain, timeline, "late")), manifest.ErrConflict)
}
