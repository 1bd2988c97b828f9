package compactor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maintain calls Maintain until nothing is left to collect.
func (w *world) maintain(c *compactor.Compactor) {
	w.t.Helper()
	for more := true; more; {
		var err error
		more, err = c.Maintain(w.t.Context())
		require.NoError(w.t, err)
	}
}

// intact reads every kept revision and all its files, and returns the revisions.
func (w *world) intact() (kept []int64) {
	w.t.Helper()
	s, seen := w.manifests(), map[string]bool{}
	for revision, err := range s.List(w.t.Context()) {
		require.NoError(w.t, err)
		m, err := s.LoadAt(w.t.Context(), revision)
		require.NoError(w.t, err)
		for _, f := range m.Files() {
			if !seen[f.Key] {
				_, err := s.LoadFile(w.t.Context(), f)
				require.NoError(w.t, err, "revision %d", revision)
				seen[f.Key] = true
			}
		}
		kept = append(kept, revision)
	}
	return kept
}

// finish runs a number of tasks, which succeed one after another at the given interval. It announces their entries to
// the compactors in turn.
func (w *world) finish(tasks int, every time.Duration, compactors ...*compactor.Compactor) string {
	w.t.Helper()
	defs := make([]event.TaskDef, tasks)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	run, entry := w.trigger(defs...)
	w.step(compactors[0], entry)
	for i := range defs {
		w.clock.pass(every)
		c := compactors[i/40%len(compactors)]
		w.step(c, w.append(w.Finished(run, defs[i].TaskKey, 1, event.Succeeded)))
		c.AwaitMerges()
	}
	return run
}

func TestCollectionDuringConcurrentFolding(t *testing.T) {
	w := newWorld(t)
	w.options = small
	one, two := w.open("one"), w.open("two")
	var before int
	for range 2 {
		w.finish(150, 20*time.Second, one, two)
		before = len(slices.Collect(w.keys("state/")))
		w.maintain(one)
		w.maintain(two)
	}
	w.clock.pass(2 * time.Hour)
	w.finish(1, time.Second, one, two)
	w.maintain(two)
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	kept := w.intact()
	require.Less(t, len(kept), 8, "a few recent revisions, and one per hour, of %d", m.Revision)
	require.Less(t, len(slices.Collect(w.keys("state/"))), before*2/3, "their files")

	asOf, err := w.manifests().LoadAsOf(t.Context(), foldtest.Epoch.Add(time.Hour))
	require.NoError(t, err)
	require.Less(t, asOf.Revision, m.Revision-100, "a pin")
	st, err := snapshot.Load(t.Context(), codec, w.manifests(), asOf)
	require.NoError(t, err)
	require.Equal(t, asOf.RowCounts["runs"], int64(st.Runs.Len()))
	w.verify()
}

// This test fails if the floor rises above files that are being written.
func TestLongRebaseIsPublished(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	release, held := make(chan struct{}), make(chan struct{}, 100)
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.Contains(key, "/"+manifest.TierBase+"/") {
			held <- struct{}{}
			<-release
		}
		return faultblob.None
	})
	defs := make([]event.TaskDef, 100)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	run, entry := w.trigger(defs...)
	w.step(c, entry)
	for i := range defs[:90] {
		w.clock.pass(2 * time.Minute)
		w.step(c, w.append(w.Finished(run, defs[i].TaskKey, 1, event.Succeeded)))
	}
	<-held
	w.maintain(c)
	close(release)
	c.AwaitMerges()
	w.step(c, w.append(w.Finished(run, defs[90].TaskKey, 1, event.Succeeded)))
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, m.BaseSnapshot.Files)
	w.maintain(c)
	w.intact()
	w.verify()
}

func TestFloorRisesWithPublishes(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	last, raised := "", 0
	for i := range 40 {
		w.clock.pass(30 * time.Second)
		if i == 30 {
			w.clock.pass(-time.Hour)
		}
		_, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
		m, err := w.manifests().Load(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, m.OrphanFloor, last)
		require.Greater(t, m.L0[len(m.L0)-1].ID, last, "the delta is new")
		if m.OrphanFloor > last {
			raised++
		}
		last = m.OrphanFloor
	}
	require.Equal(t, 15, raised, "once a minute")
}

func TestRunCollectsOnlyAfterPublishes(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.finish(40, 10*time.Minute, c)
	before := len(w.intact())

	ctx, cancel := context.WithCancel(t.Context())
	w.clock.pass(time.Hour)
	collected := make(chan struct{}, 1000)
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Delete && strings.HasPrefix(key, "manifests/") {
			collected <- struct{}{}
		}
		return faultblob.None
	})
	c = w.open("two")
	done := make(chan error, 1)
	idle := w.blobs.Stats()
	go func() { done <- c.Run(ctx) }()
	require.Equal(t, idle, w.blobs.Stats())
	_, entry := w.trigger(foldtest.Task("a"))
	_, err := c.Compact(ctx, compactor.Request{Entries: []compactor.Entry{entry}})
	require.NoError(t, err)
	<-collected
	cancel()
	require.NoError(t, <-done)
	w.faults(nil)
	require.Less(t, len(w.intact()), before)
	w.verify()
}

// While a process loaded the state, it was suspended for longer than revisions are kept.
func TestLoadRestartsWhenItsRevisionIsCollected(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	w.finish(70, time.Second, c)
	slept := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && strings.HasPrefix(key, "state/") && !slept {
			slept = true
			w.faults(nil)
			w.finish(70, 3*time.Minute, c)
			w.clock.pass(40 * 24 * time.Hour)
			w.finish(30, 10*time.Minute, c)
			w.maintain(c)
		}
		return faultblob.None
	})
	two := w.open("two")
	require.True(t, slept)
	got, _ := two.Latest().Get()
	want, _ := c.Latest().Get()
	require.Equal(t, want.Revision, got.Revision)
	require.Empty(t, state.Diff(want.State, got.State, 10))
}

func TestFailedCollectionIsRetriedAfterPublish(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.finish(30, 10*time.Minute, c)
	w.clock.pass(time.Hour)
	w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Replace {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := c.Maintain(t.Context())
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.Len(t, w.intact(), 31)
	w.faults(nil)
	w.maintain(c)
	require.Less(t, len(w.intact()), 10)
}

// INV-9, with more entries than fit into one batch. This test fails if a timer's entry is folded last in its batch
// instead of after all batches.
func TestTimerWaitsForEveryBatch(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Started(run, "a", 1)))
	snap, _ := c.Latest().Get()
	timer := snap.State.Liveness()
	w.clock.pass(timer.FireAt.Time().Sub(w.clock.Now()))
	w.Now = w.clock.Now()
	fired := w.append(w.Fire(timer))
	const many = 2100
	for i := range many {
		w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: "pool", Name: fmt.Sprintf("p%d", i%7), Slots: 3})
	}
	w.append(w.Beat(run, "a", 1))
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true, Entries: []compactor.Entry{fired}})
	require.NoError(t, err)
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
	snap, _ = c.Latest().Get()
	require.Equal(t, int64(4), snap.Revision, "two portions")
	found := false
	snap.State.Entries.Ascend(state.Key2{A: fired.ID}, func(row *state.Entry) bool {
		found = row.Entry == fired.ID && row.Revision == 4
		return false
	})
	require.True(t, found, "the timer's entry is recorded with the last portion")
	w.verify()
}
