package backfill_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

var calendar = space.Calendar{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}

func asset(name string, s *space.Space, reads ...plan.Dep) plan.Asset {
	a := plan.Asset{Key: ids.AssetKey{Namespace: "t", Name: name}, Partitions: s, Reads: reads}
	for _, d := range reads {
		a.Deps = append(a.Deps, d.Asset)
	}
	return a
}

func reads(name string, op ...space.DimensionMap) plan.Dep {
	return plan.Dep{Asset: ids.AssetKey{Namespace: "t", Name: name}, Map: space.Map{Dimensions: op}}
}

func days() *space.Space { return space.Days("2025-01-01", "2025-03-31") }

func months() *space.Space {
	return space.New(space.Dimension{Name: "date", Kind: space.Monthly, Start: "2025-01", End: "2025-03"})
}

// whole returns a selection of all partitions of the given assets.
func whole(t require.TestingT, assets []plan.Asset) map[ids.AssetKey][]string {
	selected := map[ids.AssetKey][]string{}
	for i := range assets {
		keys, err := calendar.Declared(assets[i].Partitions, backfill.MaxCells)
		require.NoError(t, err)
		slices.Sort(keys)
		selected[assets[i].Key] = keys
	}
	return selected
}

func split(t require.TestingT, assets []plan.Asset, selected map[ids.AssetKey][]string, o backfill.Options) *backfill.Chunks {
	g, err := plan.NewGraph(assets)
	require.NoError(t, err)
	chunks, err := backfill.Split(g, calendar, selected, o)
	require.NoError(t, err)
	check(t, g, selected, chunks, o)
	return chunks
}

// check compares chunks with the definition: every selected partition is in one chunk, and reads only partitions
// of its own chunk or of earlier stages.
func check(t require.TestingT, g *plan.Graph, selected map[ids.AssetKey][]string, chunks *backfill.Chunks, o backfill.Options) {
	stageOf, chunkOf, total := map[string]int{}, map[string]int{}, 0
	stage := 0
	for i, list := range chunks.Lists {
		if stage < len(chunks.Stages) && int(chunks.Stages[stage]) == i {
			stage++
		}
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), max(4*o.Size, o.Size))
		require.True(t, slices.IsSortedFunc(list, func(a, b backfill.Cell) int {
			if a.Task < b.Task {
				return -1
			}
			return 1
		}))
		for _, cell := range list {
			_, twice := chunkOf[cell.Task]
			require.False(t, twice, "%s is in two chunks", cell.Task)
			stageOf[cell.Task], chunkOf[cell.Task] = stage, i
			require.True(t, slices.Contains(selected[cell.Asset], cell.Partition))
			total++
		}
	}
	want := 0
	for _, keys := range selected {
		want += len(keys)
	}
	require.Equal(t, want, total)
	readers := g.Readers(calendar)
	task := func(asset ids.AssetKey, key string) string {
		p, err := ids.ParsePartition(key)
		require.NoError(t, err)
		return ids.TaskKey(asset, p)
	}
	for key, keys := range selected {
		a, _ := g.Asset(key)
		for _, dep := range a.Deps {
			for _, k := range keys {
				image, err := readers.Reads(key, dep, k)
				require.NoError(t, err)
				if image.All {
					image.Keys = selected[dep]
				}
				for _, up := range image.Keys {
					if !slices.Contains(selected[dep], up) {
						continue
					}
					reader, read := task(key, k), task(dep, up)
					require.True(t, chunkOf[reader] == chunkOf[read] || stageOf[read] < stageOf[reader], "%s reads %s", reader, read)
				}
			}
		}
	}
}

func TestSplitKeepsDependentPartitionsTogether(t *testing.T) {
	assets := []plan.Asset{asset("raw", days()), asset("clean", days(), reads("raw")), asset("monthly", months(), reads("clean", space.DimensionMap{Dimension: "date", Op: space.Coarsen}))}
	chunks := split(t, assets, whole(t, assets), backfill.Options{Size: 50})
	require.Len(t, chunks.Lists, 3, "a chunk for each month: its days and the month itself")
	require.Empty(t, chunks.Stages)
	require.Equal(t, "t/clean[date=2025-01-01]", chunks.Lists[0][0].Task)
	require.Equal(t, []int32{63, 57, 63}, chunks.Sizes())

	newest := split(t, assets, whole(t, assets), backfill.Options{Size: 50, Newest: true})
	require.Equal(t, "t/clean[date=2025-03-01]", newest.Lists[0][0].Task)
}

func TestSplitPutsWindowsIntoLaterStage(t *testing.T) {
	window := space.DimensionMap{Dimension: "date", Op: space.Window, From: -6}
	assets := []plan.Asset{asset("raw", days()), asset("rolling", days(), reads("raw", window))}
	chunks := split(t, assets, whole(t, assets), backfill.Options{Size: 20})
	require.Equal(t, []int32{5}, chunks.Stages, "each day depends on six others, and so on: all raw days come first")
	require.Len(t, chunks.Lists, 10)
	require.Equal(t, "t/raw[date=2025-01-01]", chunks.Lists[0][0].Task)

	whole := split(t, assets, whole(t, assets), backfill.Options{Size: 200})
	require.Len(t, whole.Lists, 1, "the days fit into one chunk, whose run orders them")
}

func TestSplitPutsReadersOfAllIntoLaterStage(t *testing.T) {
	assets := []plan.Asset{asset("raw", nil), asset("clean", days(), reads("raw")), asset("report", nil, reads("clean")), asset("chart", nil, reads("report"))}
	chunks := split(t, assets, whole(t, assets), backfill.Options{Size: 30})
	require.Equal(t, []int32{1, 1 + 3}, chunks.Stages)
	require.Len(t, chunks.Lists[4], 2, "one partition that reads one other is in its chunk")
}

func TestSplitOrdersAssetThatReadsItself(t *testing.T) {
	before := space.DimensionMap{Dimension: "date", Op: space.Window, From: -1, To: -1}
	assets := []plan.Asset{asset("raw", days()), asset("balance", days(), reads("raw"), reads("balance", before))}
	chunks := split(t, assets, whole(t, assets), backfill.Options{Size: 20})
	require.Equal(t, "t/balance", chunks.Ordered.String())
	require.Len(t, chunks.Lists, 9)
	require.Len(t, chunks.Stages, 8, "every chunk is a stage")
	require.Equal(t, "t/balance[date=2025-01-01]", chunks.Lists[0][0].Task, "the oldest first, with what it reads")

	require.Zero(t, split(t, assets, whole(t, assets), backfill.Options{Size: 100}).Ordered, "one run orders its tasks itself")
	g, err := plan.NewGraph(assets)
	require.NoError(t, err)
	_, err = backfill.Split(g, calendar, whole(t, assets), backfill.Options{Size: 20, Newest: true})
	require.ErrorContains(t, err, "reads its own earlier partitions, so the oldest partitions must be materialized first")
}

func TestSplitRejectsTooManyChunks(t *testing.T) {
	a := asset("raw", space.Days("1960-01-01", "1990-12-31"))
	g, err := plan.NewGraph([]plan.Asset{a})
	require.NoError(t, err)
	selected := whole(t, []plan.Asset{a})
	_, err = backfill.Split(g, calendar, selected, backfill.Options{Size: 1})
	require.ErrorContains(t, err, "has 11323 chunks: at most 10000 are allowed: make them larger with --chunk 4")
	chunks, err := backfill.Split(g, calendar, selected, backfill.Options{})
	require.NoError(t, err)
	require.Len(t, chunks.Lists, 114)
	_, err = backfill.Split(g, calendar, nil, backfill.Options{})
	require.ErrorContains(t, err, "no partition is selected")
	_, err = backfill.Split(g, calendar, selected, backfill.Options{Size: event.MaxChunkCells + 1})
	require.ErrorContains(t, err, "must be 1 to 10000")
}

func TestDocumentKeepsChunks(t *testing.T) {
	assets := []plan.Asset{asset("raw", days()), asset("report", nil, reads("raw"))}
	chunks := split(t, assets, whole(t, assets), backfill.Options{Size: 40})
	data, sha, err := chunks.Encode()
	require.NoError(t, err)
	doc, err := backfill.Decode(data, sha)
	require.NoError(t, err)
	for i, list := range chunks.Lists {
		cells, err := doc.Chunk(int32(i))
		require.NoError(t, err)
		require.Equal(t, list, cells)
	}
	_, err = doc.Chunk(int32(len(chunks.Lists)))
	require.ErrorContains(t, err, "has no chunk 4: it has 4")
	data[len(data)-4] ^= 1
	_, err = backfill.Decode(data, sha)
	require.ErrorContains(t, err, "damaged")
}

func TestSplitRandomAssets(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var assets []plan.Asset
		for i := range rapid.IntRange(1, 5).Draw(r, "assets") {
			kind := rapid.IntRange(0, 2).Draw(r, "kind")
			a := asset(fmt.Sprintf("a%d", i), []*space.Space{days(), months(), nil}[kind])
			for j := range i {
				if rapid.IntRange(0, 2).Draw(r, "reads") > 0 {
					continue
				}
				d := reads(fmt.Sprintf("a%d", j))
				if kind == 0 && assets[j].Partitions.Time() != nil && assets[j].Partitions.Time().Kind == space.Daily && rapid.Bool().Draw(r, "window") {
					d = reads(fmt.Sprintf("a%d", j), space.DimensionMap{Dimension: "date", Op: space.Window, From: -int64(rapid.IntRange(0, 9).Draw(r, "back"))})
				}
				a.Reads, a.Deps = append(a.Reads, d), append(a.Deps, d.Asset)
			}
			if kind == 0 && rapid.IntRange(0, 3).Draw(r, "itself") == 0 {
				d := reads(fmt.Sprintf("a%d", i), space.DimensionMap{Dimension: "date", Op: space.Window, From: -int64(rapid.IntRange(1, 9).Draw(r, "back")), To: -1})
				a.Reads, a.Deps = append(a.Reads, d), append(a.Deps, d.Asset)
			}
			assets = append(assets, a)
		}
		selected := whole(r, assets)
		for key, keys := range selected {
			kept := slices.DeleteFunc(keys, func(string) bool { return rapid.IntRange(0, 9).Draw(r, "leave out") == 0 })
			if len(kept) == 0 {
				delete(selected, key)
			} else {
				selected[key] = kept
			}
		}
		if len(selected) == 0 {
			return
		}
		g, err := plan.NewGraph(assets)
		require.NoError(r, err)
		o := backfill.Options{Size: rapid.IntRange(1, 60).Draw(r, "size"), Newest: rapid.Bool().Draw(r, "newest")}
		chunks, err := backfill.Split(g, calendar, selected, o)
		if err != nil { // an asset that reads its own partitions cannot always be split
			require.Regexp(r, "so the oldest partitions must be materialized first|belongs to a later chunk", err.Error())
			return
		}
		check(r, g, selected, chunks, o)
	})
}
