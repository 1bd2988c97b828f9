package worker

import (
	"os"
	"strconv"
	"time"

	"github.com/duckdb/duckdb-go/v2"
)

// profiling contains the settings with which DuckDB measures the CPU time of statements.
const profiling = `SET enable_profiling = 'no_output'; SET custom_profiling_settings = '{"CPU_TIME": "true"}'`

// measure records the time, CPU time and memory of the execution of a task. The report of the end contains these
// metrics, even if the task has failed.
func (a *attempt) measure(took time.Duration) {
	a.usage.metrics["execute_ms"] = took.Milliseconds()
	if a.usage.measured {
		a.usage.metrics["cpu_ms"] = (a.usage.cpu + time.Millisecond - 1).Milliseconds()
	}
	if a.claim.memory != nil {
		a.usage.metrics["allocated_mib_ms"] = (a.claim.memory.bytes >> 20) * max(took.Milliseconds(), 1)
	}
}

// addCPU adds CPU time to the sum for the task.
func (a *attempt) addCPU(cpu time.Duration) { a.usage.cpu, a.usage.measured = a.usage.cpu+cpu, true }

// cpuOf returns the CPU time of a program that has exited and of the processes that it waited for.
func cpuOf(s *os.ProcessState) time.Duration {
	if s == nil {
		return 0
	}
	return s.UserTime() + s.SystemTime()
}

// cpuTime returns the CPU time of the last statement as DuckDB measures it: the time that its threads spend in
// operators. On a machine with too few cores, this includes the time in which a thread waits for a core.
func (d *database) cpuTime() (time.Duration, bool) {
	info, err := duckdb.GetProfilingInfo(d.conn)
	if err != nil {
		return 0, false // the statement failed
	}
	seconds, err := strconv.ParseFloat(info.Metrics["CPU_TIME"], 64)
	return time.Duration(seconds * float64(time.Second)), err == nil
}
