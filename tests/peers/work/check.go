package work

import (
	"fmt"
	"sync"
)

// Check verifies that each task of a job was executed after its upstreams.
type Check struct {
	job Job

	mu       sync.Mutex
	executed [][]int
	wrong    error
}

// NewCheck returns the check of a job.
func NewCheck(job Job) *Check {
	c := &Check{job: job, executed: make([][]int, job.Runs)}
	for run := range c.executed {
		c.executed[run] = make([]int, len(job.After))
	}
	return c
}

// Execute is the work of a task: it only records the execution.
func (c *Check) Execute(run, task int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, before := range c.job.After[task] {
		if c.executed[run][before] == 0 {
			c.wrong = fmt.Errorf("task %d of run %d was executed before task %d", task, run, before)
		}
	}
	c.executed[run][task]++
}

// Done returns the counts of executions. It fails if a task is missing or was executed before one of its upstreams.
func (c *Check) Done() (done Done, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tasks := range c.executed {
		for _, times := range tasks {
			if times > 0 {
				done.Tasks++
				done.Repeated += times - 1
			}
		}
	}
	if c.wrong == nil && done.Tasks != c.job.Tasks() {
		c.wrong = fmt.Errorf("%d of %d tasks were executed", done.Tasks, c.job.Tasks())
	}
	return done, c.wrong
}
