package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// screen contains the rows that a client of Watch knows: runs and tasks by key.
type screen struct {
	at      engine.Position
	rows    map[string]state.Record
	resyncs int
}

func keyOf(row state.Record) string {
	switch row := row.(type) {
	case *state.Run:
		return row.RunID
	case *state.Task:
		return row.RunID + "/" + row.TaskKey
	}
	return ""
}

func shown(s *state.State) map[string]state.Record {
	rows := map[string]state.Record{}
	for row := range s.Runs.All {
		rows[keyOf(row)] = row
	}
	for row := range s.Tasks.All {
		rows[keyOf(row)] = row
	}
	return rows
}

// apply applies changes in the same way as a page in the browser.
func (c *screen) apply(w *fixture, changes *engine.Changes) {
	if changes.Alive {
		return
	}
	c.at = changes.Position
	if changes.Resync {
		c.resyncs++
		c.rows = shown(w.state())
	}
	for _, row := range changes.Rows {
		c.rows[keyOf(row)] = row
	}
}

var errSeen = errors.New("seen")

func runsAndTasks(row state.Record) bool { return keyOf(row) != "" }

// Messages must contain all changes, even if the stream breaks and is resumed.
func TestWatchWithCutsEqualsTheState(t *testing.T) {
	w := newFixture(t, false)
	w.run(request(asset("first"))) // a revision must exist before Watch begins
	c := &screen{}
	err := w.Watch(t.Context(), c.at, time.Minute, runsAndTasks, func(changes *engine.Changes) error {
		c.apply(w, changes)
		return errSeen
	})
	require.ErrorIs(t, err, errSeen)
	c.rows = shown(w.state())
	for round := range 12 {
		ctx, cut := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- w.Watch(ctx, c.at, time.Minute, runsAndTasks, func(changes *engine.Changes) error {
				c.apply(w, changes)
				if round%3 == 2 && len(changes.Rows) > 0 {
					return errSeen // the connection breaks after a message
				}
				return nil
			})
		}()
		for n := range 3 {
			run := w.run(request(asset(fmt.Sprintf("a%d", n)), asset("b", fmt.Sprintf("a%d", n))))
			w.report(w.finished(run.RunID, fmt.Sprintf("raw/a%d", n), event.Succeeded))
		}
		cut()
		err = <-ended
		require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, errSeen), err)
	}
	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	err = w.Watch(t.Context(), c.at, time.Minute, runsAndTasks, func(changes *engine.Changes) error {
		c.apply(w, changes)
		if changes.Revision >= snap.Revision {
			return errSeen
		}
		return nil
	})
	require.ErrorIs(t, err, errSeen)
	require.Equal(t, shown(w.state()), c.rows)
	require.Zero(t, c.resyncs)
}

// This test fails if Watch continues without a Resync from a position that it does not know. The client would then
// believe that its old rows are complete.
func TestWatchResyncs(t *testing.T) {
	w := newFixture(t, false)
	w.run(request(asset("a")))
	first := func(after engine.Position) (got *engine.Changes) {
		err := w.Watch(t.Context(), after, time.Minute, runsAndTasks, func(changes *engine.Changes) error {
			got = changes
			return errSeen
		})
		require.ErrorIs(t, err, errSeen)
		return got
	}
	now := first(engine.Position{})
	require.False(t, now.Resync)
	require.Empty(t, now.Rows)
	require.True(t, first(engine.Position{Timeline: "another", Revision: now.Revision}).Resync, "a rebuild began another history")
	require.True(t, first(engine.Position{Timeline: now.Timeline, Revision: now.Revision + 1000}).Resync, "a revision that does not exist")
}

// This test fails if Watch sends nothing while nothing changes, because a client could not distinguish such a stream
// from a broken one.
func TestWatchIsAlive(t *testing.T) {
	w := newFixture(t, false)
	var all []*engine.Changes
	err := w.Watch(t.Context(), engine.Position{}, time.Millisecond, runsAndTasks, func(changes *engine.Changes) error {
		if all = append(all, changes); len(all) == 3 {
			return errSeen
		}
		return nil
	})
	require.ErrorIs(t, err, errSeen)
	require.False(t, all[0].Alive)
	require.True(t, all[1].Alive)
	require.True(t, all[2].Alive)
}
