package estimate_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/estimate"
)

func sample(cpu time.Duration, memory, bytes int64) estimate.Sample {
	return estimate.Sample{Duration: time.Second, Bytes: bytes, CPU: cpu, Memory: memory}
}

// TestPriceMultipliesBeforeItDivides prices many tasks, each of which costs a fraction of a nano-dollar.
func TestPriceMultipliesBeforeItDivides(t *testing.T) {
	tasks := make([]estimate.Task, 1000)
	for i := range tasks {
		tasks[i].Asset = "a/b"
	}
	past := map[string][]estimate.Sample{"a/b": {sample(time.Microsecond, 1, 10), sample(time.Microsecond, 1, 10), sample(time.Second, 1000, 10)}}
	e := estimate.Of(tasks, past, estimate.Limits{})
	e.Price(estimate.Prices{CPUSecond: 24_000, GBSecond: 2_500, WrittenGB: 20_000_000, Task: 7})
	// In nano-dollars: 24 for CPU, 2.6 for memory (rounded down), 200 for written bytes and 7,000 for tasks.
	require.Equal(t, int64(24+2+200+7000), e.Cost)
	require.Equal(t, int64(24_000_000+2_621+200+7000), e.CostP95)
	require.Zero(t, e.Unpriced)
}

// TestPriceLeavesOutUnknownMeasures checks that an asset has no cost if a measure that has a price is unknown.
func TestPriceLeavesOutUnknownMeasures(t *testing.T) {
	tasks := []estimate.Task{{Asset: "a/cpu"}, {Asset: "a/new"}, {Asset: "a/old"}, {Asset: "a/old"}, {Asset: "a/some"}}
	past := map[string][]estimate.Sample{
		"a/cpu": {sample(time.Second, 1, 0)}, "a/old": {sample(estimate.Unknown, estimate.Unknown, 0)},
		"a/some": {sample(estimate.Unknown, estimate.Unknown, 0), sample(time.Second, estimate.Unknown, 0)},
	}
	e := estimate.Of(tasks, past, estimate.Limits{})
	require.Equal(t, 2*time.Second, e.CPU)
	e.Price(estimate.Prices{CPUSecond: 5})
	require.Equal(t, int64(10), e.Cost)
	require.Equal(t, 3, e.Unpriced)
	e.Price(estimate.Prices{CPUSecond: 5, GBSecond: 1})
	require.Equal(t, 4, e.Unpriced)
	e.Price(estimate.Prices{Task: 1})
	require.Equal(t, int64(4), e.Cost)
	require.Equal(t, 1, e.Unpriced)
}

func TestPriceStopsAtGreatestAmount(t *testing.T) {
	e := estimate.Of([]estimate.Task{{Asset: "a/b"}, {Asset: "a/c"}}, map[string][]estimate.Sample{
		"a/b": {sample(time.Duration(math.MaxInt64), 0, 0)}, "a/c": {sample(0, math.MaxInt64, math.MaxInt64)},
	}, estimate.Limits{})
	most := int64(1_000_000_000_000)
	e.Price(estimate.Prices{CPUSecond: most, GBSecond: most, WrittenGB: most, Task: most})
	require.Equal(t, int64(math.MaxInt64), e.Cost)
}
