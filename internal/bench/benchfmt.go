package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
)

// WriteBenchmarks writes one line for each sample in the format of Go benchmarks, for benchstat.
func WriteBenchmarks(w io.Writer, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: github.com/servo-orchestration/servo/internal/bench\n", runtime.GOOS, runtime.GOARCH)
	for _, r := range results {
		name := fmt.Sprintf("Benchmark%s/store=%s/tasks=%d", r.Workload, r.Store, r.Tasks)
		if r.History != nil {
			name += fmt.Sprintf("/history=%d", *r.History)
		}
		for i, s := range r.samples {
			fmt.Fprintf(&b, "%s 1 %g %s", name, r.Samples[i], strings.ReplaceAll(r.Unit, " ", "-"))
			if store := s.usage.Store.Total(); store.Operations() > 0 {
				per := func(n int64) float64 { return float64(n) / float64(s.tasks) }
				fmt.Fprintf(&b, " %g class-A/task %g class-B/task %g B-in/task", per(store.ClassA), per(store.ClassB), per(store.BytesIn))
			}
			if hops := slices.Sorted(slices.Values(s.hops)); len(hops) > 0 {
				fmt.Fprintf(&b, " %g p50-ms/hop %g p99-ms/hop", percentile(hops, 50), percentile(hops, 99))
			}
			if s.peak > 0 {
				fmt.Fprintf(&b, " %d peak-RSS-B", s.peak)
			}
			if r.Dollars != nil {
				fmt.Fprintf(&b, " %g USD/million-tasks", r.prices.Bill(s.usage).Times(1e6/float64(s.tasks)).Total)
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
