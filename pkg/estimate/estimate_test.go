package estimate_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/estimate"
)

// seconds returns samples with the given durations in seconds. The number of rows of a sample equals its duration.
func seconds(durations ...int64) []estimate.Sample {
	var samples []estimate.Sample
	for _, d := range durations {
		samples = append(samples, estimate.Sample{Duration: time.Duration(d) * time.Second, Rows: d, Bytes: 10 * d})
	}
	return samples
}

func TestOfUsesMedianAnd95thPercentile(t *testing.T) {
	past := map[string][]estimate.Sample{"a/b": seconds(9, 1, 3, 2, 4)}
	e := estimate.Of([]estimate.Task{{Asset: "a/b"}, {Asset: "a/b", After: []int{0}}}, past, estimate.Limits{})
	require.Equal(t, []estimate.Asset{{Asset: "a/b", Tasks: 2, Partitions: 2, Samples: 5, Median: seconds(3)[0], P95: seconds(9)[0]}}, e.Assets)
	require.Equal(t, 6*time.Second, e.Work)
	require.Equal(t, int64(6), e.Rows)
	require.Equal(t, int64(60), e.Bytes)
	require.Equal(t, 6*time.Second, e.Makespan)
	require.Equal(t, 18*time.Second, e.MakespanP95)
}

// A batch of 50 partitions and a task of one partition are compared by what they need per partition.
func TestOfScalesWithPartitionsOfBatch(t *testing.T) {
	past := map[string][]estimate.Sample{"a/b": {
		{Partitions: 50, Duration: 10 * time.Second, Rows: 500, Bytes: 50, CPU: estimate.Unknown, Memory: 100},
		{Duration: 300 * time.Millisecond, Rows: 20, Bytes: 1, CPU: estimate.Unknown, Memory: 2},
		{Partitions: 2, Duration: 200 * time.Millisecond, Rows: 2, Bytes: 2, CPU: estimate.Unknown, Memory: 4},
	}}
	tasks := []estimate.Task{{Asset: "a/b", Partitions: 100}, {Asset: "a/b", Partitions: 50}}
	e := estimate.Of(tasks, past, estimate.Limits{Tasks: 2})
	require.Equal(t, 2, e.Tasks)
	require.Equal(t, 150, e.Assets[0].Partitions)
	require.Equal(t, estimate.Sample{Duration: 15 * time.Second, Rows: 750, Bytes: 75, CPU: estimate.Unknown, Memory: 150}, e.Assets[0].Median)
	require.Equal(t, 30*time.Second, e.Work)
	require.Equal(t, int64(1500), e.Rows)
	require.Equal(t, 20*time.Second, e.Makespan, "the larger batch")
	require.Equal(t, 30*time.Second, e.MakespanP95)
	require.Equal(t, 200*time.Millisecond, estimate.Of([]estimate.Task{{Asset: "a/b"}}, past, estimate.Limits{}).Work)
}

func TestOfReportsAssetsWithoutPast(t *testing.T) {
	e := estimate.Of([]estimate.Task{{Asset: "a/new"}, {Asset: "a/old"}, {Asset: "a/new"}}, map[string][]estimate.Sample{"a/old": seconds(5)}, estimate.Limits{})
	require.Equal(t, 3, e.Tasks)
	require.Equal(t, 2, e.Unknown)
	require.Equal(t, estimate.Asset{Asset: "a/new", Tasks: 2, Partitions: 2}, e.Assets[0])
	require.Equal(t, 5*time.Second, e.Makespan)
}

func TestOfSchedulesUnderLimits(t *testing.T) {
	past := map[string][]estimate.Sample{"a/one": seconds(1), "a/ten": seconds(10)}
	var tasks []estimate.Task
	for range 6 {
		tasks = append(tasks, estimate.Task{Asset: "a/one", Pool: "p"})
	}
	tasks = append(tasks, estimate.Task{Asset: "a/ten", Priority: 1})
	span := func(l estimate.Limits) time.Duration { return estimate.Of(tasks, past, l).Makespan }
	require.Equal(t, 10*time.Second, span(estimate.Limits{}))
	require.Equal(t, 16*time.Second, span(estimate.Limits{Tasks: 1}))
	require.Equal(t, 10*time.Second, span(estimate.Limits{Tasks: 2, Pools: map[string]int{"p": 2}}), "the long task starts first")
	require.Equal(t, 6*time.Second, estimate.Of(tasks[:6], past, estimate.Limits{Pools: map[string]int{"p": 1}}).Makespan)

	// A group node takes neither time nor a slot.
	nodes := append(slices.Clone(tasks[:6]), estimate.Task{Node: true, After: []int{0, 1, 2, 3, 4, 5}}, estimate.Task{Asset: "a/ten", After: []int{6}})
	require.Equal(t, 11*time.Second, estimate.Of(nodes, past, estimate.Limits{}).Makespan)
	require.Equal(t, 7, estimate.Of(nodes, past, estimate.Limits{}).Tasks)
}

func TestOfStaysWithinBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	past := map[string][]estimate.Sample{"a/0": seconds(1), "a/1": seconds(2), "a/2": seconds(7)}
	for range 200 {
		tasks := make([]estimate.Task, 1+r.IntN(60))
		longest := make([]time.Duration, len(tasks))
		var path, work time.Duration
		for i := range tasks {
			asset := []string{"a/0", "a/1", "a/2"}[r.IntN(3)]
			tasks[i] = estimate.Task{Asset: asset, Pool: []string{"", "p"}[r.IntN(2)], Priority: int32(r.IntN(3))}
			for range r.IntN(3) {
				if i > 0 {
					tasks[i].After = append(tasks[i].After, r.IntN(i))
				}
			}
			slices.Sort(tasks[i].After)
			tasks[i].After = slices.Compact(tasks[i].After)
			for _, before := range tasks[i].After {
				longest[i] = max(longest[i], longest[before])
			}
			longest[i] += past[asset][0].Duration
			path, work = max(path, longest[i]), work+past[asset][0].Duration
		}
		slots := 1 + r.IntN(5)
		e := estimate.Of(tasks, past, estimate.Limits{Tasks: slots, Pools: map[string]int{"p": 1 + r.IntN(3)}})
		require.GreaterOrEqual(t, e.Makespan, path)
		require.GreaterOrEqual(t, e.Makespan, work/time.Duration(slots))
		require.LessOrEqual(t, e.Makespan, work)
		require.Equal(t, path, estimate.Of(tasks, past, estimate.Limits{}).Makespan)
	}
}

func BenchmarkOf(b *testing.B) {
	tasks := make([]estimate.Task, 200_000)
	for i := range tasks {
		tasks[i] = estimate.Task{Asset: []string{"a/0", "a/1"}[i%2], Pool: []string{"", "p", "q"}[i%3]}
		if i >= 1000 {
			tasks[i].After = []int{i - 1000}
		}
	}
	past := map[string][]estimate.Sample{"a/0": seconds(1, 2, 3), "a/1": seconds(4)}
	for b.Loop() {
		estimate.Of(tasks, past, estimate.Limits{Tasks: 100, Pools: map[string]int{"p": 10}})
	}
}
