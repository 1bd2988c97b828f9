// Package work is what every peer is given to do: the workloads of servo bench, in a
// form that programs in any language read from their standard input.
package work

import (
	"fmt"
	"sync/atomic"
)

// Job is one sample: so many runs of tasks that wait for each other.
type Job struct {
	Workload string `json:"workload"`
	Runs     int    `json:"runs"`
	// AtOnce is how many runs are requested at once. Where a request is answered when its
	// run has ended, no more of them are under way.
	AtOnce int `json:"at_once"`
	// After are the tasks of a run, in an order in which they may be executed: for
	// each, those it waits for.
	After [][]int `json:"after"`
	// Server is where the peer's server is: a URL, or what its client takes for one.
	Server string `json:"server"`
	// Admin is a second address, of servers that have one.
	Admin string `json:"admin,omitempty"`
	// Settings are the peer's own.
	Settings map[string]string `json:"settings"`
	// Device is the disk whose flushes are counted; "": none can be.
	Device string `json:"device,omitempty"`
}

// Order is what a peer's program reads on its standard input.
type Order struct {
	Job     Job `json:"job"`
	Warming Job `json:"warming"`
}

// Done is what a peer's program says of a job on its standard output.
type Done struct {
	// Tasks is how many different tasks were executed, each after those before it.
	Tasks int `json:"tasks"`
	// Repeated is how many executions there were beyond one a task.
	Repeated int `json:"repeated"`
	// Seconds are from the first request until the peer has recorded the last end.
	Seconds float64 `json:"seconds"`
	// Flushes is how often the disk was told meanwhile to make durable what it has.
	Flushes int64 `json:"flushes,omitempty"`
}

// Warming is executed before the clock starts, so that no peer is measured while it
// opens connections or compiles itself. Servo is given no such run.
func Warming() Job { return Job{Workload: "warming", Runs: 5, AtOnce: 5, After: diamonds()} }

// Idle is the workload of which not the runs are measured, but what is taken after them.
const Idle = "W4"

// Workloads are those of servo bench that peers can be given.
func Workloads() []string { return []string{"W1", "W2", "W3", Idle} }

// atOnce is how many runs W3 has: more at once are not asked of anybody.
const atOnce = 200

// Of is a workload by its name. The shapes are those of pkg/bench/workloads.go. The idle
// one has so many runs.
func Of(workload string, idleRuns int) (Job, error) {
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
		return Job{}, fmt.Errorf("no workload %q: there are %v", workload, Workloads())
	}
	job.AtOnce = min(job.Runs, atOnce)
	return job, nil
}

// Tasks is how many there are in all runs.
func (j Job) Tasks() int { return j.Runs * len(j.After) }

// Each does something for each run, so many at once as the job says, and waits for all.
// After an error no more are begun.
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

// Next are, for each task, those that wait for it.
func (j Job) Next() [][]int {
	next := make([][]int, len(j.After))
	for task, after := range j.After {
		for _, before := range after {
			next[before] = append(next[before], task)
		}
	}
	return next
}

// Levels are the tasks in stages: all of one stage at once, each of which waits for all
// of the stage before. That is how a workflow in code says what these workloads are;
// another shape is refused.
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
			return nil, fmt.Errorf("%s: task %d waits for some of a stage", j.Workload, task)
		}
	}
	return levels, nil
}
