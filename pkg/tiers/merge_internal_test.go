package tiers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// storedAt returns a delta that is stored in a file, and that contains the changes up to a revision.
func storedAt(id string, revision int64) manifest.Delta {
	d := stored(id, 1)
	d.Revision = revision
	return d
}

// manifestOf returns a manifest with a base of revision 2 and the given later deltas.
func manifestOf(l1, l0 []manifest.Delta) *manifest.Manifest {
	return &manifest.Manifest{
		Timeline: "t", Revision: 9, BaseSnapshot: manifest.BaseSnapshot{ID: "base", Revision: 2}, L1: l1, L0: l0,
	}
}

// finished returns a merge that has finished. The names of its files contain its id.
func finished(tier, id string, parts ...manifest.Delta) *merge {
	source := manifestOf(nil, nil)
	source.Revision = 7
	r := &merge{job: job{tier, parts}, source: source, id: id}
	delta := stored(id, 1)
	delta.Files[0].Key = manifest.StateKey(source.Domain(), "runs", tier, id)
	delta.Revision = r.through()
	r.result.Store(&merged{Delta: delta})
	r.done.Store(true)
	return r
}

const resultID = "01KTAXJ9X6N3Q2Y8C4V5B6M7P8"

func TestMergeIsReadyIfManifestHasItsDeltas(t *testing.T) {
	a, b, c := storedAt("a", 4), storedAt("b", 5), storedAt("c", 6)
	list := func(deltas ...manifest.Delta) []manifest.Delta { return deltas }
	l1 := finished(manifest.TierL1, resultID, a, b)
	base := finished(manifest.TierBase, resultID)
	for name, tc := range map[string]struct {
		merge *merge
		to    *manifest.Manifest
		edit  func(*manifest.Manifest)
		want  bool
	}{
		"the deltas are there":             {l1, manifestOf(list(a), list(b, c)), nil, true},
		"another merge replaced the last":  {l1, manifestOf(list(a), list(c)), nil, false},
		"another merge replaced the first": {l1, manifestOf(nil, list(b, c)), nil, false},
		"a base contains the first":        {l1, manifestOf(nil, list(b, c)), func(m *manifest.Manifest) { m.BaseSnapshot.Revision = 4 }, true},
		"a base contains all":              {l1, manifestOf(nil, list(c)), func(m *manifest.Manifest) { m.BaseSnapshot.Revision = 5 }, false},
		"another timeline":                 {l1, manifestOf(list(a), list(b, c)), func(m *manifest.Manifest) { m.Timeline = "u" }, false},
		"files below the floor":            {l1, manifestOf(list(a), list(b, c)), func(m *manifest.Manifest) { m.OrphanFloor = resultID + "0" }, false},
		"files from the floor on":          {l1, manifestOf(list(a), list(b, c)), func(m *manifest.Manifest) { m.OrphanFloor = resultID }, true},
		"no manifest":                      {l1, nil, nil, false},
		"the same base":                    {base, manifestOf(nil, list(c)), nil, true},
		"another base":                     {base, manifestOf(nil, list(c)), func(m *manifest.Manifest) { m.BaseSnapshot.ID = "other" }, false},
		"a base of a later revision":       {base, manifestOf(nil, nil), func(m *manifest.Manifest) { m.Revision = 6 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.edit != nil {
				tc.edit(tc.to)
			}
			require.Equal(t, tc.want, tc.merge.ready(tc.to))
			require.Equal(t, tc.want, tc.merge.pending(tc.to))
		})
	}
}

func TestMergeIsPendingWhileItRuns(t *testing.T) {
	r := &merge{job: job{tier: manifest.TierBase}, source: manifestOf(nil, nil)}
	require.True(t, r.pending(manifestOf(nil, nil)))
	require.False(t, r.ready(manifestOf(nil, nil)))
	r.done.Store(true)
	require.False(t, r.pending(manifestOf(nil, nil)), "it has failed")
}

func TestMergeReplacesItsDeltasInPlace(t *testing.T) {
	a, b, c, d := storedAt("a", 4), storedAt("b", 5), storedAt("c", 6), storedAt("d", 8)
	list := func(deltas ...manifest.Delta) []manifest.Delta { return deltas }
	for name, tc := range map[string]struct {
		merge  *merge
		to     *manifest.Manifest
		l1, l0 string
	}{
		"to L0":                   {finished(manifest.TierL0, "X", b, c), manifestOf(list(a), list(b, c, d)), "a", "Xd"},
		"to L0, between others":   {finished(manifest.TierL0, "X", c), manifestOf(list(a), list(b, c, d)), "a", "bXd"},
		"to L1":                   {finished(manifest.TierL1, "X", b, c), manifestOf(list(a), list(b, c, d)), "aX", "d"},
		"to L1, with one of L1":   {finished(manifest.TierL1, "X", a, b), manifestOf(list(a), list(b, c)), "X", "c"},
		"a base of revision 7":    {finished(manifest.TierBase, "X"), manifestOf(list(a), list(b, c, d)), "", "d"},
		"after a base of the old": {finished(manifest.TierL1, "X", a, b), manifestOf(nil, list(b, c)), "X", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.merge.apply(tc.to, 1)
			require.Equal(t, tc.l1, idsOf(tc.to.L1))
			require.Equal(t, tc.l0, idsOf(tc.to.L0))
		})
	}
}

func TestBaseRecordsItsCutoffAndHistory(t *testing.T) {
	r := finished(manifest.TierBase, resultID)
	result := *r.result.Load()
	result.cutoff = state.Cutoff{Seq: 3, Time: 4, Entries: "e", Runs: "r"}
	result.history = map[string]manifest.File{"runs": {Key: "new"}, "tasks": {}}
	r.result.Store(&result)
	m := manifestOf(nil, nil)
	m.History = map[string]manifest.File{"tasks": {Key: "old"}, "attempts": {Key: "kept"}}
	r.apply(m, event.Time(5))
	require.Equal(t, manifest.BaseSnapshot{
		ID: resultID, Revision: 7, PublishedAt: 5, Files: result.Files,
		FoldSeq: 3, FoldTime: 4, EntriesFrom: "e", RunsFrom: "r",
	}, m.BaseSnapshot)
	require.Equal(t, map[string]manifest.File{"runs": {Key: "new"}, "attempts": {Key: "kept"}}, m.History,
		"a table without rows has no index")
}
