package staleness_test

import (
	"cmp"
	"fmt"
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

const days = 4

func key(name string) ids.AssetKey { return ids.AssetKey{Namespace: "a", Name: name} }

func day(n int) string {
	return ids.Partition{"date": fmt.Sprintf("2025-01-%02d", n+1)}.Key()
}

// assets returns raw (daily) → clean (daily) → total (unpartitioned) → copy (unpartitioned). total also reads raw.
func assets() []plan.Asset {
	daily := space.Days("2025-01-01", "2025-01-04")
	return []plan.Asset{
		{Key: key("raw"), Partitions: daily},
		{Key: key("clean"), Partitions: daily, Deps: []ids.AssetKey{key("raw")}},
		{Key: key("total"), Deps: []ids.AssetKey{key("clean"), key("raw")}},
		{Key: key("copy"), Deps: []ids.AssetKey{key("total")}},
	}
}

func evaluation(t require.TestingT, assets []plan.Asset, rows map[ids.AssetKey][]*state.Partition, accepted map[string][]string) *staleness.Evaluation {
	g, err := plan.NewGraph(assets)
	require.NoError(t, err)
	return staleness.New(g, staleness.Data{
		Rows: func(asset ids.AssetKey) iter.Seq2[*state.Partition, error] {
			return func(yield func(*state.Partition, error) bool) {
				for _, row := range rows[asset] {
					if !yield(row, nil) {
						return
					}
				}
			}
		},
		Row: func(asset ids.AssetKey, partition string) (*state.Partition, error) {
			return rowOf(rows[asset], partition), nil
		},
		Accepted: func(_ ids.AssetKey, code string) ([]string, error) { return accepted[code], nil },
		Calendar: plan.Calendar{
			Now: time.Date(2025, 2, 1, 0, 0, 0, 0, time.UTC), Zone: calendar.Zone,
		},
	})
}

func rowOf(rows []*state.Partition, partition string) *state.Partition {
	for _, row := range rows {
		if row.PartitionKey == partition {
			return row
		}
	}
	return nil
}

// stale reports whether p is stale because of one of the upstream partitions. It applies the definition (see the
// package comment) to p and each of them.
func stale(p *state.Partition, upstream []*state.Partition) bool {
	for _, q := range upstream {
		leftOut := p.LeftOut > 0 && q.VersionSeq > p.LeftOut || q.Quality == state.Approved
		same := q.Root() == p.Root()
		if p.LeftOut > 0 && p.InputsSeq == 0 {
			same = q.RunID == p.RunID
		}
		own := same && q.VersionSeq < p.VersionSeq && !leftOut
		if q.VersionSeq > p.InputsSeq && !own {
			return true
		}
	}
	return false
}

// made contains the times at which the tests make outputs: before, at and after the ends of days.
var made = []time.Time{
	time.Date(2024, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(2025, 1, 2, 23, 59, 59, 0, time.UTC), time.Date(2025, 1, 3, 0, 0, 0, 0, time.UTC),
	time.Date(2025, 1, 20, 0, 0, 0, 0, time.UTC), time.Date(2025, 1, 21, 0, 0, 0, 0, time.UTC),
}

// endOf returns the end of the day of a partition.
func endOf(key string) time.Time {
	for n := range days {
		if key == day(n) {
			return time.Date(2025, 1, n+2, 0, 0, 0, 0, time.UTC)
		}
	}
	panic(key)
}

// TestPartitionMadeEarlyIsStale evaluates, at several later times, a day that a run made at noon of that day.
func TestPartitionMadeEarlyIsStale(t *testing.T) {
	daily := space.Days("2025-01-01", "")
	daily.Dimensions[0].ReadyAfterSec = 3600
	g, err := plan.NewGraph([]plan.Asset{{Key: key("raw"), Partitions: daily}})
	require.NoError(t, err)
	status := func(requested, now time.Time) staleness.Status {
		row := &state.Partition{
			AssetKey: "a/raw", PartitionKey: day(2), RunID: ids.AtTime(requested), VersionSeq: 1,
			MaterializedAt: event.At(time.Date(2025, 1, 5, 0, 0, 0, 0, time.UTC)),
		}
		e := staleness.New(g, staleness.Data{
			Rows: func(ids.AssetKey) iter.Seq2[*state.Partition, error] {
				return func(yield func(*state.Partition, error) bool) { yield(row, nil) }
			},
			Row:      func(ids.AssetKey, string) (*state.Partition, error) { return row, nil },
			Calendar: plan.Calendar{Now: now, Zone: calendar.Zone},
		})
		x, err := e.Explain(key("raw"), day(2))
		require.NoError(t, err)
		require.Equal(t, x.Status == staleness.Stale, x.Early)
		return x.Status
	}
	ready := time.Date(2025, 1, 4, 1, 0, 0, 0, time.UTC) // an hour after the end of the third day
	noon := time.Date(2025, 1, 3, 12, 0, 0, 0, time.UTC)
	require.Equal(t, staleness.Fresh, status(noon, noon.Add(time.Hour)), "the day has not ended")
	require.Equal(t, staleness.Fresh, status(noon, ready.Add(-time.Second)), "the day is not ready")
	require.Equal(t, staleness.Stale, status(noon, ready))
	require.Equal(t, staleness.Stale, status(noon, ready.AddDate(1, 0, 0)))
	require.Equal(t, staleness.Stale, status(ready.Add(-time.Second), ready))
	require.Equal(t, staleness.Fresh, status(ready, ready))
	require.Equal(t, staleness.Fresh, status(ready, ready.AddDate(1, 0, 0)))
}

// TestManyPartitionsLeaveOtherAssetsAlone evaluates a project in which one asset has more partitions than can be
// listed. The other assets must still be evaluated.
func TestManyPartitionsLeaveOtherAssetsAlone(t *testing.T) {
	quarters := func(start string) *space.Space {
		return space.New(space.Dimension{Name: "time", Kind: space.Every, Minutes: 1, Start: start, End: "2025-01-01T00:00"})
	}
	all := []plan.Asset{
		{Key: key("minutes"), Partitions: quarters("2020-01-01T00:00")},
		{Key: key("other")},
		{Key: key("reader"), Deps: []ids.AssetKey{key("minutes")}},
		{Key: key("short"), Partitions: quarters("2024-10-01T00:00")},
	}
	e := evaluation(t, all, nil, nil)
	chosen, _, err := e.ToRun(map[ids.AssetKey]bool{key("minutes"): true, key("other"): true, key("reader"): true, key("short"): true})
	require.NoError(t, err)
	require.Equal(t, []string{""}, chosen[key("other")])
	require.Equal(t, 92*24*60+1, len(chosen[key("short")]), "more than 100,000") //nolint:testifylint // Len would print all keys
	require.Empty(t, chosen[key("minutes")])
	require.Len(t, e.Unlisted(), 1)
	require.ErrorContains(t, e.Unlisted()[0], "a/minutes: 2020-01-01T00:00Z to 2025-01-01T00:00Z is 2630881 periods; at most 1000000 can be listed")
}

func TestEvaluationEqualsDefinition(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rows := map[ids.AssetKey][]*state.Partition{}
		seq := rapid.Permutation(numbers(40)).Draw(r, "versions")
		draw := func(asset ids.AssetKey, partition string) {
			if rapid.IntRange(0, 4).Draw(r, "missing") == 0 {
				return
			}
			row := &state.Partition{
				AssetKey: asset.String(), PartitionKey: partition, VersionSeq: seq[0],
				Code:    rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(r, "code"),
				RunID:   rapid.SampledFrom([]string{"own", "other"}).Draw(r, "run"),
				RootRun: rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "root"),
			}
			seq = seq[1:]
			row.InputsSeq = rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 40)).Draw(r, "inputs")
			row.Quality = rapid.SampledFrom([]string{"", state.Passed, state.Approved}).Draw(r, "quality")
			row.LeftOut = rapid.SampledFrom([]int64{0, 0, 5, 20, 35}).Draw(r, "left out")
			row.MaterializedAt = event.At(rapid.SampledFrom(made).Draw(r, "made"))
			rows[asset] = append(rows[asset], row)
		}
		for n := range days {
			draw(key("raw"), day(n))
			draw(key("clean"), day(n))
		}
		draw(key("total"), "")
		draw(key("copy"), "")
		all := assets()
		for i := range all {
			all[i].Code = rapid.SampledFrom([]string{"", "1", "2"}).Draw(r, "current")
		}
		e := evaluation(r, all, rows, map[string][]string{"2": {"3"}})
		for i := range all {
			partitions, err := e.Partitions(all[i].Key)
			require.NoError(r, err)
			for _, p := range partitions {
				row := rowOf(rows[all[i].Key], p.Key)
				if row == nil {
					require.Equal(r, staleness.Missing, p.Status)
					continue
				}
				want := staleness.Fresh
				current := map[string]bool{"1": all[i].Code == "1", "2": all[i].Code == "2", "3": all[i].Code == "2"}
				if all[i].Code != "" && row.Code != "" && !current[row.Code] {
					want = staleness.Stale
				}
				var upstream []*state.Partition
				for _, dep := range all[i].Deps {
					for _, q := range rows[dep] {
						if all[i].Partitions == nil || q.PartitionKey == p.Key {
							upstream = append(upstream, q)
						}
					}
				}
				early := all[i].Partitions != nil && row.MaterializedAt.Time().Before(endOf(p.Key))
				if early || stale(row, upstream) {
					want = staleness.Stale
				}
				require.Equal(r, want, p.Status, "%+v", row)
				x, err := e.Explain(all[i].Key, p.Key)
				require.NoError(r, err)
				require.Equal(r, want, x.Status)
				require.Equal(r, want == staleness.Stale, x.Changed || x.Early || len(x.Newer) > 0)
				require.Equal(r, early, x.Early)
				if want == staleness.Fresh {
					require.Equal(r, outdatedBehind(r, e, all, i, p.Key), len(x.Via) > 0)
				}
				alone, err := evaluation(r, all, rows, map[string][]string{"2": {"3"}}).Explain(all[i].Key, p.Key)
				require.NoError(r, err)
				require.Equal(r, x, alone, "read row by row")
			}
		}
	})
}

func numbers(n int64) []int64 {
	var list []int64
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// history simulates runs that read and write versions, and records which versions each output has read.
type history struct {
	seq              int64
	runs             int
	visible, blocked map[string]*output
}

type output struct {
	row  *state.Partition
	read map[string]int64 // versions by partition
}

// outdatedBehind reports whether a partition reads a stale or missing partition, directly or through fresh ones. It
// follows every path.
func outdatedBehind(t require.TestingT, e *staleness.Evaluation, all []plan.Asset, reader int, partition string) bool {
	for i := range all[:reader] {
		if !slices.Contains(all[reader].Deps, all[i].Key) {
			continue
		}
		upstream, err := e.Partitions(all[i].Key)
		require.NoError(t, err)
		for _, q := range upstream {
			reads := all[reader].Partitions == nil || q.Key == partition
			if reads && (q.Status != staleness.Fresh || outdatedBehind(t, e, all, i, q.Key)) {
				return true
			}
		}
	}
	return false
}

// TestNeverFreshWhenStale executes overlapping runs and retries. Some tasks run although an upstream task did not
// succeed. The test compares the status of each partition with the versions that its task has read.
func TestNeverFreshWhenStale(t *testing.T) {
	all := assets()
	rapid.Check(t, func(r *rapid.T) {
		h := &history{visible: map[string]*output{}, blocked: map[string]*output{}}
		var chains []*chain
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			h.seq++
			if len(chains) == 0 || rapid.IntRange(0, 4).Draw(r, "plan") == 0 {
				chains = append(chains, h.plan())
				continue
			}
			c := rapid.SampledFrom(chains).Draw(r, "chain")
			if rapid.IntRange(0, 5).Draw(r, "retry") == 0 {
				h.retry(c, rapid.SliceOfDistinct(rapid.SampledFrom(cells(all)), rapid.ID).Draw(r, "repeated"))
				continue
			}
			asset := rapid.IntRange(0, len(all)-1).Draw(r, "asset")
			partition := ""
			if all[asset].Partitions != nil {
				partition = day(rapid.IntRange(0, days-1).Draw(r, "day"))
			}
			switch rapid.IntRange(0, 4).Draw(r, "end") {
			case 0:
				h.block(c, &all[asset], partition)
			case 1:
				h.approve(&all[asset], partition)
			default:
				h.succeed(c, &all[asset], partition)
			}
		}
		rows := map[ids.AssetKey][]*state.Partition{}
		for i := range all {
			for _, partition := range append([]string{""}, day(0), day(1), day(2), day(3)) {
				if out := h.visible[cell(all[i].Key, partition)]; out != nil {
					rows[all[i].Key] = append(rows[all[i].Key], out.row)
				}
			}
		}
		e := evaluation(r, all, rows, nil)
		for i := range all {
			partitions, err := e.Partitions(all[i].Key)
			require.NoError(r, err)
			for _, p := range partitions {
				row := rowOf(rows[all[i].Key], p.Key)
				if row == nil {
					continue
				}
				outdated := h.outdated(&all[i], p.Key)
				if row.Incomplete() && !outdated {
					continue // the row does not say which inputs were not read
				}
				require.Equal(r, outdated, p.Status == staleness.Stale, "%+v", row)
			}
		}
	})
}

func cell(asset ids.AssetKey, partition string) string { return asset.String() + partition }

// cells returns all partitions of all assets.
func cells(all []plan.Asset) (names []string) {
	for i := range all {
		for _, partition := range []string{"", day(0), day(1), day(2), day(3)} {
			if (partition == "") == (all[i].Partitions == nil) {
				names = append(names, cell(all[i].Key, partition))
			}
		}
	}
	return names
}

// chain is a run, together with its retries.
type chain struct {
	root, run string // the first and the last run of the chain
	inputs    int64
	seen      map[string]int64 // the versions that were visible when the run was planned
	made      map[string]int64 // the versions that the chain has made
	failed    map[string]bool  // the partitions that the last run must repeat and has not yet repeated
}

func (h *history) plan() *chain {
	c := &chain{root: h.nextRun(), inputs: h.seq, seen: map[string]int64{}, made: map[string]int64{}}
	c.run = c.root
	for name, out := range h.visible {
		c.seen[name] = out.row.VersionSeq
	}
	return c
}

func (h *history) nextRun() string {
	h.runs++
	return fmt.Sprintf("run%03d", h.runs)
}

// retry begins a new run that repeats some partitions. Tasks of the new run do not read such a partition until its
// repetition has succeeded.
func (h *history) retry(c *chain, repeated []string) {
	c.run, c.failed = h.nextRun(), map[string]bool{}
	for _, name := range repeated {
		c.failed[name] = true
	}
}

// succeed makes an output. Its task reads the versions that its chain has made so far. If the chain has made no version
// of an input, the task reads the version that was visible when the chain was planned. The output becomes visible
// unless an output of a later run is visible.
func (h *history) succeed(c *chain, a *plan.Asset, partition string) {
	name := cell(a.Key, partition)
	out := h.make(c, a, partition)
	c.made[name] = h.seq
	delete(c.failed, name)
	if old := h.visible[name]; old == nil || old.row.RunID <= c.run {
		h.visible[name] = out
	}
}

// block makes an output that waits for an approval. Tasks of its own chain do not read it.
func (h *history) block(c *chain, a *plan.Asset, partition string) {
	out := h.make(c, a, partition)
	out.row.LeftOut = cmp.Or(out.row.LeftOut, h.seq)
	h.blocked[cell(a.Key, partition)] = out
}

// approve makes a blocked output visible, unless an output of a later run is visible.
func (h *history) approve(a *plan.Asset, partition string) {
	name := cell(a.Key, partition)
	out := h.blocked[name]
	if out == nil || h.visible[name] != nil && h.visible[name].row.RunID > out.row.RunID {
		return
	}
	delete(h.blocked, name)
	out.row.VersionSeq, out.row.Quality = h.seq, state.Approved
	h.visible[name] = out
}

// make returns an output of a chain.
func (h *history) make(c *chain, a *plan.Asset, partition string) *output {
	out := &output{read: map[string]int64{}, row: &state.Partition{
		AssetKey: a.Key.String(), PartitionKey: partition, RunID: c.run, RootRun: c.root, VersionSeq: h.seq, InputsSeq: c.inputs,
	}}
	for _, name := range inputs(a, partition) {
		if c.failed[name] {
			out.row.InputsSeq, out.row.LeftOut = 0, h.seq // the fold sets these values
			continue
		}
		out.read[name] = c.seen[name]
		if version := c.made[name]; version > 0 {
			out.read[name] = version
		}
	}
	return out
}

func inputs(a *plan.Asset, partition string) []string {
	var names []string
	for _, dep := range a.Deps {
		switch {
		case dep == key("total"):
			names = append(names, cell(dep, ""))
		case a.Partitions != nil:
			names = append(names, cell(dep, partition))
		default:
			for n := range days {
				names = append(names, cell(dep, day(n)))
			}
		}
	}
	return names
}

// outdated reports whether a visible output has read other versions than those that are visible now.
func (h *history) outdated(a *plan.Asset, partition string) bool {
	out := h.visible[cell(a.Key, partition)]
	for _, name := range inputs(a, partition) {
		if q := h.visible[name]; q != nil && q.row.VersionSeq != out.read[name] {
			return true
		}
	}
	return false
}

// The newest period of raw lacks a region. So ToRun must not choose the reader of raw, which requires complete
// inputs.
func TestToRunWaitsForCompleteLatestPeriod(t *testing.T) {
	raw := plan.Asset{Key: key("raw"), Partitions: space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-02"},
		space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}})}
	newest := plan.Asset{Key: key("newest"), Deps: []ids.AssetKey{raw.Key}, Reads: []plan.Dep{{Asset: raw.Key, Map: space.Map{Op: space.Latest}}}}
	rows := map[ids.AssetKey][]*state.Partition{}
	for _, of := range [][2]string{{"2025-01-01", "eu"}, {"2025-01-01", "us"}, {"2025-01-02", "eu"}} {
		rows[raw.Key] = append(rows[raw.Key], &state.Partition{
			AssetKey: "a/raw", PartitionKey: ids.Partition{"date": of[0], "region": of[1]}.Key(), RunID: "1", VersionSeq: 1,
		})
	}
	e := evaluation(t, []plan.Asset{newest, raw}, rows, nil)
	chosen, blocked, err := e.ToRun(map[ids.AssetKey]bool{newest.Key: true})
	require.NoError(t, err)
	require.Empty(t, chosen)
	require.Equal(t, map[ids.AssetKey]int{newest.Key: 1}, blocked)
	chosen, _, err = e.ToRun(map[ids.AssetKey]bool{newest.Key: true, raw.Key: true})
	require.NoError(t, err)
	require.Equal(t, []string{""}, chosen[newest.Key], "the run makes the missing region")
}

func TestToRunIncludesReadersOfStalePartitions(t *testing.T) {
	row := func(asset, partition string, version, inputs int64) *state.Partition {
		return &state.Partition{AssetKey: "a/" + asset, PartitionKey: partition, RunID: fmt.Sprint(version), VersionSeq: version, InputsSeq: inputs}
	}
	rows := map[ids.AssetKey][]*state.Partition{
		key("raw"):   {row("raw", day(0), 1, 0), row("raw", day(1), 9, 0)},
		key("clean"): {row("clean", day(0), 2, 1), row("clean", day(1), 3, 2)},
		key("total"): {row("total", "", 10, 9)},
		key("copy"):  {row("copy", "", 11, 10)},
	}
	e := evaluation(t, assets(), rows, nil)
	counts, err := e.Count(key("clean"))
	require.NoError(t, err)
	require.Equal(t, staleness.Counts{Fresh: 1, Stale: 1, Missing: 2}, counts)
	selected := map[ids.AssetKey]bool{key("clean"): true, key("total"): true, key("copy"): true}
	chosen, blocked, err := e.ToRun(selected)
	require.NoError(t, err)
	require.Equal(t, map[ids.AssetKey]int{key("clean"): 2, key("total"): 1}, blocked, "days without raw data, and the total of all days")
	require.Equal(t, map[ids.AssetKey][]string{key("clean"): {day(1)}}, chosen)
	e.AllowIncomplete(true)
	chosen, blocked, err = e.ToRun(selected)
	require.NoError(t, err)
	require.Equal(t, map[ids.AssetKey]int{key("clean"): 2}, blocked, "days without raw data")
	require.Equal(t, map[ids.AssetKey][]string{key("clean"): {day(1)}, key("total"): {""}, key("copy"): {""}}, chosen)
	x, err := e.Explain(key("total"), "")
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, x.Status)
	require.Equal(t, key("clean"), x.Via[0].Asset)
	require.Equal(t, day(1), x.Via[0].Key)
	require.Equal(t, 1, x.Via[0].Count, "the stale partition")
	require.Equal(t, staleness.Stale, x.Via[0].Status)
	require.Equal(t, 2, x.Via[1].Count, "the missing partitions count apart")
	require.Equal(t, staleness.Missing, x.Via[1].Status)
	require.False(t, x.Indirect)
	x, err = e.Explain(key("copy"), "")
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, x.Status)
	require.True(t, x.Indirect, "copy reads clean only through total")
	require.Len(t, x.Via, 3, "stale and missing days of clean, missing days of raw")
	require.Equal(t, key("clean"), x.Via[0].Asset)
	require.Equal(t, staleness.Stale, x.Via[0].Status)
	require.Equal(t, day(1), x.Via[0].Row.PartitionKey)
	require.False(t, x.Unsearched)
}

// TestExplainSearchesBehindFreshPartitions explains the last asset of a chain whose first asset is stale.
func TestExplainSearchesBehindFreshPartitions(t *testing.T) {
	const length = 20
	var chain []plan.Asset
	rows := map[ids.AssetKey][]*state.Partition{}
	for n := range length {
		a := plan.Asset{Key: key(fmt.Sprintf("a%02d", n)), Code: "current"}
		if n > 0 {
			a.Deps = []ids.AssetKey{chain[n-1].Key}
		}
		chain = append(chain, a)
		rows[a.Key] = []*state.Partition{{AssetKey: a.Key.String(), RunID: fmt.Sprint(n), Code: "current", VersionSeq: int64(2*n + 2), InputsSeq: int64(2*n + 1)}}
	}
	last := chain[length-1].Key
	x, err := evaluation(t, chain, rows, nil).Explain(last, "")
	require.NoError(t, err)
	require.Empty(t, x.Via)
	require.False(t, x.Indirect)
	rows[chain[0].Key][0].Code = "old"
	x, err = evaluation(t, chain, rows, nil).Explain(last, "")
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, x.Status)
	require.True(t, x.Indirect)
	require.Len(t, x.Via, 1)
	require.Equal(t, chain[0].Key, x.Via[0].Asset)
}

// TestExplainSearchesBoundedly explains a partition with more indirect inputs than the search visits.
func TestExplainSearchesBoundedly(t *testing.T) {
	minutes := space.New(space.Dimension{Name: "n", Kind: space.Static})
	var keys []*state.Partition
	for n := range 11_000 {
		value := fmt.Sprintf("%05d", n)
		minutes.Dimensions[0].Values = append(minutes.Dimensions[0].Values, value)
		keys = append(keys, &state.Partition{AssetKey: "a/raw", PartitionKey: ids.Partition{"n": value}.Key(), RunID: "1", VersionSeq: 1})
	}
	all := []plan.Asset{
		{Key: key("raw"), Partitions: minutes},
		{Key: key("total"), Deps: []ids.AssetKey{key("raw")}},
		{Key: key("copy"), Deps: []ids.AssetKey{key("total")}},
	}
	row := func(name string, version, inputs int64) []*state.Partition {
		return []*state.Partition{{AssetKey: "a/" + name, RunID: fmt.Sprint(version), VersionSeq: version, InputsSeq: inputs}}
	}
	rows := map[ids.AssetKey][]*state.Partition{key("raw"): keys, key("total"): row("total", 2, 1), key("copy"): row("copy", 3, 2)}
	x, err := evaluation(t, all, rows, nil).Explain(key("copy"), "")
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, x.Status)
	require.True(t, x.Unsearched)
}
