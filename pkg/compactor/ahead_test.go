package compactor_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

const twoYears = 2 * 365 * 24 * time.Hour

// write stores payloads as an entry with a name, ids and timestamps that are ahead of
// the store's clock.
func (w *world) write(nameAhead, idsAhead, timeAhead time.Duration, payloads ...event.Payload) compactor.Entry {
	w.t.Helper()
	now := w.clock.Now()
	source := func(ahead time.Duration) *ids.Source {
		return ids.NewSource(func() time.Time { return now.Add(ahead) }, nil)
	}
	minted := source(idsAhead)
	var data []byte
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{
			ID: minted.New(), Time: event.At(now.Add(timeAhead)), Domain: foldtest.Domain, Source: foldtest.Domain.Source(), Payload: p,
		}
		if len(payloads) > 1 {
			group[i].Group, group[i].GroupSize = group[0].ID, len(payloads)
		}
		var err error
		data, err = event.Encode(data, group[i])
		require.NoError(w.t, err)
	}
	name := source(nameAhead).New()
	object, err := w.blobs.Create(w.t.Context(), ledger.Key(foldtest.Domain, name), data)
	require.NoError(w.t, err)
	return compactor.Entry{ID: name, Data: data, Stored: object.Updated}
}

func (w *world) load() (*manifest.Manifest, *state.State) {
	w.t.Helper()
	m, err := w.manifests().Load(w.t.Context())
	require.NoError(w.t, err)
	snap, _ := w.open("reader").Latest().Get()
	return m, snap.State
}

func TestCompactorRefusesEntriesFarAhead(t *testing.T) {
	for name, test := range map[string]struct {
		name, ids, time time.Duration
		refused         bool
	}{
		"name":              {name: twoYears, refused: true},
		"name, hours":       {name: 2 * time.Hour, refused: true},
		"ids":               {ids: twoYears, refused: true},
		"timestamp":         {time: twoYears, refused: true},
		"all of them":       {name: twoYears, ids: twoYears, time: twoYears, refused: true},
		"just over":         {time: time.Hour + time.Second, refused: true},
		"not far":           {name: 59 * time.Minute, ids: 58 * time.Minute, time: 59 * time.Minute},
		"behind":            {name: -time.Second, ids: -time.Minute, time: -twoYears},
		"the year 9999":     {time: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).Sub(foldtest.Epoch), refused: true},
		"name in year 9000": {name: time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC).Sub(foldtest.Epoch), refused: true},
	} {
		for _, way := range []string{"handed over", "named", "listed"} {
			t.Run(name+", "+way, func(t *testing.T) {
				w := newWorld(t)
				c := w.open("one")
				_, first := w.trigger(foldtest.Task("a"))
				w.step(c, first)
				before, _ := w.load()
				entry := w.write(test.name, test.ids, test.time, &event.LimitSet{CommandID: "c", Scope: event.ScopePool, Name: "api", Slots: 3})
				request := compactor.Request{Barrier: way == "listed"}
				switch way {
				case "handed over":
					request.Entries = []compactor.Entry{entry}
				case "named":
					request.Entries = []compactor.Entry{{ID: entry.ID}}
				}
				w.clock.pass(3 * time.Hour) // the store's time decides, and not the fold time
				_, err := c.Step(t.Context(), request)
				require.NoError(t, err)
				m, st := w.load()
				var row *state.Entry
				for r := range st.Entries.All {
					if r.Entry == entry.ID {
						row = r
					}
				}
				require.NotNil(t, row, "every entry is recorded")
				if test.refused {
					require.Equal(t, state.DeadLetter, row.Outcome)
					require.Equal(t, event.ReasonClockAhead, row.Reason)
					require.Contains(t, row.Detail, "ahead of the store's clock")
					require.Equal(t, before.FoldTime, m.FoldTime, "the fold time does not change")
					require.Equal(t, before.Watermarks.EventsProcessedThrough, m.Watermarks.EventsProcessedThrough)
				} else {
					require.Equal(t, state.Folded, row.Outcome)
				}
				w.verify()
			})
		}
	}
}

// A refused entry must not influence which revisions and entries of a domain are kept, or how the domain's later
// entries are named.
func TestEntryFarAheadKeepsCollectionRunning(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{Tiers: tiers.Options{MaxDeltas: 2, MaxInline: -1, MinBase: 1}}
	c := w.open("one")
	var rows []int
	for i := range 40 {
		w.clock.pass(10 * time.Minute)
		if i == 5 {
			w.step(c, w.write(twoYears, twoYears, twoYears, &event.LimitSet{CommandID: "c", Scope: event.ScopePool, Name: "api", Slots: 3}))
		}
		_, entry := w.trigger(foldtest.Task("a"))
		require.WithinDuration(t, w.clock.Now(), ids.Time(entry.ID), time.Minute, "names follow the clock")
		_, err := c.Step(t.Context(), compactor.Request{Entries: []compactor.Entry{entry}, Barrier: true})
		require.NoError(t, err)
		_, err = c.Step(t.Context(), compactor.Request{Flush: true})
		require.NoError(t, err)
		m, _ := w.load()
		rows = append(rows, int(m.RowCounts["ledger_entries"]))
		if i%10 == 9 {
			c = w.open("one") // a new process loads the watermarks
		}
	}
	require.LessOrEqual(t, rows[len(rows)-1], 8, "entries leave the live state: %v", rows)
	w.verify()
}

// poison creates the state of a domain in which an older build folded entries that are far ahead, so that all later
// entries got names that are ahead, too. The first entry has wrong timestamps as well.
func (w *world) poison(c *compactor.Compactor) (runs []string) {
	w.t.Helper()
	wrong := twoYears
	for range 3 {
		w.clock.pass(time.Second)
		w.Now = w.clock.Now()
		ahead := ids.NewSource(func() time.Time { return w.clock.Now().Add(twoYears) }, nil)
		run := ahead.New()
		for _, payloads := range [][]event.Payload{
			w.Triggered(&event.RunTriggered{RunID: run}, foldtest.Task("a")),
			{w.Started(run, "a", 1), w.Finished(run, "a", 1, event.Succeeded)},
		} {
			entry := w.write(twoYears, twoYears, wrong, payloads...)
			entry.Stored = entry.Stored.Add(twoYears) // as if the store's clock were ahead, too: the entry is not refused
			w.step(c, entry)
			wrong = 0
		}
		runs = append(runs, run)
	}
	return runs
}

func TestRebuildRepairsFoldTimeAhead(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	runs := w.poison(c)
	m, _ := w.load()
	require.Greater(t, m.FoldTime, event.At(w.clock.Now().Add(time.Hour)), "the fold time is ahead")

	result, err := repair.Rebuild(t.Context(), w.repair())
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.Equal(t, 6, result.Renamed)
	m, _ = w.load()
	now := w.clock.Now()
	require.LessOrEqual(t, m.FoldTime, event.At(now))
	require.LessOrEqual(t, m.Watermarks.EventsProcessedThrough, ids.AtTime(now.Add(time.Minute)))
	for object, err := range w.blobs.List(t.Context(), blob.ListOptions{Prefix: ledger.Prefix(foldtest.Domain)}) {
		require.NoError(t, err)
		_, name, err := ledger.ParseKey(object.Key)
		require.NoError(t, err)
		require.LessOrEqual(t, name, ids.AtTime(now.Add(time.Minute)), "no entry is named ahead")
	}
	c = w.open("two")
	for _, id := range runs {
		require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, id), "what was folded stays folded")
	}
	w.clock.pass(time.Second)
	c = w.open("two")
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true, Entries: []compactor.Entry{
		w.append(w.Started(run, "a", 1), w.Finished(run, "a", 1, event.Succeeded)),
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(c, run))
	w.verify()
}

func TestBareRebuildRefusesEntriesFarAhead(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.write(twoYears, 0, 0, &event.LimitSet{CommandID: "c", Scope: event.ScopePool, Name: "api", Slots: 3}))
	w.step(c, w.write(0, 0, twoYears, &event.LimitSet{CommandID: "d", Scope: event.ScopePool, Name: "api", Slots: 4}))
	before, _ := w.load()
	for object, err := range w.blobs.List(t.Context(), blob.ListOptions{Prefix: manifest.Prefix(foldtest.Domain)}) {
		require.NoError(t, err)
		require.NoError(t, w.blobs.Delete(t.Context(), object.Key))
	}
	cfg := w.repair()
	cfg.Bare = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.False(t, result.Recorded)
	m, st := w.load()
	require.Equal(t, before.FoldTime, m.FoldTime)
	require.Equal(t, before.Watermarks.EventsProcessedThrough, m.Watermarks.EventsProcessedThrough)
	dead := 0
	for row := range st.Entries.All {
		if row.Reason == event.ReasonClockAhead {
			dead++
		}
	}
	require.Equal(t, 2, dead)
	require.NotEmpty(t, w.states(w.open("two"), run))
	require.Zero(t, st.Limits.Len())
	w.verify()
}
