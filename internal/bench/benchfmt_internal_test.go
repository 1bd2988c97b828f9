package bench

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudsim"
)

func TestWriteBenchmarksUsesGoFormat(t *testing.T) {
	history := 1000
	s := sample{tasks: 10, usage: cloudsim.Usage{Store: cloudblob.Usage{"ledger": {ClassA: 25, ClassB: 5, BytesIn: 100}}}}
	priced := s
	priced.hops, priced.peak = []float64{3, 1, 2}, 1<<20
	prices := cloudsim.Prices{ClassA: 5}
	var out strings.Builder
	require.NoError(t, WriteBenchmarks(&out, []Result{
		{Workload: "W1", Store: FileStore, Tasks: 10, Unit: "ms/hop", Samples: []float64{1.5, 2}, samples: []sample{s, s}},
		{Workload: "W5", Store: FileStore, Tasks: 4, Unit: "tasks/s", Samples: []float64{7}, samples: []sample{{tasks: 4}}, History: &history},
		{Workload: "W1", Store: CloudSim, Tasks: 10, Unit: "ms/hop", Samples: []float64{3}, samples: []sample{priced}, Dollars: &cloudsim.Bill{}, prices: prices},
	}))
	require.Equal(t, "goos: "+runtime.GOOS+"\ngoarch: "+runtime.GOARCH+`
pkg: github.com/servo-orchestration/servo/internal/bench
BenchmarkW1/store=file/tasks=10 1 1.5 ms/hop 2.5 class-A/task 0.5 class-B/task 10 B-in/task
BenchmarkW1/store=file/tasks=10 1 2 ms/hop 2.5 class-A/task 0.5 class-B/task 10 B-in/task
BenchmarkW5/store=file/tasks=4/history=1000 1 7 tasks/s
BenchmarkW1/store=gcs-sim/tasks=10 1 3 ms/hop 2.5 class-A/task 0.5 class-B/task 10 B-in/task 2 p50-ms/hop 3 p99-ms/hop 1048576 peak-RSS-B 12.5 USD/million-tasks
`, out.String())
}
