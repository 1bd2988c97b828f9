package manifest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// This test fails if Retain pins no revisions.
func TestRetainKeepsHourlyAndDailyRevisions(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	const step = 11 * time.Minute
	published := []time.Time{{}} // by revision
	for range 40 * 24 * time.Hour / step {
		a.publishMany(t, 1, step)
		published = append(published, c.Now())
		if len(published)%9 == 0 {
			require.NoError(t, a.collect(t.Context()))
		}
	}
	require.NoError(t, a.collect(t.Context()))
	kept, _, err := fx.audit(t.Context())
	require.NoError(t, err)

	for revision := int64(1); revision < int64(len(published)-1); revision++ {
		from, until := published[revision], published[revision+1]
		on := func(mark time.Duration) bool { return !until.Add(-1).Truncate(mark).Before(from) }
		age := c.Now().Sub(until)
		must := age < time.Hour || age < 7*24*time.Hour && on(time.Hour) || age < 30*24*time.Hour && on(24*time.Hour)
		// A pinned revision counts as current until the next kept revision was published.
		may := must || age < 7*24*time.Hour+time.Hour && on(time.Hour) || age < 31*24*time.Hour && on(24*time.Hour)
		if slices.Contains(kept, revision) {
			require.True(t, may, "revision %d is kept, %v after its successor was published", revision, age)
		} else {
			require.False(t, must, "revision %d is deleted, %v after its successor was published", revision, age)
		}
	}
	for ago := time.Duration(0); ago < 29*24*time.Hour; ago += time.Hour {
		at := c.Now().Add(-ago).Truncate(time.Hour)
		if ago > 6*24*time.Hour {
			at = at.Truncate(24 * time.Hour)
		}
		m, err := a.s.LoadAsOf(t.Context(), at)
		require.NoError(t, err)
		require.False(t, m.PublishedAt.Time().After(at))
		require.True(t, published[m.Revision+1].After(at), "the revision that was current %v ago", ago)
	}
	_, orphans, err := fx.audit(t.Context())
	require.NoError(t, err)
	// An orphan may be a few hours old: the orphan floor of the oldest revision is 70 minutes old, and collections run
	// only after every ninth revision.
	for _, key := range orphans {
		require.Less(t, c.Now().Sub(ids.Time(id(key))), 4*time.Hour)
	}
}

func TestOneMachineKeepsMinutelyRevisions(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	a.collector = manifest.NewCollector(a.s, manifest.OneMachine())
	const step = time.Second
	published := []time.Time{{}} // by revision
	for range int(80 * time.Minute / step) {
		a.publishMany(t, 1, step)
		published = append(published, c.Now())
		if len(published)%20 == 0 {
			require.NoError(t, a.collect(t.Context()))
		}
	}
	require.NoError(t, a.collect(t.Context()))
	kept, orphans, err := fx.audit(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, len(kept), 15+1+60+1+3, "15 seconds, the minutes of an hour, and full hours: %d of %d revisions are kept", len(kept), len(published)-1)
	for revision := int64(1); revision < int64(len(published)-1); revision++ {
		from, until := published[revision], published[revision+1]
		on := func(mark time.Duration) bool { return !until.Add(-1).Truncate(mark).Before(from) }
		age := c.Now().Sub(until)
		if age < 15*time.Second || age < time.Hour && on(time.Minute) || on(time.Hour) {
			require.Contains(t, kept, revision, "%v after its successor was published", age)
		}
	}
	for ago := time.Duration(0); ago < time.Hour; ago += time.Minute {
		at := c.Now().Add(-ago).Truncate(time.Minute)
		m, err := a.s.LoadAsOf(t.Context(), at)
		require.NoError(t, err)
		if int(m.Revision)+1 < len(published) {
			require.True(t, published[m.Revision+1].After(at), "the revision that was current %v ago", ago)
		}
	}
	for _, key := range orphans {
		require.Less(t, c.Now().Sub(ids.Time(id(key))), 75*time.Minute, "files of the oldest kept minute")
	}

	// The process exits, and must leave only a few revisions.
	closing := manifest.NewCollector(a.s, manifest.OneMachine().Closing())
	for more := true; more; {
		more, err = closing.Retain(t.Context())
		require.NoError(t, err)
	}
	kept, _, err = fx.audit(t.Context())
	require.NoError(t, err)
	newest := int64(len(published) - 1)
	for revision := newest; revision > newest-manifest.NewestOnClose; revision-- {
		require.Contains(t, kept, revision)
	}
	require.LessOrEqual(t, len(kept), manifest.NewestOnClose+60+1+3)
}

func TestClosingKeepsNewestRevisions(t *testing.T) {
	for _, revisions := range []int{1, manifest.NewestOnClose - 1, manifest.NewestOnClose, manifest.NewestOnClose + 1} {
		fx, c := newTickFixture()
		a := fx.author(c)
		a.publishMany(t, revisions, 10*time.Millisecond)
		_, err := manifest.NewCollector(a.s, manifest.OneMachine().Closing()).Retain(t.Context())
		require.NoError(t, err)
		kept, _, err := fx.audit(t.Context())
		require.NoError(t, err)
		require.Len(t, kept, min(revisions, manifest.NewestOnClose))
	}
}

func TestRetainKeepsNewestRevisionAtAnyAge(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	a.publishMany(t, 3, time.Minute)
	c.pass(1000 * 24 * time.Hour)
	require.NoError(t, a.collect(t.Context()))
	kept, _, err := fx.audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{3}, kept)

	a.publishMany(t, 1, time.Minute)
	require.NoError(t, a.collect(t.Context()))
	kept, _, err = fx.audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{3, 4}, kept, "current until a moment ago, so kept for an hour")

	c.pass(2 * time.Hour)
	require.NoError(t, a.collect(t.Context()))
	_, err = a.s.LoadAsOf(t.Context(), epoch.Add(500*24*time.Hour))
	require.NoError(t, err, "it was current at every full hour since")
}

func TestIdleCollectionCostIsIndependentOfHistory(t *testing.T) {
	for _, revisions := range []int{10, 300} {
		fx, c := newTickFixture()
		a := fx.author(c)
		a.publishMany(t, revisions, 10*time.Second)
		require.NoError(t, a.collect(t.Context()))
		before := fx.blobs.Stats()
		require.NoError(t, a.collect(t.Context()))
		require.Equal(t, memblob.Stats{Gets: 5, Lists: 2}, requests(fx.blobs.Stats().Sub(before)))
	}
}

func TestRetainDoesBoundedWork(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	a.publishMany(t, 1500, time.Second)
	c.pass(2 * time.Hour)
	calls := 0
	for more := true; more; calls++ {
		before := fx.blobs.Stats()
		var err error
		more, err = a.collector.Retain(t.Context())
		require.NoError(t, err)
		used := fx.blobs.Stats().Sub(before)
		require.LessOrEqual(t, used.Replaces, int64(1))
		require.LessOrEqual(t, used.Gets, int64(40), "Retain uses binary search")
		require.LessOrEqual(t, used.Deletes, int64(512))
	}
	require.Equal(t, 3, calls)
	kept, _, err := fx.audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{1500}, kept)
}

// garbageFixture returns a fixture with every kind of garbage: expired revisions and pins, replaced files, and files
// that were never published.
func garbageFixture(t *testing.T) (*fixture, *tick) {
	t.Helper()
	fx, c := newTickFixture()
	a := fx.author(c)
	a.publishMany(t, 20, 50*time.Minute)
	require.NoError(t, a.collect(t.Context()))
	c.pass(3 * 24 * time.Hour)
	require.NoError(t, a.collect(t.Context()))
	c.pass(5 * 24 * time.Hour)
	for range 4 {
		a.publishMany(t, 5, 20*time.Minute)
		_, err := fx.write(t.Context(), manifest.TierBase, a.ids.New())
		require.NoError(t, err)
	}
	a.publishMany(t, 1, 2*time.Hour)
	return fx, c
}

// copied returns an independent copy of the fixture, and an author that uses it.
func (fx *fixture) copied() (*fixture, *author) {
	c := &tick{now: fx.clock.Now()}
	other := &fixture{blobs: fx.blobs.Copy(), clock: c}
	return other, other.author(c)
}

// A collector may die or get an error at any operation. The remaining revisions must be complete, and the next
// collector must produce the same result.
//
// This test fails if Retain pins no revisions, if a revision's age is measured from its own publish, or if files of
// pins are deleted.
func TestCollectionRecoversFromDeathAnywhere(t *testing.T) {
	origin, _ := garbageFixture(t)
	whole, a := origin.copied()
	require.NoError(t, a.collect(t.Context()))
	want := whole.keys(t.Context(), "")
	before, lost, err := origin.audit(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, lost)
	after, _, err := whole.audit(t.Context())
	require.NoError(t, err)
	require.Less(t, len(after), len(before))
	for _, prefix := range []string{"manifests/", "pins/", "state/"} {
		require.True(t, slices.ContainsFunc(origin.keys(t.Context(), prefix), func(key string) bool {
			return !slices.Contains(want, key)
		}), "%s has garbage", prefix)
	}

	for _, once := range []bool{true, false} { // true: one operation fails; false: the process dies
		for _, fault := range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
			for n, hit := 1, true; hit; n++ {
				fx, a := origin.copied()
				hit = false
				var mu sync.Mutex
				seen := 0
				fx.faults(func(faultblob.Op, string) faultblob.Fault {
					mu.Lock()
					defer mu.Unlock()
					if seen++; seen == n {
						hit = true
						return fault
					}
					if seen > n && !once {
						return faultblob.FailBefore
					}
					return faultblob.None
				})
				err := a.collect(t.Context())
				if err == nil {
					require.True(t, once || !hit)
				}
				fx.faults(nil)
				kept, _, err := fx.audit(t.Context())
				require.NoError(t, err, "fault %d at operation %d", fault, n)
				for _, revision := range after {
					require.Contains(t, kept, revision, "fault %d at operation %d", fault, n)
				}
				if !once {
					a = fx.author(&tick{now: fx.clock.Now()})
				}
				require.NoError(t, a.collect(t.Context()))
				require.Equal(t, want, fx.keys(t.Context(), ""), "fault %d at operation %d", fault, n)
				if !hit {
					require.Greater(t, n, 60)
				}
			}
		}
	}
}

// meanwhile calls f during the n-th operation of the code under test. reached reports whether that operation happened.
func (fx *fixture) meanwhile(n int, f func()) (reached func() bool) {
	var mu sync.Mutex
	seen, hit := 0, false
	fx.faults(func(faultblob.Op, string) faultblob.Fault {
		mu.Lock()
		seen++
		now := seen == n
		hit = hit || now
		mu.Unlock()
		if now {
			fx.faults(nil)
			f()
		}
		return faultblob.None
	})
	return func() bool { return hit }
}

// This test fails if a collector replaces the boundary without checking its version.
func TestStalledCollectorDeletesNothingLive(t *testing.T) {
	origin, _ := garbageFixture(t)
	for n, hit := 1, true; hit; n++ {
		fx, slow := origin.copied()
		fast := fx.author(&tick{reference: slow.clock})
		require.NoError(t, fast.load(t.Context()))
		stalled := fx.author(&tick{reference: slow.clock})
		require.NoError(t, stalled.load(t.Context()))
		reached := fx.meanwhile(n, func() {
			for range 3 {
				fast.publishMany(t, 6, 20*time.Minute)
				require.NoError(t, fast.collect(t.Context()))
			}
			zombie := stalled.cur.Successor("zombie")
			require.ErrorIs(t, stalled.s.Publish(t.Context(), zombie), manifest.ErrNotCommitted)
		})
		require.NoError(t, slow.collect(t.Context()))
		hit = reached()
		fx.faults(nil)
		_, _, err := fx.audit(t.Context())
		require.NoError(t, err, "at operation %d", n)
		fast.publishMany(t, 20, 20*time.Minute)
		require.NoError(t, fast.collect(t.Context()))
		require.NoError(t, slow.collect(t.Context()))
		_, orphans, err := fx.audit(t.Context())
		require.NoError(t, err, "at operation %d", n)
		require.Less(t, len(orphans), 12, "only files younger than the floor remain")
	}
}

// This test fails if NewTimeline does not copy the orphan floor.
func TestCollectorOfOldTimelineKeepsNewFiles(t *testing.T) {
	origin, _ := garbageFixture(t)
	refused := 0
	for _, lag := range []time.Duration{0, 3 * time.Hour} {
		for n, hit := 1, true; hit; n++ {
			fx, old := origin.copied()
			require.NoError(t, old.load(t.Context()))
			rebuild := fx.author(&tick{reference: old.clock, skew: -lag})
			early, err := fx.write(t.Context(), manifest.TierBase, rebuild.ids.New())
			require.NoError(t, err)
			reached := fx.meanwhile(n, func() {
				first, err := rebuild.s.NewTimeline(t.Context(), "rebuild")
				require.NoError(t, err)
				first.BaseSnapshot = manifest.BaseSnapshot{ID: id(early.Key), Files: []manifest.File{early}}
				if err := rebuild.s.Publish(t.Context(), first); err != nil { // the id of the early file is below the floor
					require.ErrorContains(t, err, "new names")
					refused++
					late, err := fx.write(t.Context(), manifest.TierBase, rebuild.ids.New())
					require.NoError(t, err)
					first.BaseSnapshot.Files = []manifest.File{late}
					require.NoError(t, rebuild.s.Publish(t.Context(), first))
				}
			})
			require.NoError(t, old.collect(t.Context()))
			hit = reached()
			fx.faults(nil)
			_, _, err = fx.audit(t.Context())
			require.NoError(t, err, "at operation %d, the clock %v behind", n, lag)
		}
	}
	require.Positive(t, refused)
}

// This test fails if Collector.remove lists manifests from the boundary on instead of from the first manifest on.
func TestRetainDeletesRevisionsRecreatedBelowBoundary(t *testing.T) {
	fx, c := newTickFixture()
	a, sleeper := fx.author(c), fx.author(c)
	a.publishMany(t, 2, time.Minute)
	require.NoError(t, sleeper.load(t.Context()))
	old := sleeper.cur
	a.publishMany(t, 10, 30*time.Minute)
	require.NoError(t, a.collect(t.Context()))

	next, err := sleeper.s.Next(t.Context(), old)
	require.Nil(t, next)
	require.ErrorIs(t, err, manifest.ErrReload)
	require.ErrorIs(t, sleeper.s.Publish(t.Context(), old.Successor("sleeper")), manifest.ErrNotCommitted)
	require.Contains(t, fx.keys(t.Context(), "manifests/"), manifest.Key(domain, 3))
	require.NoError(t, a.collect(t.Context()))
	require.NotContains(t, fx.keys(t.Context(), "manifests/"), manifest.Key(domain, 3))
}

// A delayed writer re-creates a collected revision while a reader may still trust the revision before it. The
// collector's clock is as far ahead as Policy.All permits. The test would fail if that clock were a whole hour ahead.
func TestNextRejectsRevisionRecreatedAtOnce(t *testing.T) {
	fx, c := newTickFixture()
	const trusted = 10 * time.Second
	a, reader, sleeper := fx.author(c), fx.author(c), fx.author(c)
	a.publishMany(t, 2, time.Minute)
	require.NoError(t, reader.load(t.Context()))
	require.NoError(t, sleeper.load(t.Context()))
	old := reader.cur
	a.publishMany(t, 3, time.Millisecond)
	ahead := fx.author(&tick{reference: c, skew: time.Hour - trusted})
	for {
		require.NoError(t, ahead.collect(t.Context()))
		if !slices.Contains(fx.keys(t.Context(), "manifests/"), manifest.Key(domain, 3)) {
			break
		}
		c.pass(time.Second)
	}
	require.ErrorIs(t, sleeper.s.Publish(t.Context(), old.Successor("sleeper")), manifest.ErrNotCommitted)
	next, err := reader.s.Next(t.Context(), old)
	require.Nil(t, next)
	require.ErrorIs(t, err, manifest.ErrReload)
	_, err = reader.s.LoadAt(t.Context(), 3)
	require.ErrorIs(t, err, manifest.ErrAbsent)
	require.NoError(t, reader.load(t.Context()))
	require.EqualValues(t, 5, reader.cur.Revision)
}

func TestLoadFileOfCollectedRevisionIsMissing(t *testing.T) {
	fx, c := newTickFixture()
	a, reader := fx.author(c), fx.author(c)
	a.publishMany(t, 5, time.Minute)
	require.NoError(t, reader.load(t.Context()))
	a.publishMany(t, 30, 10*time.Minute)
	c.pass(40 * 24 * time.Hour)
	a.publishMany(t, 20, 10*time.Minute)
	require.NoError(t, a.collect(t.Context()))
	missing := 0
	for _, f := range reader.cur.Files() {
		if _, err := reader.s.LoadFile(t.Context(), f); err != nil {
			require.ErrorIs(t, err, manifest.ErrMissing)
			missing++
		}
	}
	require.Positive(t, missing)
	live, err := reader.s.Live(t.Context(), reader.cur)
	require.NoError(t, err)
	require.False(t, live)
}

func TestCollectKeepsUnrelatedObjects(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	const stray = "state/orchestration/tenant=acme/workspace=prod/runs/l0/0000-notes.txt"
	_, err := fx.blobs.Put(t.Context(), stray, []byte("hello"))
	require.NoError(t, err)
	a.publishMany(t, 50, 10*time.Minute)
	require.NoError(t, a.collect(t.Context()))
	require.Contains(t, fx.keys(t.Context(), "state/"), stray)
}

// This test fails if the floor is raised above the author's own rewrite and the rewrite is not checked against the
// floor. It also fails if Collect deletes files below the floor of the newest revision instead of the oldest one.
func TestCollectionDeletesExactlyUnreferencedFiles(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		fx, c := newTickFixture()
		authors := make([]*author, 2)
		for i := range authors {
			skew := time.Duration(rapid.IntRange(-20, 20).Draw(t, "skew")) * time.Minute
			authors[i] = fx.author(&tick{reference: c, skew: skew})
			require.NoError(t, authors[i].load(ctx))
		}
		for range rapid.IntRange(20, 60).Draw(t, "steps") {
			a := authors[rapid.IntRange(0, 1).Draw(t, "author")]
			c.pass(time.Duration(rapid.SampledFrom([]int{0, 1, 1, 5, 20, 20, 70, 3000}).Draw(t, "minutes")) * time.Minute)
			var err error
			switch action := rapid.SampledFrom([]string{"publish", "publish", "publish", "begin", "rewrite", "collect", "restart"}).Draw(t, "action"); action {
			case "publish":
				err = a.publish(ctx)
			case "begin":
				err = a.begin(ctx)
			case "rewrite":
				err = a.beginRewrite(ctx)
			case "collect":
				err = a.collect(ctx)
			case "restart":
				err = a.load(ctx)
			}
			require.NoError(t, err)
			_, _, err = fx.audit(ctx)
			require.NoError(t, err)
		}
		for range 20 {
			c.pass(time.Hour)
			require.NoError(t, authors[0].publish(ctx))
		}
		c.pass(40 * 24 * time.Hour)
		for range 3 {
			c.pass(2 * time.Hour)
			require.NoError(t, authors[0].publish(ctx))
		}
		require.NoError(t, authors[0].collect(ctx))
		kept, orphans, err := fx.audit(ctx)
		require.NoError(t, err)
		require.LessOrEqual(t, len(kept), 4, fmt.Sprint(kept))
		for _, key := range orphans {
			require.Less(t, c.Now().Sub(ids.Time(id(key))), 6*time.Hour, key)
		}
	})
}

// TestRetainKeepsPinsOfPeople pins revisions between those that the policy pins.
func TestRetainKeepsPinsOfPeople(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	asked, current := map[int64]bool{}, true
	a.collector.Ask(func(context.Context, event.Time) (map[int64]bool, bool, error) { return asked, current, nil })
	a.publishMany(t, 30, time.Minute)
	version, err := a.s.Pin(t.Context(), 7)
	require.NoError(t, err)
	again, err := a.s.Pin(t.Context(), 7)
	require.NoError(t, err, "it is pinned already")
	require.Equal(t, version, again)
	_, err = a.s.Pin(t.Context(), 1_000)
	require.ErrorIs(t, err, manifest.ErrAbsent)
	asked[7] = true
	has := func(revision int64) bool {
		require.NoError(t, a.collect(t.Context()))
		kept, _, err := fx.audit(t.Context())
		require.NoError(t, err)
		_, err = a.s.LoadAt(t.Context(), revision)
		require.Equal(t, slices.Contains(kept, revision), err == nil)
		return err == nil
	}
	for range 40 {
		a.publishMany(t, 3, 24*time.Hour)
		require.True(t, has(7))
	}
	require.False(t, has(8))
	_, err = a.s.Pin(t.Context(), 8)
	require.ErrorIs(t, err, manifest.ErrAbsent, "it was collected")
	current = false
	delete(asked, 7)
	require.True(t, has(7), "a collector that does not know the newest revision deletes no pin")
	current = true
	require.False(t, has(7))
}
