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

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

func TestWholeDaysBelowTheCutLeaveTheLedgerAFileEach(t *testing.T) {
	w := newWorld(t)
	names := w.hours(70) // from 01:00 of the first day to 22:00 of the third
	a := w.archiver(archive.Config{})
	require.False(t, a.Due(""))
	require.Equal(t, 2, w.archive(a, cut(epoch.Add(60*time.Hour))))
	require.Equal(t, []string{"date=2026-03-01/" + names[0] + ".parquet", "date=2026-03-02/" + names[23] + ".parquet"}, w.keys(archive.Prefix(domain)))
	require.Equal(t, names[47]+".json", w.keys(ledger.Prefix(domain))[0], "the third day is not over at the cut")
	w.whole()
}

// I-16: what an archived entry costs, and a domain in which nothing is due.
func TestI16ADueDayCostsAReadAndADeletionAnEntryAndAnIdleOneNothing(t *testing.T) {
	w := newWorld(t)
	w.hours(30)
	a := w.archiver(archive.Config{})
	before := w.blobs.Stats()
	require.Equal(t, 1, w.archive(a, cut(epoch.Add(25*time.Hour))))
	spent := w.blobs.Stats().Sub(before)
	spent.BytesRead, spent.BytesWritten = 0, 0
	require.Equal(t, memblob.Stats{Lists: 1, Gets: 23, Creates: 1, Deletes: 23}, spent)

	before = w.blobs.Stats()
	for h := range 22 {
		require.False(t, a.Due(cut(epoch.Add(time.Duration(25+h)*time.Hour))))
		w.archive(a, cut(epoch.Add(time.Duration(25+h)*time.Hour)))
	}
	require.Equal(t, before, w.blobs.Stats())

	w.archive(w.archiver(archive.Config{}), cut(epoch.Add(25*time.Hour)))
	require.Equal(t, memblob.Stats{Lists: 1}, w.blobs.Stats().Sub(before), "a process that has just started")
}

func TestAFileIsBoundedByBytesEntriesAndTheDay(t *testing.T) {
	for name, cfg := range map[string]archive.Config{
		"entries": {MaxEntries: 7}, "bytes": {MaxBytes: 200}, "one entry is more": {MaxBytes: 1}, "a span of minutes": {Span: time.Minute, MaxEntries: 50},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.hours(50)
			require.Equal(t, len(w.keys(archive.Prefix(domain))), 0)
			calls := w.archive(w.archiver(cfg), cut(epoch.Add(50*time.Hour)))
			require.Len(t, w.keys(archive.Prefix(domain)), calls)
			for _, key := range w.keys(archive.Prefix(domain)) {
				data, _, err := w.blobs.Get(t.Context(), archive.Prefix(domain)+key)
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
			w.whole()
		})
	}
}

// I-15 with a process that dies, or is told of an error, at each write: whoever comes
// next goes on, and no entry is lost, nor in the archive twice.
func TestI15NoEntryIsLostWhereverAnArchiverDies(t *testing.T) {
	for _, how := range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
		for nth := range 40 {
			for _, restarts := range []bool{true, false} {
				w := newWorld(t)
				w.hours(40)
				var mu sync.Mutex
				n := 0
				w.hook = func(op faultblob.Op, _ string) faultblob.Fault {
					mu.Lock()
					defer mu.Unlock()
					if op == faultblob.Create || op == faultblob.Delete {
						if n++; n > nth { // it is dead, and so does nothing more
							if n == nth+1 {
								return how
							}
							return faultblob.FailBefore
						}
					}
					return faultblob.None
				}
				until := cut(epoch.Add(40 * time.Hour))
				a := w.archiver(archive.Config{MaxEntries: 9})
				var err error
				for more := true; more && err == nil; {
					more, err = a.Archive(t.Context(), until, stands)
				}
				w.whole()
				mu.Lock()
				n = -1000
				mu.Unlock()
				w.clock.now = w.clock.now.Add(time.Hour)
				if restarts { // with other bounds than the build before
					a = w.archiver(archive.Config{MaxEntries: 14})
				}
				w.archive(a, until)
				w.whole()
				require.Len(t, w.keys(ledger.Prefix(domain)), 17, "what is not due")
				held := w.held()
				require.Len(t, held, 23)
				for id, times := range held {
					require.Equal(t, 1, times, "write %d, %v: %s", nth, how, id)
				}
			}
		}
	}
}

func TestArchiversAtTheSameTimeDoTheWorkOfOne(t *testing.T) {
	for round := range 30 {
		w := newWorld(t)
		w.hours(100)
		until := cut(epoch.Add(97 * time.Hour))
		bounds := []int{10, 10, 10, 10}
		if round%2 == 0 { // of two builds
			bounds = []int{10, 17, 10, 17}
		}
		var running sync.WaitGroup
		for _, most := range bounds {
			a := w.archiver(archive.Config{MaxEntries: most})
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
		w.whole()
		require.Len(t, w.keys(ledger.Prefix(domain)), 5)
		for id, times := range w.held() {
			if bounds[1] == 10 {
				require.Equal(t, 1, times, id)
			}
			require.LessOrEqual(t, times, 2, id) // the same bytes
		}
	}
}

func TestAnEntryThatCannotBeReadStaysAndHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	names := w.hours(30)
	for _, i := range []int{0, 5, 22} {
		w.damaged[ledger.Key(domain, names[i])] = true
	}
	w.archive(w.archiver(archive.Config{MaxEntries: 4}), cut(epoch.Add(26*time.Hour)))
	left := w.keys(ledger.Prefix(domain))
	require.Equal(t, []string{names[0] + ".json", names[5] + ".json", names[22] + ".json"}, left[:3])
	require.Len(t, left, 3+7)

	clear(w.damaged) // it was the way there, and not the object
	w.archive(w.archiver(archive.Config{}), cut(epoch.Add(26*time.Hour)))
	require.Len(t, w.keys(ledger.Prefix(domain)), 7)
	w.whole()
	require.Len(t, w.held(), 23)
}

func TestADamagedFileOfTheArchiveCostsNoEntryThatTheLedgerHas(t *testing.T) {
	w := newWorld(t)
	names := w.hours(30)
	_, err := w.blobs.Create(t.Context(), archive.Key(domain, names[0]), []byte("no Parquet"))
	require.NoError(t, err)
	other, err := archive.Encode([]archive.Entry{{ID: names[4], Data: []byte("other bytes")}})
	require.NoError(t, err)
	_, err = w.blobs.Create(t.Context(), archive.Key(domain, names[4]), other)
	require.NoError(t, err)
	w.archive(w.archiver(archive.Config{MaxEntries: 3}), cut(epoch.Add(26*time.Hour)))
	left := w.keys(ledger.Prefix(domain))
	require.Equal(t, []string{names[0] + ".json", names[4] + ".json"}, left[:2])
	require.Len(t, left, 2+7)
	r := archive.NewReader(w.store(), domain)
	for id, want := range w.wrote {
		got, err := r.Read(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestNothingIsDeletedWhenTheCutStandsNoLonger(t *testing.T) {
	w := newWorld(t)
	w.hours(30)
	for _, verdict := range []func(context.Context) (bool, error){
		func(context.Context) (bool, error) { return false, nil },
		func(context.Context) (bool, error) { return false, errors.New("no answer") },
	} {
		more, err := w.archiver(archive.Config{}).Archive(t.Context(), cut(epoch.Add(26*time.Hour)), verdict)
		require.False(t, more)
		_ = err // whether it is told of is not what counts here
		require.Len(t, w.keys(ledger.Prefix(domain)), 30)
	}
	w.whole()
}

func TestAfterAnErrorItWaitsLongerEachTime(t *testing.T) {
	w := newWorld(t)
	w.hours(30)
	asked := 0
	w.hook = func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Delete { // nobody has given it the right to
			return faultblob.FailBefore
		}
		if op == faultblob.Create {
			asked++
		}
		return faultblob.None
	}
	a := w.archiver(archive.Config{})
	for range 24 * 60 {
		if _, err := a.Archive(t.Context(), cut(epoch.Add(26*time.Hour)), stands); err != nil {
			require.ErrorIs(t, err, faultblob.ErrInjected)
		}
		w.clock.now = w.clock.now.Add(time.Minute)
	}
	require.Less(t, asked, 32, "about once an hour in a day")
	require.Greater(t, asked, 24)
	w.hook = nil
	a = w.archiver(archive.Config{})
	w.archive(a, cut(epoch.Add(26*time.Hour)))
	w.whole()
}

func TestAStoreThatIsAwayIsAnErrorAndNotManyDamagedEntries(t *testing.T) {
	w := newWorld(t)
	w.hours(30)
	w.hook = func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Get {
			return faultblob.FailBefore
		}
		return faultblob.None
	}
	a := w.archiver(archive.Config{})
	_, err := a.Archive(t.Context(), cut(epoch.Add(26*time.Hour)), stands)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.Empty(t, w.keys(archive.Prefix(domain)))
	w.hook = nil
	w.clock.now = w.clock.now.Add(time.Hour)
	a = w.archiver(archive.Config{})
	w.archive(a, cut(epoch.Add(26*time.Hour)))
	require.Len(t, w.held(), 23)
}

// What appears below the cut when its day is done is archived with the next day.
func TestWhatComesLateIsArchivedWithTheNextDay(t *testing.T) {
	w := newWorld(t)
	names := w.hours(30)
	a := w.archiver(archive.Config{})
	w.archive(a, cut(epoch.Add(26*time.Hour)))
	var late []string
	for i := range 5 {
		late = append(late, w.put(beside(names[3*i]), fmt.Sprintf("{\"late\":%d}\n", i)))
	}
	w.put(names[7], string(w.wrote[names[7]])) // a request that was on its way for long
	w.archive(a, cut(epoch.Add(27*time.Hour)))
	require.Len(t, w.keys(ledger.Prefix(domain)), 7+6)
	w.whole()
	w.archive(a, cut(epoch.Add(49*time.Hour)))
	require.Empty(t, w.keys(ledger.Prefix(domain)))
	w.whole()
	require.Len(t, w.keys(archive.Prefix(domain)), 3)
	require.True(t, slices.Contains(w.keys(archive.Prefix(domain)), "date=2026-03-01/"+late[0]+".parquet"))
}

func TestWhoIsToldOfAFolderThatIsNotOursLeavesItAlone(t *testing.T) {
	w := newWorld(t)
	w.hours(25)
	for _, key := range []string{
		archive.Prefix(domain) + "README.txt", archive.Prefix(domain) + "date=2026-03-01/x.parquet",
		archive.Prefix(domain) + "date=2026-03-02/" + cut(epoch) + ".parquet", ledger.Prefix(domain) + "stray",
	} {
		_, err := w.blobs.Create(t.Context(), key, []byte("x"))
		require.NoError(t, err)
	}
	has, err := archive.Any(t.Context(), w.store(), domain)
	require.NoError(t, err)
	require.False(t, has)
	w.archive(w.archiver(archive.Config{}), cut(epoch.Add(26*time.Hour)))
	has, err = archive.Any(t.Context(), w.store(), domain)
	require.NoError(t, err)
	require.True(t, has)
	w.whole()
	_, err = w.blobs.Head(t.Context(), ledger.Prefix(domain)+"stray")
	require.NotErrorIs(t, err, blob.ErrNotFound)
}
