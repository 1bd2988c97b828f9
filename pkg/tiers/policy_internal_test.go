package tiers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// inline returns an inline delta, and stored returns a delta in a file. Both deltas have the same number of bytes.
func inline(id string, bytes int64) manifest.Delta {
	return manifest.Delta{ID: id, Bytes: bytes, Inline: []manifest.Rows{{Table: "runs"}}}
}

func stored(id string, bytes int64) manifest.Delta {
	return manifest.Delta{ID: id, Bytes: bytes, Files: []manifest.File{{Table: "runs", Size: bytes}}}
}

func idsOf(deltas []manifest.Delta) (found string) {
	for _, d := range deltas {
		found += d.ID
	}
	return found
}

// described returns each job as text: its tier and its deltas.
func described(jobs []job) (found []string) {
	for _, j := range jobs {
		found = append(found, j.tier+" "+idsOf(j.parts))
	}
	return found
}

func TestDueMerges(t *testing.T) {
	o := Options{MaxDeltas: 2, MaxInline: 100, MinBase: 10_000}
	many := make([]manifest.Delta, manyDeltas+1)
	for i := range many {
		many[i] = manifest.Delta{ID: "x"}
	}
	deltas := func(d ...manifest.Delta) []manifest.Delta { return d }
	base := manifest.BaseSnapshot{Files: []manifest.File{{Table: "tasks", Size: 30_000, Rows: 10}}}
	for name, tc := range map[string]struct {
		manifest    manifest.Manifest
		running     []job
		tasks       int
		unmergeable bool
		want        []string
	}{
		"nothing":                     {},
		"few inline rows":             {manifest: manifest.Manifest{L0: deltas(inline("a", 50), inline("b", 50))}},
		"many inline rows":            {manifest: manifest.Manifest{L0: deltas(inline("a", 50), inline("b", 51))}, want: []string{"l0 ab"}},
		"a small newest delta":        {manifest: manifest.Manifest{L0: deltas(inline("a", 99), inline("b", 14))}, want: []string{"l0 a"}},
		"the first adjacent ones":     {manifest: manifest.Manifest{L0: deltas(stored("a", 1), inline("b", 90), stored("c", 1), inline("d", 90))}, want: []string{"l1 abc"}},
		"inline rows after L1":        {manifest: manifest.Manifest{L0: deltas(stored("a", 1), stored("b", 1), inline("c", 101))}, want: []string{"l1 ab", "l0 c"}},
		"one merge to L0 at a time":   {manifest: manifest.Manifest{L0: deltas(inline("a", 101))}, running: []job{{tier: manifest.TierL0}}},
		"L1 waits for L0":             {manifest: manifest.Manifest{L0: deltas(stored("a", 1), stored("b", 1))}, running: []job{{tier: manifest.TierL0}}},
		"L1 waits for a base":         {manifest: manifest.Manifest{L0: deltas(stored("a", 1), stored("b", 1))}, running: []job{{tier: manifest.TierBase}}},
		"L0 beside L1":                {manifest: manifest.Manifest{L0: deltas(stored("a", 1), inline("b", 101))}, running: []job{{manifest.TierL1, deltas(stored("a", 1))}}, want: []string{"l0 b"}},
		"L1 that is published":        {manifest: manifest.Manifest{L0: deltas(inline("b", 101))}, running: []job{{manifest.TierL1, deltas(stored("a", 1))}}, want: []string{"l0 b"}},
		"large deltas":                {manifest: manifest.Manifest{L1: deltas(stored("a", 10_001))}, want: []string{"base "}},
		"deltas of half a base":       {manifest: manifest.Manifest{BaseSnapshot: base, L1: deltas(stored("a", 15_000))}},
		"deltas of more than half":    {manifest: manifest.Manifest{BaseSnapshot: base, L1: deltas(stored("a", 15_000)), L0: deltas(stored("b", 1))}, want: []string{"base "}},
		"a damaged delta":             {manifest: manifest.Manifest{L0: deltas(stored("a", 1))}, unmergeable: true, want: []string{"base "}},
		"too many deltas":             {manifest: manifest.Manifest{L0: many}, want: []string{"base "}},
		"tasks in memory":             {manifest: manifest.Manifest{BaseSnapshot: base}, tasks: 2*10 + 10_000/taskBytes},
		"tasks that may be closed":    {manifest: manifest.Manifest{BaseSnapshot: base}, tasks: 2*10 + 10_000/taskBytes + 1, want: []string{"base "}},
		"inline rows beside a base":   {manifest: manifest.Manifest{L1: deltas(stored("a", 10_001)), L0: deltas(inline("b", 101))}, want: []string{"base ", "l0 b"}},
		"a base while one is written": {manifest: manifest.Manifest{L1: deltas(stored("a", 10_001))}, running: []job{{tier: manifest.TierBase}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, described(o.due(&tc.manifest, tc.running, tc.tasks, tc.unmergeable)))
		})
	}
}

func TestNegativeMaxInlineKeepsNoRowsInline(t *testing.T) {
	o := Options{MaxDeltas: 2, MaxInline: -1, MinBase: 10_000}
	require.Empty(t, o.due(&manifest.Manifest{L0: []manifest.Delta{stored("a", 1)}}, nil, 0, false))
	due := o.due(&manifest.Manifest{L0: []manifest.Delta{inline("a", 1)}}, nil, 0, false) // another build wrote this inline delta
	require.Equal(t, []string{"l0 a"}, described(due))
}

func TestFirstInline(t *testing.T) {
	for want, l0 := range map[string][]manifest.Delta{
		"a":  {inline("a", 1)},
		"ab": {inline("a", 1), inline("b", 1)},
		"cd": {stored("a", 1), inline("c", 6), inline("d", 1)},
		"e":  {inline("e", 7), inline("f", 1)},
		"gh": {inline("g", 100), inline("h", 1), stored("i", 1)},
		"b":  {stored("a", 1), inline("b", 1), stored("c", 1), inline("d", 1)},
		"bc": {stored("a", 1), inline("b", 1), inline("c", 1), stored("d", 1)},
	} {
		require.Equal(t, want, idsOf(firstInline(l0)))
	}
}

func TestIntoL1(t *testing.T) {
	of := func(sizes ...int64) (l1 []manifest.Delta) {
		for i, size := range sizes {
			l1 = append(l1, stored(string(rune('a'+i)), size))
		}
		return l1
	}
	for name, tc := range map[string]struct {
		l1   []manifest.Delta
		size int64 // the size of z, the only delta in L0
		want string
	}{
		"the first":                    {nil, 10, "z"},
		"fewer than fanIn":             {of(10, 10, 10), 10, "z"},
		"fanIn":                        {of(10, 10, 10, 10), 10, "abcdz"},
		"a larger one ends the search": {of(10, 11, 10, 10, 10), 10, "z"},
		"the newest ones":              {of(100, 10, 10, 10, 10), 10, "bcdez"},
		"a cascade":                    {of(50, 50, 50, 50, 10, 10, 10, 10), 10, "abcdefghz"},
		"too many":                     {make([]manifest.Delta, maxL1+1), 0, "z"},
	} {
		t.Run(name, func(t *testing.T) {
			got := intoL1(tc.l1, []manifest.Delta{stored("z", tc.size)})
			require.Equal(t, tc.want, idsOf(got))
			if len(tc.l1) > maxL1 {
				require.Len(t, got, len(tc.l1)+1, "all of them")
			}
		})
	}
}

func TestCutoff(t *testing.T) {
	o := Options{KeepEntries: time.Hour, KeepRuns: 24 * time.Hour}
	noon := event.At(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	id := func(hours int) string { return ids.AtTime(noon.Time().Add(time.Duration(hours) * time.Hour)) }
	earlier := manifest.BaseSnapshot{FoldSeq: 1, FoldTime: noon.Add(-time.Hour), EntriesFrom: id(-2), RunsFrom: id(-30)}
	for name, tc := range map[string]struct {
		base     manifest.BaseSnapshot
		foldTime event.Time
		complete string
		want     state.Cutoff
	}{
		"nothing is folded":         {complete: id(0), want: state.Cutoff{}},
		"listings are complete":     {foldTime: noon, complete: id(0), want: state.Cutoff{Entries: id(-1), Runs: id(-24)}},
		"listings are late":         {foldTime: noon, complete: id(-5), want: state.Cutoff{Entries: id(-5), Runs: id(-29)}},
		"a fold time far ahead":     {foldTime: noon.Add(100 * time.Hour), complete: id(0), want: state.Cutoff{Entries: id(0), Runs: id(-24)}},
		"never below the last base": {base: earlier, foldTime: noon, complete: id(-8), want: state.Cutoff{Entries: id(-2), Runs: id(-30)}},
		"above the last base":       {base: earlier, foldTime: noon, complete: id(0), want: state.Cutoff{Entries: id(-1), Runs: id(-24)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &manifest.Manifest{BaseSnapshot: tc.base, FoldTime: tc.foldTime, Watermarks: manifest.Watermarks{CompleteThrough: tc.complete}}
			if tc.foldTime != 0 {
				m.FoldSeq, tc.want.Seq, tc.want.Time = 7, 7, tc.foldTime
			}
			require.Equal(t, tc.want, o.cutoff(m))
		})
	}
}
