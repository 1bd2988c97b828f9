package compactor

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// noon is the time of the tests. entry returns the name of an entry whose time is the given number of minutes after
// noon.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func entry(minutes float64) string {
	return ids.AtTime(noon.Add(time.Duration(minutes * float64(time.Minute))))
}

func entries(names ...string) (list []Entry) {
	for _, name := range names {
		list = append(list, Entry{ID: name})
	}
	return list
}

func namesOf(list []Entry) (names []string) {
	for _, e := range list {
		names = append(names, e.ID)
	}
	return names
}

func TestOrphanFloor(t *testing.T) {
	const age = time.Hour
	for name, tc := range map[string]struct{ parent, oldest, want string }{
		"the first":               {"", entry(0), entry(-60)},
		"due":                     {entry(-66), entry(0), entry(-60)},
		"not due":                 {entry(-65), entry(0), entry(-65)},
		"an unpublished file":     {entry(-120), entry(-90), entry(-90)},
		"the first, with a file":  {"", entry(-90), entry(-90)},
		"a file below the floor":  {entry(-80), entry(-90), entry(-80)},
		"the clock was set back":  {entry(-30), entry(0), entry(-30)},
		"a step below the parent": {entry(-60), entry(0), entry(-60)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, orphanFloor(tc.parent, tc.oldest, noon, age))
		})
	}
}

func TestGapsBelow(t *testing.T) {
	gaps := map[string]error{}
	require.Equal(t, entry(0), below(gaps, entry(0)), "no gap")
	require.Empty(t, below(gaps, ""))
	gaps[entry(1)] = nil
	require.Equal(t, entry(0), below(gaps, entry(0)), "a gap above")
	before := func(minutes float64) string { return ids.AtTime(ids.Time(entry(minutes)).Add(-time.Millisecond)) }
	require.Equal(t, before(1), below(gaps, entry(1)), "the gap itself is not folded")
	require.Equal(t, before(1), below(gaps, entry(9)))
	gaps[entry(-1)], gaps[entry(3)] = nil, nil
	require.Equal(t, before(-1), below(gaps, entry(9)), "the lowest gap")
	require.Empty(t, below(gaps, ""))
}

func TestGapsAddAndClose(t *testing.T) {
	unreadable := errors.New("unreadable")
	g := newGaps()
	g.add(map[string]error{"a": unreadable, "b": nil})
	g.add(map[string]error{"c": unreadable})
	require.Equal(t, []string{"a", "b", "c"}, g.names(), "announced entries are added")
	folded := func(names ...string) func(string) bool {
		return func(entry string) bool { return slices.Contains(names, entry) }
	}
	require.Equal(t, []string{"a"}, g.close(folded("c")), "b waits for a, and c was folded")
	require.Equal(t, []string{"a", "b"}, g.names())
	g.relist(&reading{gaps: map[string]error{"a": unreadable, "d": unreadable}, later: entries("e")})
	require.Equal(t, []string{"a", "d"}, g.names(), "a listing finds all gaps that exist")
	g.relist(&reading{gaps: map[string]error{"a": unreadable}, later: entries("d", "e")})
	require.Equal(t, []string{"a", "d"}, g.names(), "d is left to the second round")
	require.Equal(t, []string{"d"}, g.close(folded()), "a was reported")
	require.Empty(t, g.close(folded("a", "d")))
	require.Empty(t, g.names())
	g.announce()
	require.Empty(t, g.wake)
	g.add(map[string]error{"e": nil})
	g.announce()
	g.announce()
	require.Len(t, g.wake, 1)
	require.EqualValues(t, 1, g.unread.Load())
}

func TestRoundEstablishes(t *testing.T) {
	began := event.At(noon)
	barrier := Request{Barrier: true}
	none, later, gap := &reading{}, &reading{later: entries("a")}, &reading{gaps: map[string]error{entry(-30): nil}}
	for name, tc := range map[string]struct {
		round    round
		read     *reading
		caughtUp event.Time
		complete string
	}{
		"announced entries":             {round{listedAt: began, complete: entry(-2)}, none, 0, ""},
		"a barrier":                     {round{Request: barrier, listedAt: began, complete: entry(-2)}, none, began, entry(-2)},
		"the store's time is not known": {round{Request: barrier, listedAt: began}, none, began, ""},
		"timers are left":               {round{Request: barrier, listedAt: began, complete: entry(-2)}, later, 0, ""},
		"the second round":              {round{Request: barrier, second: true, listedAt: began, complete: entry(-2)}, none, began, entry(-2)},
		"timers after the second":       {round{Request: barrier, second: true, listedAt: began, complete: entry(-2)}, later, began, entry(-2)},
		"a gap":                         {round{Request: barrier, listedAt: began, complete: entry(-2)}, gap, 0, below(gap.gaps, entry(-2))},
		"a gap above":                   {round{Request: barrier, listedAt: began, complete: entry(-50)}, gap, 0, entry(-50)},
	} {
		t.Run(name, func(t *testing.T) {
			caughtUp, complete := tc.round.established(tc.read)
			require.Equal(t, tc.caughtUp, caughtUp)
			require.Equal(t, tc.complete, complete)
		})
	}
}

func TestRoundKnowsAnnouncedEntries(t *testing.T) {
	r := round{Request: Request{Entries: entries("a", "b")}}
	require.Empty(t, r.known(entries("c")), "without a barrier nothing is listed")
	r.Barrier = true
	require.Equal(t, map[string]bool{"a": true, "b": true, "c": true}, r.known(entries("c")))
}

func TestPostponedTimersBecomeGaps(t *testing.T) {
	read := &reading{
		gaps: map[string]error{}, unread: map[string]bool{},
		decisions: []fold.Group{{Entry: "known"}, {Entry: "dead letter"}}, later: entries("listed"),
	}
	read.postpone(func(entry string) bool { return entry == "dead letter" })
	require.Equal(t, map[string]error{"known": nil, "listed": nil}, read.gaps)
	require.Equal(t, map[string]bool{"dead letter": true}, read.unread, "it is recorded, and tried again")
	require.Empty(t, read.decisions)
	require.Empty(t, read.later)
}

func TestCompleteAt(t *testing.T) {
	ms := func(d time.Duration) int64 { return noon.Add(d).UnixMilli() }
	require.Empty(t, completeAt(0, noon), "no time of the store is known")
	require.Equal(t, ids.AtTime(noon.Add(-time.Minute-ListMargin)), completeAt(ms(-time.Minute), noon), "only the store's clock counts")
	require.Equal(t, ids.AtTime(noon.Add(-ListMargin)), completeAt(ms(time.Minute), noon), "a slow clock lowers it")
}

func TestStoreTimeNeverDecreases(t *testing.T) {
	var s storeTime
	require.Equal(t, noon, s.limit(noon), "unknown")
	s.observe(noon)
	s.observe(noon.Add(-time.Hour))
	require.True(t, noon.Equal(s.limit(noon.Add(time.Hour))), "a fast clock")
	require.True(t, noon.Add(-time.Hour).Equal(s.limit(noon.Add(-time.Hour))), "a slow clock")
}

func TestPortionIsLimitedByEntriesAndBytes(t *testing.T) {
	large := Entry{ID: "large", size: chunkBytes}
	for name, tc := range map[string]struct {
		entries []Entry
		want    int
	}{
		"few":            {entries("a", "b"), 2},
		"many":           {entries("a", "b", "c", "d"), 3},
		"a large one":    {[]Entry{large}, 1},
		"two large ones": {[]Entry{large, large}, 1},
		"small, large":   {[]Entry{{ID: "a", size: 1}, large}, 1},
		"of one limit":   {[]Entry{{ID: "a"}, large}, 2},
	} {
		require.Equal(t, tc.want, portion(tc.entries, 3), name)
	}
}

func TestUnannouncedEntriesAreOld(t *testing.T) {
	old, young := entry(-1), ids.AtTime(noon.Add(-unannouncedAge+time.Millisecond))
	require.True(t, hasUnannounced(noon, entries(old, young)))
	require.False(t, hasUnannounced(noon, entries(young)))
	require.False(t, hasUnannounced(noon, entries(old, young), nil, entries(old)))
}

// loadedAt returns a loaded state with the given history cutoff, in which the given entries are recorded.
func loadedAt(cutoff string, recorded ...string) *loaded {
	l := &loaded{state: state.New(ids.Domain{Tenant: "acme", Workspace: "prod"}), tried: map[string]bool{}}
	for _, name := range recorded {
		fold.Apply(l.state, fold.Group{Entry: name, ID: "g", Reason: event.ReasonMalformed})
	}
	if cutoff != "" {
		l.manifest = &manifest.Manifest{BaseSnapshot: manifest.BaseSnapshot{EntriesFrom: cutoff}}
	}
	return l
}

func TestRecordedEntriesAreInStateOrHistory(t *testing.T) {
	l := loadedAt("", entry(2))
	require.False(t, l.recorded(entry(1)))
	require.True(t, l.recorded(entry(2)))
	l = loadedAt(entry(2), entry(3))
	require.True(t, l.recorded(entry(1)), "it is in history, or was abandoned")
	require.False(t, l.recorded(entry(2)))
	require.True(t, l.recorded(entry(3)))
	group := fold.Group{Entry: entry(1), ID: "g"}
	require.True(t, l.inHistory(l.state, group))
	require.False(t, l.inHistory(l.state, fold.Group{Entry: entry(3), ID: "g"}))
	fold.Apply(l.state, fold.Group{Entry: group.Entry, ID: "other", Reason: event.ReasonMalformed})
	require.True(t, l.inHistory(l.state, group), "only another group of its entry waits")
	require.False(t, l.inHistory(l.state, fold.Group{Entry: group.Entry, ID: "other"}))
}

func TestUnrecordedKeepsEachEntryOnce(t *testing.T) {
	l := loadedAt("", entry(2))
	stored := noon.Add(time.Minute)
	given := []Entry{
		{ID: entry(3), Stored: stored}, {ID: entry(2)}, {ID: entry(1)}, {ID: entry(3), Data: []byte("x")}, {ID: entry(1), size: 7},
	}
	kept := l.unrecorded(given)
	require.Equal(t, []string{entry(1), entry(3)}, namesOf(kept), "in the order of their names")
	require.EqualValues(t, 7, kept[0].size)
	require.Equal(t, []byte("x"), kept[1].Data)
	require.Equal(t, stored, kept[1].Stored, "also if only the other one has it")
	require.Equal(t, entry(3), given[0].ID, "the request is not changed")
}

func TestRecordedAtIgnoresEntriesAhead(t *testing.T) {
	l := loadedAt("", entry(1), entry(500))
	name := func(minutes float64) ledger.Name {
		n := ledger.Name{Entry: entry(minutes)}
		n.Object.Updated = noon.Add(time.Minute)
		return n
	}
	require.Equal(t, noon.Add(time.Minute).UnixMilli(), l.recordedAt([]ledger.Name{name(1), name(500)}))
	require.Zero(t, l.recordedAt([]ledger.Name{name(0), name(500)}), "no entry is both recorded and near the time of its creation")
}
