package archive_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

func TestReadOfUnknownEntryIsNotFound(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(30)
	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(26*time.Hour)))
	r := archive.NewReader(fx.store(), domain)
	for _, id := range []string{neighbor(names[3]), cutoff(epoch), cutoff(epoch.AddDate(1, 0, 0)), cutoff(epoch.AddDate(-1, 0, 0))} {
		_, err := r.Read(t.Context(), id)
		require.ErrorIs(t, err, blob.ErrNotFound)
	}
}

func TestSequentialReadsLoadEachFileOnce(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(24 * 10)
	fx.archive(fx.archiver(archive.Config{MaxEntries: 12}), cutoff(epoch.Add(24*9*time.Hour)))
	files := len(fx.keys(archive.Prefix(domain)))
	r := archive.NewReader(fx.store(), domain)
	before := fx.blobs.Stats()
	for _, id := range names {
		_, err := r.Read(t.Context(), id)
		require.NoError(t, err)
	}
	spent := fx.blobs.Stats().Sub(before)
	live := len(fx.keys(ledger.Prefix(domain)))
	require.LessOrEqual(t, spent.Gets, int64(2*files+live), "one read in the ledger and one in the archive for each file")
	require.LessOrEqual(t, spent.Lists, int64(files))

	before = fx.blobs.Stats()
	for _, err := range r.List(t.Context(), archive.Range{}) {
		require.NoError(t, err)
	}
	spent = fx.blobs.Stats().Sub(before)
	require.Equal(t, memblob.Stats{Gets: int64(files), Lists: 2, BytesRead: spent.BytesRead}, spent)
}

func TestListRangeSpansLedgerAndArchive(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(24 * 5)
	fx.archive(fx.archiver(archive.Config{MaxEntries: 10}), cutoff(epoch.Add(24*3*time.Hour)))
	r := archive.NewReader(fx.store(), domain)
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.IntRange(0, len(names)-1).Draw(t, "from"), rapid.IntRange(0, len(names)-1).Draw(t, "to")
		most := rapid.IntRange(0, 60).Draw(t, "most")
		var got []string
		for e, err := range r.List(t.Context(), archive.Range{After: names[from], Until: names[to], Most: most}) {
			require.NoError(t, err)
			got = append(got, e.ID)
		}
		var want []string
		if from < to {
			want = names[from+1 : to+1]
		}
		if most > 0 { // the limit applies to entries of the ledger, and not to those of the archive
			live := slices.IndexFunc(want, func(id string) bool { return id >= cutoff(epoch.Add(72*time.Hour)) })
			if live >= 0 {
				want = want[:min(len(want), live+most)]
			}
		}
		require.Equal(t, slices.Clone(want), got)
	})
}

// Files overlap if an entry appeared late, or if two archivers used different limits.
func TestListMergesOverlappingFiles(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fx := newFixture(t)
		names := fx.hours(22)
		for range rapid.IntRange(1, 6).Draw(rt, "files") {
			var entries []archive.Entry
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(names)-1), 1, 9, rapid.ID).Draw(rt, "entries") {
				entries = append(entries, archive.Entry{ID: names[i], Data: fx.wrote[names[i]]})
			}
			slices.SortFunc(entries, func(a, b archive.Entry) int { return strings.Compare(a.ID, b.ID) })
			data, err := archive.Encode(entries)
			require.NoError(rt, err)
			if _, err := fx.blobs.Create(t.Context(), archive.Key(domain, entries[0].ID), data); err != nil {
				continue
			}
			for _, e := range entries {
				if rapid.Bool().Draw(rt, "deleted") {
					require.NoError(rt, fx.blobs.Delete(t.Context(), ledger.Key(domain, e.ID)))
				}
			}
		}
		fx.requireComplete()
	})
}

func TestReadReportsDamageUnlessOtherFileHasEntry(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(24)
	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(26*time.Hour)))
	copied, err := archive.Encode([]archive.Entry{{ID: names[4], Data: fx.wrote[names[4]]}, {ID: names[5], Data: fx.wrote[names[5]]}})
	require.NoError(t, err)
	_, err = fx.blobs.Create(t.Context(), archive.Key(domain, names[4]), copied)
	require.NoError(t, err)
	fx.damaged[archive.Key(domain, names[0])] = true
	r := archive.NewReader(fx.store(), domain)
	for i, id := range names[:23] {
		got, err := r.Read(t.Context(), id)
		if i == 4 || i == 5 {
			require.NoError(t, err)
			require.Equal(t, fx.wrote[id], got)
			continue
		}
		require.ErrorContains(t, err, archive.Key(domain, names[0]))
		require.NotErrorIs(t, err, blob.ErrNotFound)
	}
	failed := false
	for _, err := range r.List(t.Context(), archive.Range{}) {
		failed = failed || err != nil
	}
	require.True(t, failed)
}

// A reader finds a file that was created after it listed the folder.
func TestReaderFindsEntriesArchivedMeanwhile(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(48)
	a := fx.archiver(archive.Config{MaxEntries: 5})
	until := cutoff(epoch.Add(49 * time.Hour))
	r := archive.NewReader(fx.store(), domain)
	next := 0
	for more := true; more; {
		var err error
		more, err = a.Archive(t.Context(), until, stands)
		require.NoError(t, err)
		for range 5 {
			for _, id := range names[next:min(next+3, len(names))] {
				got, err := r.Read(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, fx.wrote[id], got)
			}
		}
		next = min(next+3, len(names)-1)
	}
	seen := 0
	for e, err := range r.List(t.Context(), archive.Range{}) {
		require.NoError(t, err)
		require.Equal(t, names[seen], e.ID)
		seen++
	}
	require.Len(t, names, seen)
}

// One caller loads a file, and a second caller waits for it. The second caller stops when its own context ends. If
// Reader used a mutex instead of a channel, this test and simulated rebuilds would hang.
func TestReadWaitsNoLongerThanItsContext(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(24)
	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(26*time.Hour)))
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		slow := faultblob.New(fx.blobs, func(_ faultblob.Op, key string) faultblob.Fault {
			if key == archive.Key(domain, names[0]) {
				<-answer
			}
			return faultblob.None
		})
		r := archive.NewReader(slow, domain)
		ctx, end := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := r.Read(t.Context(), names[1]); first <- err }()
		synctest.Wait()
		go func() { _, err := r.Read(ctx, names[2]); second <- err }()
		synctest.Wait()
		end()
		require.ErrorIs(t, <-second, context.Canceled)
		close(answer)
		require.NoError(t, <-first)
	})
}
