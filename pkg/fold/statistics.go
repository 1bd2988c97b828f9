package fold

import (
	"github.com/servo-orchestration/servo/pkg/state"
)

// Metrics that workers report and that the statistics of assets contain.
const (
	MetricCPU    = "cpu_ms"           // CPU time of the query or the command
	MetricMemory = "allocated_mib_ms" // memory that the worker reserved for the task, multiplied by the task's duration
)

// measure adds a successful attempt to the statistics of its asset. The statistics describe attempts, not
// outputs: marks, approvals and later runs do not change them.
func (f *folder) measure(t *state.Task, metrics map[string]int64) {
	row := state.AssetStatistics{AssetKey: t.AssetKey}
	if old := f.st.Statistics.Get(t.AssetKey); old != nil {
		row = *old
	}
	row.Add(state.Sample{
		DurationMS: max(t.CompletedAt.Sub(t.StartedAt).Milliseconds(), 0), Rows: max(t.RowCount, 0), Bytes: max(t.ByteSize, 0),
		CPUMS: metric(metrics, MetricCPU), MemoryMS: metric(metrics, MetricMemory),
		Partitions: int64(len(f.st.BatchOf(t.RunID, t.TaskKey))),
	})
	put(f, f.st.Statistics, &row)
}

// metric returns a measurement, or -1 if the worker did not report it.
func metric(metrics map[string]int64, name string) int64 {
	if v, ok := metrics[name]; ok && v >= 0 {
		return v
	}
	return -1
}
