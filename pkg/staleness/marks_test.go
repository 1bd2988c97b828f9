package staleness_test

import (
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// markedAssets returns the asset raw, with days, and assets whose partitions read the same day, all days, or the
// newest day of raw.
func markedAssets() []plan.Asset {
	daily := space.Days("2025-01-01", "2025-01-04")
	deps := []ids.AssetKey{key("raw")}
	return []plan.Asset{
		{Key: key("raw"), Partitions: daily},
		{Key: key("same"), Partitions: daily, Deps: deps},
		{Key: key("total"), Deps: deps},
		{Key: key("newest"), Deps: deps, Reads: []plan.Dep{{Asset: key("raw"), Map: space.Map{Op: space.Latest}}}},
	}
}

// TestI21MarksFollowDefinition compares the statuses of marked partitions with the definition, applied to
// each pair of partitions. By this definition, a hidden partition is missing, and its version is the fold sequence
// number of the mark.
func TestI21MarksFollowDefinition(t *testing.T) {
	all := markedAssets()
	g, err := plan.NewGraph(all)
	require.NoError(t, err)
	calendar := plan.Calendar{Now: time.Date(2025, 2, 1, 0, 0, 0, 0, time.UTC), Zone: calendar.Zone}
	rapid.Check(t, func(r *rapid.T) {
		rows, visible, marks := map[ids.AssetKey][]*state.Partition{}, map[ids.AssetKey][]*state.Partition{}, map[ids.AssetKey][]*state.Mark{}
		seq := rapid.Int64Range(1, 12)
		for i := range all {
			asset := all[i].Key
			partitions, err := calendar.Declared(all[i].Partitions, days)
			require.NoError(r, err)
			for _, partition := range partitions {
				if rapid.IntRange(0, 4).Draw(r, "missing") == 0 {
					continue
				}
				row := &state.Partition{
					AssetKey: asset.String(), PartitionKey: partition, MaterializationID: "m", RunID: rapid.SampledFrom([]string{"r1", "r2"}).Draw(r, "run"),
					VersionSeq: seq.Draw(r, "version"), InputsSeq: seq.Draw(r, "inputs"), MaterializedAt: event.At(calendar.Now),
				}
				rows[asset] = append(rows[asset], row)
				m := &state.Mark{
					AssetKey: asset.String(), PartitionKey: partition, MaterializationID: rapid.SampledFrom([]string{"m", "m", "older"}).Draw(r, "of"),
					Mark: rapid.SampledFrom([]string{"", event.MarkStale, event.MarkFresh, event.MarkMissing}).Draw(r, "mark"), MarkedSeq: seq.Draw(r, "marked"),
				}
				if m.Mark == event.MarkFresh {
					m.InputsSeq = seq.Draw(r, "declared")
				}
				if m.Mark != "" {
					marks[asset] = append(marks[asset], m)
				}
				if m.Mark != event.MarkMissing || m.MaterializationID != "m" {
					visible[asset] = append(visible[asset], row)
				}
			}
		}
		e := staleness.New(g, staleness.Data{
			Rows: func(asset ids.AssetKey) iter.Seq2[*state.Partition, error] {
				return func(yield func(*state.Partition, error) bool) {
					for _, row := range visible[asset] {
						if !yield(row, nil) {
							return
						}
					}
				}
			},
			Row: func(asset ids.AssetKey, partition string) (*state.Partition, error) {
				return rowOf(visible[asset], partition), nil
			},
			Marks:    func(asset ids.AssetKey) iter.Seq[*state.Mark] { return slices.Values(marks[asset]) },
			Calendar: calendar,
		})
		if rapid.Bool().Draw(r, "load") {
			require.NoError(r, e.Load(key("total")))
		}
		for i := range all {
			for _, p := range rows[all[i].Key] {
				x, err := e.Explain(all[i].Key, p.PartitionKey)
				require.NoError(r, err)
				require.Equal(r, expected(&all[i], p, rows[key("raw")], marks), x.Status, "%+v", p)
			}
		}
	})
}

// markedAs returns the mark of an output, or nil if the output has no mark of the given kind.
func markedAs(p *state.Partition, marks map[ids.AssetKey][]*state.Mark, as string) *state.Mark {
	for _, list := range marks {
		for _, m := range list {
			if m.AssetKey == p.AssetKey && m.PartitionKey == p.PartitionKey && m.MaterializationID == p.MaterializationID && m.Mark == as {
				return m
			}
		}
	}
	return nil
}

// expected returns the status of a partition according to the definition of staleness. The evaluation uses summaries of
// many partitions, but expected compares the partition with each of its inputs.
func expected(a *plan.Asset, p *state.Partition, raw []*state.Partition, marks map[ids.AssetKey][]*state.Mark) staleness.Status {
	inputs := p.InputsSeq
	if m := markedAs(p, marks, event.MarkFresh); m != nil {
		inputs = max(inputs, m.InputsSeq)
	}
	switch {
	case markedAs(p, marks, event.MarkMissing) != nil:
		return staleness.Missing
	case markedAs(p, marks, event.MarkStale) != nil:
		return staleness.Stale
	}
	for _, q := range image(a, p, raw, marks) {
		version, own := q.VersionSeq, q.Root() == p.Root() && q.VersionSeq < p.VersionSeq
		if m := markedAs(q, marks, event.MarkMissing); m != nil {
			version, own = m.MarkedSeq, false
		}
		if version > inputs && !own {
			return staleness.Stale
		}
	}
	return staleness.Fresh
}

// image returns the partitions that a partition reads, and the hidden partitions that it would read if they were
// visible.
func image(a *plan.Asset, p *state.Partition, raw []*state.Partition, marks map[ids.AssetKey][]*state.Mark) (read []*state.Partition) {
	switch a.Key {
	case key("same"):
		if q := rowOf(raw, p.PartitionKey); q != nil {
			read = append(read, q)
		}
	case key("total"):
		return raw
	case key("newest"): // the newest visible day, and the hidden days after it
		for _, q := range slices.Backward(raw) {
			read = append(read, q)
			if markedAs(q, marks, event.MarkMissing) == nil {
				break
			}
		}
	}
	return read
}
