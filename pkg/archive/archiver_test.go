package archive_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

func TestArchiveMovesWholeDaysBelowCutoff(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(70) // hourly, from 01:00 on the first day to 22:00 on the third
	a := fx.archiver(archive.Config{})
	require.False(t, a.Due(""))
	require.Equal(t, 2, fx.archive(a, cutoff(epoch.Add(60*time.Hour))))
	require.Equal(t, []string{"date=2026-03-01/" + names[0] + ".parquet", "date=2026-03-02/" + names[23] + ".parquet"}, fx.keys(archive.Prefix(domain)))
	require.Equal(t, names[47]+".json", fx.keys(ledger.Prefix(domain))[0], "the third day is not over at the cutoff")
	fx.requireComplete()
}

// Invariant I-16 limits the requests that archiving an entry needs. If there is nothing to archive, no request is
// allowed.
func TestI16ArchiveCostsTwoRequestsPerEntry(t *testing.T) {
	fx := newFixture(t)
	fx.hours(30)
	a := fx.archiver(archive.Config{})
	before := fx.blobs.Stats()
	require.Equal(t, 1, fx.archive(a, cutoff(epoch.Add(25*time.Hour))))
	spent := fx.blobs.Stats().Sub(before)
	spent.BytesRead, spent.BytesWritten = 0, 0
	require.Equal(t, memblob.Stats{Lists: 1, Gets: 23, Creates: 1, Deletes: 23}, spent)

	before = fx.blobs.Stats()
	for h := range 22 {
		require.False(t, a.Due(cutoff(epoch.Add(time.Duration(25+h)*time.Hour))))
		fx.archive(a, cutoff(epoch.Add(time.Duration(25+h)*time.Hour)))
	}
	require.Equal(t, before, fx.blobs.Stats())

	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(25*time.Hour)))
	require.Equal(t, memblob.Stats{Lists: 1}, fx.blobs.Stats().Sub(before), "a new process lists one page")
}

func TestArchiveLimitsFileSize(t *testing.T) {
	for name, cfg := range map[string]archive.Config{
		"entries": {MaxEntries: 7}, "bytes": {MaxBytes: 200}, "a large entry": {MaxBytes: 1}, "a span of minutes": {Span: time.Minute, MaxEntries: 50},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			fx.hours(50)
			require.Equal(t, len(fx.keys(archive.Prefix(domain))), 0)
			calls := fx.archive(fx.archiver(cfg), cutoff(epoch.Add(50*time.Hour)))
			require.Len(t, fx.keys(archive.Prefix(domain)), calls)
			for _, key := range fx.keys(archive.Prefix(domain)) {
				data, _, err := fx.blobs.Get(t.Context(), archive.Prefix(domain)+key)
				require.NoError(t, err)
				entries, err := archive.Decode(data)
				require.NoError(t, err)
				size := 0
				for _, e := range entries {
					size += len(e.Data)
					require.Contains(t, archive.Key(domain, e.ID), strings.Split(key, "/")[0])
				}
				require.True(t, cfg.MaxEntries == 0 || len(entries) <= cfg.MaxEntries)
				require.True(t, cfg.MaxBytes == 0 || int64(size) <= cfg.MaxBytes || len(entries) == 1)
			}
			fx.requireComplete()
		})
	}
}

// Invariant I-15: an archiver dies, or gets an error, at one of its writes; each write is tested. The next archiver
// continues, no entry is lost, and none is archived twice.
func TestI15ArchiverDeathLosesNoEntry(t *testing.T) {
	for _, how := range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
		for nth := range 40 {
			for _, restarts := range []bool{true, false} {
				fx := newFixture(t)
				fx.hours(40)
				var mu sync.Mutex
				n := 0
				fx.hook = func(op faultblob.Op, _ string) faultblob.Fault {
					mu.Lock()
					defer mu.Unlock()
					if op == faultblob.Create || op == faultblob.Delete {
						if n++; n > nth { // the archiver is dead: all further writes fail
							if n == nth+1 {
								return how
							}
							return faultblob.FailBefore
						}
					}
					return faultblob.None
				}
				until := cutoff(epoch.Add(40 * time.Hour))
				a := fx.archiver(archive.Config{MaxEntries: 9})
				var err error
				for more := true; more && err == nil; {
					more, err = a.Archive(t.Context(), until, stands)
				}
				fx.requireComplete()
				mu.Lock()
				n = -1000
				mu.Unlock()
				fx.clock.now = fx.clock.now.Add(time.Hour)
				if restarts { // the new archiver has other limits, as a new build might
					a = fx.archiver(archive.Config{MaxEntries: 14})
				}
				fx.archive(a, until)
				fx.requireComplete()
				require.Len(t, fx.keys(ledger.Prefix(domain)), 17, "entries of the incomplete day")
				archived := fx.archived()
				require.Len(t, archived, 23)
				for id, times := range archived {
					require.Equal(t, 1, times, "write %d, %v: %s", nth, how, id)
				}
			}
		}
	}
}

func TestConcurrentArchiversShareTheWork(t *testing.T) {
	for round := range 30 {
		fx := newFixture(t)
		fx.hours(100)
		until := cutoff(epoch.Add(97 * time.Hour))
		bounds := []int{10, 10, 10, 10}
		if round%2 == 0 { // the archivers have different limits, as two builds might
			bounds = []int{10, 17, 10, 17}
		}
		var running sync.WaitGroup
		for _, most := range bounds {
			a := fx.archiver(archive.Config{MaxEntries: most})
			running.Go(func() {
				for more, tries := true, 0; more && tries < 1000; tries++ {
					var err error
					if more, err = a.Archive(t.Context(), until, stands); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		fx.requireComplete()
		require.Len(t, fx.keys(ledger.Prefix(domain)), 5)
		for id, times := range fx.archived() {
			if bounds[1] == 10 {
				require.Equal(t, 1, times, id)
			}
			require.LessOrEqual(t, times, 2, id) // two files may contain the same entry
		}
	}
}

func TestArchiveSkipsUnreadableEntries(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(30)
	for _, i := range []int{0, 5, 22} {
		fx.damaged[ledger.Key(domain, names[i])] = true
	}
	fx.archive(fx.archiver(archive.Config{MaxEntries: 4}), cutoff(epoch.Add(26*time.Hour)))
	left := fx.keys(ledger.Prefix(domain))
	require.Equal(t, []string{names[0] + ".json", names[5] + ".json", names[22] + ".json"}, left[:3])
	require.Len(t, left, 3+7)

	clear(fx.damaged) // make the objects intact again, as if only the reads had failed
	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(26*time.Hour)))
	require.Len(t, fx.keys(ledger.Prefix(domain)), 7)
	fx.requireComplete()
	require.Len(t, fx.archived(), 23)
}

func TestDamagedFileLosesNoLedgerEntries(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(30)
	_, err := fx.blobs.Create(t.Context(), archive.Key(domain, names[0]), []byte("no Parquet"))
	require.NoError(t, err)
	other, err := archive.Encode([]archive.Entry{{ID: names[4], Data: []byte("other bytes")}})
	require.NoError(t, err)
	_, err = fx.blobs.Create(t.Context(), archive.Key(domain, names[4]), other)
	require.NoError(t, err)
	fx.archive(fx.archiver(archive.Config{MaxEntries: 3}), cutoff(epoch.Add(26*time.Hour)))
	left := fx.keys(ledger.Prefix(domain))
	require.Equal(t, []string{names[0] + ".json", names[4] + ".json"}, left[:2])
	require.Len(t, left, 2+7)
	r := archive.NewReader(fx.store(), domain)
	for id, want := range fx.wrote {
		got, err := r.Read(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestArchiveDeletesNothingIfCutoffIsInvalid(t *testing.T) {
	fx := newFixture(t)
	fx.hours(30)
	for _, verdict := range []func(context.Context) (bool, error){
		func(context.Context) (bool, error) { return false, nil },
		func(context.Context) (bool, error) { return false, errors.New("no answer") },
	} {
		more, err := fx.archiver(archive.Config{}).Archive(t.Context(), cutoff(epoch.Add(26*time.Hour)), verdict)
		require.False(t, more)
		_ = err // either result is correct
		require.Len(t, fx.keys(ledger.Prefix(domain)), 30)
	}
	fx.requireComplete()
}

func TestArchiveBacksOffAfterErrors(t *testing.T) {
	fx := newFixture(t)
	fx.hours(30)
	tries := 0
	fx.hook = func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Delete { // the archiver has no permission to delete
			return faultblob.FailBefore
		}
		if op == faultblob.Create {
			tries++
		}
		return faultblob.None
	}
	a := fx.archiver(archive.Config{})
	for range 24 * 60 {
		if _, err := a.Archive(t.Context(), cutoff(epoch.Add(26*time.Hour)), stands); err != nil {
			require.ErrorIs(t, err, faultblob.ErrInjected)
		}
		fx.clock.now = fx.clock.now.Add(time.Minute)
	}
	require.Less(t, tries, 32, "about once an hour in a day")
	require.Greater(t, tries, 24)
	fx.hook = nil
	a = fx.archiver(archive.Config{})
	fx.archive(a, cutoff(epoch.Add(26*time.Hour)))
	fx.requireComplete()
}

func TestArchiveReportsUnavailableStore(t *testing.T) {
	fx := newFixture(t)
	fx.hours(30)
	fx.hook = func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Get {
			return faultblob.FailBefore
		}
		return faultblob.None
	}
	a := fx.archiver(archive.Config{})
	_, err := a.Archive(t.Context(), cutoff(epoch.Add(26*time.Hour)), stands)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.Empty(t, fx.keys(archive.Prefix(domain)))
	fx.hook = nil
	fx.clock.now = fx.clock.now.Add(time.Hour)
	a = fx.archiver(archive.Config{})
	fx.archive(a, cutoff(epoch.Add(26*time.Hour)))
	require.Len(t, fx.archived(), 23)
}

// If an entry appears below the cutoff after its day was archived, it is archived with the next day.
func TestLateEntriesAreArchivedWithNextDay(t *testing.T) {
	fx := newFixture(t)
	names := fx.hours(30)
	a := fx.archiver(archive.Config{})
	fx.archive(a, cutoff(epoch.Add(26*time.Hour)))
	var late []string
	for i := range 5 {
		late = append(late, fx.put(neighbor(names[3*i]), fmt.Sprintf("{\"late\":%d}\n", i)))
	}
	fx.put(names[7], string(fx.wrote[names[7]])) // a delayed request re-creates an archived entry
	fx.archive(a, cutoff(epoch.Add(27*time.Hour)))
	require.Len(t, fx.keys(ledger.Prefix(domain)), 7+6)
	fx.requireComplete()
	fx.archive(a, cutoff(epoch.Add(49*time.Hour)))
	require.Empty(t, fx.keys(ledger.Prefix(domain)))
	fx.requireComplete()
	require.Len(t, fx.keys(archive.Prefix(domain)), 3)
	require.True(t, slices.Contains(fx.keys(archive.Prefix(domain)), "date=2026-03-01/"+late[0]+".parquet"))
}

func TestArchiveIgnoresUnrelatedObjects(t *testing.T) {
	fx := newFixture(t)
	fx.hours(25)
	for _, key := range []string{
		archive.Prefix(domain) + "README.txt", archive.Prefix(domain) + "date=2026-03-01/x.parquet",
		archive.Prefix(domain) + "date=2026-03-02/" + cutoff(epoch) + ".parquet", ledger.Prefix(domain) + "stray",
	} {
		_, err := fx.blobs.Create(t.Context(), key, []byte("x"))
		require.NoError(t, err)
	}
	has, err := archive.Any(t.Context(), fx.store(), domain)
	require.NoError(t, err)
	require.False(t, has)
	fx.archive(fx.archiver(archive.Config{}), cutoff(epoch.Add(26*time.Hour)))
	has, err = archive.Any(t.Context(), fx.store(), domain)
	require.NoError(t, err)
	require.True(t, has)
	fx.requireComplete()
	_, err = fx.blobs.Head(t.Context(), ledger.Prefix(domain)+"stray")
	require.NotErrorIs(t, err, blob.ErrNotFound)
}
