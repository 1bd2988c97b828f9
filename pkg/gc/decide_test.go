package gc_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
)

const day = 24 * time.Hour

var now = event.At(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))

func version(n int, ago time.Duration) gc.Success {
	return gc.Success{RunID: fmt.Sprintf("r%03d", n), TaskKey: "a/b", MaterializationID: fmt.Sprintf("m%03d", n), At: now.Add(-ago), Seq: int64(n)}
}

func stored(id string, ago time.Duration) gc.Materialization {
	return gc.Materialization{
		ID: id, Marker: gc.Object{Key: "p/" + id + "/_commit.json", Size: 1, Updated: now.Add(-ago)},
		Files: []gc.Object{{Key: "p/" + id + "/x/data.parquet", Size: 10, Updated: now.Add(-ago)}},
	}
}

func none(string) bool { return false }

func deleted(garbage []gc.Garbage) map[string]gc.Reason {
	found := map[string]gc.Reason{}
	for _, g := range garbage {
		found[g.Version] = g.Reason
	}
	return found
}

func TestDecideKeepsThreeVersionsForThirtyDays(t *testing.T) {
	t.Parallel()
	// The versions became visible 50, 40, 20, 5 and 2 days ago. Each version was superseded when the next one became
	// visible.
	var rows gc.Rows
	var all []gc.Materialization
	for _, ago := range []int{50, 40, 20, 5, 2} {
		v := version(100-ago, time.Duration(ago)*day)
		rows.Successes = append(rows.Successes, v)
		rows.Visible = v
		all = append(all, stored(v.MaterializationID, time.Duration(ago)*day))
	}
	rows.Live, rows.Failed, rows.Settled = none, none, 98
	keep := gc.Keep{}.WithDefaults()
	require.Equal(t, map[string]gc.Reason{"m050": gc.Superseded, "m060": gc.Superseded}, deleted(gc.Decide(keep, now, rows, all)))
	keep.For = 4 * day
	require.Equal(t, map[string]gc.Reason{"m050": gc.Superseded, "m060": gc.Superseded, "m080": gc.Superseded},
		deleted(gc.Decide(keep, now, rows, all)), "m095 was superseded two days ago, m080 five days ago")
	rows.Live = func(m string) bool { return m == "m050" }
	require.NotContains(t, deleted(gc.Decide(keep, now, rows, all)), "m050", "a live run reads it")
	rows.Visible = gc.Success{}
	require.Empty(t, gc.Decide(keep, now, rows, all), "without a visible version nothing is superseded")
}

// A hidden output is treated as superseded. It is deleted as soon as Keep.For has passed since the decision to hide
// it, and every plan that may name it is folded. Then the versions that are older than the visible one are also
// deleted.
func TestDecideCollectsHiddenOutputs(t *testing.T) {
	t.Parallel()
	keep := gc.Keep{}.WithDefaults()
	visible := version(2, 90*day)
	for _, c := range []struct {
		hidden  time.Duration
		settled int64
		deleted bool
	}{{31 * day, 3, true}, {31 * day, 2, false}, {31 * day, 0, false}, {29 * day, 3, false}} {
		rows := gc.Rows{Visible: visible, Live: none, Failed: none, Settled: c.settled, Hidden: gc.Hidden{At: now.Add(-c.hidden), Seq: 3}}
		got := deleted(gc.Decide(keep, now, rows, []gc.Materialization{stored("m002", 90*day)}))
		require.Equal(t, c.deleted, got["m002"] == gc.Superseded, "%+v", c)
		rows.Live = func(string) bool { return true }
		require.Empty(t, gc.Decide(keep, now, rows, []gc.Materialization{stored("m002", 90*day)}), "a live run reads it")
	}
}

func TestDecideDeletesMarkersFirst(t *testing.T) {
	t.Parallel()
	old, visible := version(1, 100*day), version(2, 90*day)
	rows := gc.Rows{Visible: visible, Successes: []gc.Success{old, visible}, Live: none, Failed: none, Settled: 2}
	got := gc.Decide(gc.Keep{Versions: 1}.WithDefaults(), now, rows, []gc.Materialization{stored("m001", 100*day), stored("m002", 90*day)})
	require.Len(t, got, 1)
	require.Equal(t, []string{"p/m001/_commit.json", "p/m001/x/data.parquet"}, []string{got[0].Objects[0].Key, got[0].Objects[1].Key})
}

// By the worker's clock the version was superseded long ago, but the later version was published only recently. So
// there may be a plan that names the old version and is not folded yet.
func TestDecideWaitsForUnfoldedPlans(t *testing.T) {
	t.Parallel()
	keep := gc.Keep{Versions: 1}.WithDefaults()
	for settled, kept := range map[int64]bool{0: true, 1: true, 2: false} {
		old, visible := version(1, 100*day), version(2, 50*day)
		rows := gc.Rows{Visible: visible, Successes: []gc.Success{old, visible}, Live: none, Failed: none, Settled: settled}
		require.Equal(t, kept, len(gc.Decide(keep, now, rows, []gc.Materialization{stored("m001", 100*day)})) == 0, settled)
	}
}

// Outputs without rows stay, because the state may be incomplete. Outputs of runs below RunsFrom are treated as the
// oldest versions.
func TestDecideKeepsUnknownOutputs(t *testing.T) {
	t.Parallel()
	visible := version(9, 40*day)
	all := []gc.Materialization{stored("m001", 90*day), stored("m005", 80*day)}
	rows := gc.Rows{Visible: visible, Successes: []gc.Success{visible}, Live: none, Failed: none, Settled: 9}
	require.Empty(t, gc.Decide(gc.Keep{}.WithDefaults(), now, rows, all))
	rows.RunsFrom = "m003"
	require.Equal(t, map[string]gc.Reason{"m001": gc.Superseded}, deleted(gc.Decide(gc.Keep{}.WithDefaults(), now, rows, all)))
	require.Empty(t, gc.Decide(gc.Keep{For: 50 * day}.WithDefaults(), now, rows, all), "the second version, superseded 40 days ago")
	rows.Settled = 8
	require.Empty(t, gc.Decide(gc.Keep{}.WithDefaults(), now, rows, all), "a plan that names it may not be folded yet")
	rows.Settled, rows.Visible = 9, gc.Success{}
	require.Empty(t, gc.Decide(gc.Keep{}.WithDefaults(), now, rows, all), "nothing is visible")
}

func TestDecideCollectsInvisibleOutputs(t *testing.T) {
	t.Parallel()
	visible := version(5, 3*day)
	beaten := stored("m005", 3*day)
	beaten.Winner = "p/m005/x/"
	beaten.Files = append(beaten.Files, gc.Object{Key: "p/m005/y/data.parquet", Updated: now.Add(-2 * day)})
	uncommitted := stored("m006", 2*day)
	uncommitted.Marker = gc.Object{}
	young := stored("m007", 23*time.Hour)
	rows := gc.Rows{Visible: visible, Successes: []gc.Success{visible}, Live: none, Failed: func(m string) bool { return m > "m005" }, Settled: 9}
	got := gc.Decide(gc.Keep{}.WithDefaults(), now, rows, []gc.Materialization{beaten, uncommitted, young, stored("m008", 2*day)})
	require.Equal(t, map[string]gc.Reason{"m005": gc.Lost, "m006": gc.Lost, "m008": gc.Unseen}, deleted(got))
	require.Equal(t, []gc.Object{beaten.Files[1]}, got[0].Objects)
	rows.Live = func(string) bool { return true }
	require.Empty(t, gc.Decide(gc.Keep{}.WithDefaults(), now, rows, []gc.Materialization{beaten, uncommitted, young}))
}

// TestDecideKeepsNamedOutputs tests random partitions in any state.
func TestDecideKeepsNamedOutputs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := gc.Rows{
			Failed:  func(m string) bool { return m > "m005" },
			Settled: rapid.Int64Range(0, 9).Draw(t, "settled"), RunsFrom: rapid.SampledFrom([]string{"", "m002", "m006"}).Draw(t, "from"),
		}
		var all []gc.Materialization
		live := map[string]bool{}
		for i := range rapid.IntRange(1, 8).Draw(t, "materializations") {
			v := version(i, time.Duration(rapid.IntRange(0, 100*24).Draw(t, "hours"))*time.Hour)
			live[v.MaterializationID] = rapid.Bool().Draw(t, "live")
			if rapid.Bool().Draw(t, "succeeded") {
				rows.Successes = append(rows.Successes, v)
				rows.Visible = v
			}
			m := stored(v.MaterializationID, time.Duration(rapid.IntRange(0, 100*24).Draw(t, "stored"))*time.Hour)
			m.Files = append(m.Files, gc.Object{Key: "p/" + m.ID + "/y/data.parquet"})
			m.Winner = rapid.SampledFrom([]string{"", "p/" + m.ID + "/x/", "p/" + m.ID + "/y/"}).Draw(t, "winner")
			all = append(all, m)
		}
		rows.Live = func(m string) bool { return live[m] }
		keep := gc.Keep{Versions: rapid.IntRange(1, 4).Draw(t, "versions"), For: time.Hour}.WithDefaults()
		for _, g := range gc.Decide(keep, now, rows, all) {
			if live[g.Version] {
				t.Fatalf("%s of a live run is deleted", g.Version)
			}
			later := slices.ContainsFunc(rows.Successes, func(s gc.Success) bool {
				known := slices.ContainsFunc(rows.Successes, func(s gc.Success) bool { return s.MaterializationID == g.Version })
				return (s.MaterializationID > g.Version || !known && g.Version < rows.RunsFrom) && s.Seq <= rows.Settled
			})
			if g.Reason == gc.Superseded && !later {
				t.Fatalf("%s is deleted, but the settled revision shows no later version", g.Version)
			}
			m := all[slices.IndexFunc(all, func(m gc.Materialization) bool { return m.ID == g.Version })]
			for _, o := range g.Objects {
				if g.Version == rows.Visible.MaterializationID && (m.Winner == "" || o.Key == m.Marker.Key || o.Key == m.Winner+"data.parquet") {
					t.Fatalf("%s of the visible output is deleted", o.Key)
				}
			}
		}
	})
}
