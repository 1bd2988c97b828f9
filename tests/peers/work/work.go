// Package work defines the workloads of servo-bench for peers, in a form that programs in any
// language read from standard input.
package work

import (
	"fmt"
	"sync/atomic"
)

// Job is the work of one sample: runs of tasks with dependencies.
type Job struct {
	Workload string `json:"workload"`
	Runs     int    `json:"runs"`
	// AtOnce limits concurrent requests for runs. If a peer answers a request only at the end of the run, AtOnce also
	// limits concurrent runs.
	AtOnce int `json:"at_once"`
	// After lists the upstreams of each task of a run. The tasks are in topological order.
	After [][]int `json:"after"`
	// Server is the address of the peer's server, in the form that its client expects.
	Server string `json:"server"`
	// Admin is a second address of some servers.
	Admin string `json:"admin,omitempty"`
	// Settings are settings of the peer.
	Settings map[string]string `json:"settings"`
	// Device is the disk whose flushes are counted; "": none.
	Device string `json:"device,omitempty"`
}

// Order is the input of a peer's program.
type Order struct {
	Job     Job `json:"job"`
	Warming Job `json:"warming"`
}

// Done is the output of a peer's program.
type Done struct {
	// Tasks is the number of executed tasks, each after its upstreams.
	Tasks int `json:"tasks"`
	// Repeated is the number of repeated executions.
	Repeated int `json:"repeated"`
	// Seconds is the time from the first request until the peer has recorded the end of the last
	// run.
	Seconds float64 `json:"seconds"`
	// Flushes is the number of disk flushes in that time.
	Flushes int64 `json:"flushes,omitempty"`
}

// Warming returns a job that is executed before the measurement, so that opening connections and
// compiling code are not measured.
func Warming() Job { return Job{Workload: "warming", Runs: 5, AtOnce: 5, After: diamonds()} }

// Idle is the workload that measures a peer while it is idle, after its runs.
const Idle = "W4"

// Workloads returns the workloads of servo-bench that peers can execute.
func Workloads() []string { return []string{"W1", "W2", "W3", Idle} }

// atOnce is the maximum number of concurrent requests: the number of runs of W3.
const atOnce = 200

// Named returns the workload with the given name, in the shape that internal/bench/workloads.go defines. The idle
// workload has the given number of runs.
func Named(workload string, idleRuns int) (Job, error) {
	job := Job{Workload: workload, Runs: 1}
	switch workload {
	case "W1":
		job.After = chain(200)
	case "W2":
		job.After = fan(1000)
	case "W3":
		job.Runs, job.After = atOnce, diamonds()
	case Idle:
		job.Runs, job.After = idleRuns, chain(1)
	default:
		return Job{}, fmt.Errorf("unknown workload %q: choose from %v", workload, Workloads())
	}
	job.AtOnce = min(job.Runs, atOnce)
	return job, nil
}

// Tasks returns the number of tasks in all runs.
func (j Job) Tasks() int { return j.Runs * len(j.After) }

// Each calls the function "do" for each run, with at most j.AtOnce calls at the same time, and waits for all calls to
// return. After an error it starts no more calls.
func (j Job) Each(do func(run int) error) error {
	var (
		begun   atomic.Int64
		failed  atomic.Bool
		results = make(chan error, j.AtOnce)
	)
	for range j.AtOnce {
		go func() {
			var err error
			for err == nil && !failed.Load() {
				run := int(begun.Add(1)) - 1
				if run >= j.Runs {
					break
				}
				err = do(run)
			}
			if err != nil {
				failed.Store(true)
			}
			results <- err
		}()
	}
	var first error
	for range j.AtOnce {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func chain(n int) [][]int {
	after := [][]int{{}}
	for i := 1; i < n; i++ {
		after = append(after, []int{i - 1})
	}
	return after
}

func fan(n int) [][]int {
	after := [][]int{{}}
	all := make([]int, n)
	for i := range n {
		all[i] = i + 1
		after = append(after, []int{0})
	}
	return append(after, all)
}

func diamonds() [][]int {
	after := [][]int{{}}
	for top := 0; top < 9; top += 3 {
		after = append(after, []int{top}, []int{top}, []int{top + 1, top + 2})
	}
	return after
}

// Next returns the downstreams of each task.
func (j Job) Next() [][]int {
	next := make([][]int, len(j.After))
	for task, after := range j.After {
		for _, before := range after {
			next[before] = append(next[before], task)
		}
	}
	return next
}

// Levels returns the tasks in stages, so that every task depends on all tasks of the previous stage. Workflow engines
// express these workloads as such stages. For other shapes, Levels returns an error.
func (j Job) Levels() ([][]int, error) {
	var levels [][]int
	level := make([]int, len(j.After))
	for task, after := range j.After {
		if len(after) > 0 {
			level[task] = level[after[0]] + 1
		}
		if level[task] == len(levels) {
			levels = append(levels, nil)
		}
		levels[level[task]] = append(levels[level[task]], task)
	}
	for task, after := range j.After {
		if at := level[task]; at > 0 && len(after) != len(levels[at-1]) {
			return nil, fmt.Errorf("%s: task %d must depend on all tasks of the previous stage, or on none", j.Workload, task)
		}
	}
	return levels, nil
}
