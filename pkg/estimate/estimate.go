// Package estimate predicts the duration, rows and bytes of a run from earlier attempts. The package is pure: callers
// pass the earlier attempts. An asset without earlier attempts has no estimate. This package is not a stable API.
package estimate

import (
	"cmp"
	"container/heap"
	"maps"
	"math"
	"slices"
	"time"
)

// Unknown is the value of a measure that no attempt has reported.
const Unknown = -1

// Sample is the cost and the output of one successful attempt.
type Sample struct {
	// Partitions is the number of partitions of a batch. 0 means 1.
	Partitions  int
	Duration    time.Duration
	Rows, Bytes int64
	// CPU is the CPU time, or [Unknown].
	CPU time.Duration
	// Memory is the product of the reserved memory and the duration, in MiB × ms, or [Unknown].
	Memory int64
}

// Task is one task of a run.
type Task struct {
	Asset string
	// Pool is the pool of the task; "": none.
	Pool     string
	Priority int32
	// After lists the positions of the tasks that must end before this task starts. These positions are less than the
	// position of this task.
	After []int
	// Partitions is the number of partitions of a batch. 0 means 1.
	Partitions int
	// Node marks a group node, which is never executed: it takes no time and no slot.
	Node bool
}

// Limits are the maximum numbers of tasks that run at once. 0: no limit.
type Limits struct {
	// Tasks limits all tasks of the run.
	Tasks int
	// Pools limits the tasks of each pool, by the name of the pool. A pool without an entry has no limit.
	Pools map[string]int
}

// Asset is the estimate of one asset of a run.
type Asset struct {
	Asset string
	// Tasks is the number of tasks, and Partitions is the number of their partitions. A task of an asset without
	// partitions counts as one partition.
	Tasks, Partitions int
	// Samples is the number of earlier attempts. 0: there are none, and the other fields
	// are 0.
	Samples int
	// Median and P95 describe one task with the average number of partitions. The measures of an attempt are divided by
	// its number of partitions, so attempts with batches of other sizes also count.
	Median, P95 Sample
	// Cost is the cost of all tasks of the asset, in nano-dollars. CostP95 is the cost if each task has the measures in
	// P95. Priced is false if there are no earlier attempts, or if no attempt has reported a measure that has a price.
	Cost, CostP95 int64
	Priced        bool
}

// Estimate is the estimate of a run. Sums and times exclude the assets without earlier attempts.
type Estimate struct {
	// Tasks is the number of tasks. Unknown is how many of them belong to assets without earlier attempts.
	Tasks, Unknown int
	// Work is the sum of the median durations of all tasks. Rows and Bytes are the sizes of their outputs.
	Work        time.Duration
	Rows, Bytes int64
	// CPU is the CPU time of all tasks, except those of assets without a measured CPU time.
	CPU time.Duration
	// Makespan is the time from start to end of the run if every task takes its median. MakespanP95 assumes that every
	// task takes its 95th percentile.
	Makespan, MakespanP95 time.Duration
	// Cost and CostP95 are the sums of the priced assets, in nano-dollars. [Estimate.Price] sets them.
	Cost, CostP95 int64
	// Unpriced is the number of tasks whose cost is unknown. Cost and CostP95 exclude these tasks.
	Unpriced int
	// Assets are sorted by name.
	Assets []Asset
}

// Of returns the estimate of a run. The parameter "past" contains the samples of each asset, in any order.
func Of(tasks []Task, past map[string][]Sample, limits Limits) Estimate {
	assets := map[string]*Asset{}
	for i := range tasks {
		t := &tasks[i]
		if t.Node {
			continue
		}
		a := assets[t.Asset]
		if a == nil {
			a = &Asset{Asset: t.Asset, Samples: len(past[t.Asset])}
			assets[t.Asset] = a
		}
		a.Tasks++
		a.Partitions += t.partitions()
	}
	for _, a := range assets {
		each := float64(a.Partitions) / float64(a.Tasks)
		a.Median, a.P95 = quantile(past[a.Asset], 50, each), quantile(past[a.Asset], 95, each)
	}
	var e Estimate
	for _, name := range slices.Sorted(maps.Keys(assets)) {
		a := assets[name]
		e.Assets = append(e.Assets, *a)
		e.Tasks += a.Tasks
		if a.Samples == 0 {
			e.Unknown += a.Tasks
		}
		e.Work += a.Median.Duration * time.Duration(a.Tasks)
		e.Rows += a.Median.Rows * int64(a.Tasks)
		e.Bytes += a.Median.Bytes * int64(a.Tasks)
		e.CPU += max(a.Median.CPU, 0) * time.Duration(a.Tasks)
	}
	e.Makespan = makespan(tasks, limits, func(t *Task) time.Duration { return assets[t.Asset].duration(&assets[t.Asset].Median, t) })
	e.MakespanP95 = makespan(tasks, limits, func(t *Task) time.Duration { return assets[t.Asset].duration(&assets[t.Asset].P95, t) })
	return e
}

func (t *Task) partitions() int { return max(t.Partitions, 1) }

// duration returns how long a task takes, given the sample of a task with the average number of partitions.
func (a *Asset) duration(each *Sample, t *Task) time.Duration {
	return time.Duration(math.Round(float64(each.Duration) * float64(t.partitions()) * float64(a.Tasks) / float64(a.Partitions)))
}

// quantile returns the nearest-rank percentile of each measure over the attempts that reported it. The measures are
// scaled to the given number of partitions.
func quantile(samples []Sample, percent int, partitions float64) Sample {
	if len(samples) == 0 {
		return Sample{}
	}
	return Sample{
		Duration: rank(samples, percent, partitions, func(s Sample) time.Duration { return s.Duration }),
		Rows:     rank(samples, percent, partitions, func(s Sample) int64 { return s.Rows }),
		Bytes:    rank(samples, percent, partitions, func(s Sample) int64 { return s.Bytes }),
		CPU:      rank(samples, percent, partitions, func(s Sample) time.Duration { return s.CPU }),
		Memory:   rank(samples, percent, partitions, func(s Sample) int64 { return s.Memory }),
	}
}

func rank[V time.Duration | int64](samples []Sample, percent int, partitions float64, value func(Sample) V) V {
	values := make([]float64, 0, len(samples))
	for _, s := range samples {
		if v := value(s); v >= 0 {
			values = append(values, float64(v)/float64(max(s.Partitions, 1)))
		}
	}
	if len(values) == 0 {
		return Unknown
	}
	slices.Sort(values)
	const whole = 100
	each := math.Round(values[(len(values)*percent+whole-1)/whole-1] * partitions)
	if each >= math.MaxInt64 {
		return math.MaxInt64
	}
	return V(each)
}

// makespan schedules the tasks as admission does: of all ready tasks whose pool has a free slot, the
// task with the greatest priority starts first. If several have this priority, the first in the plan
// starts.
func makespan(tasks []Task, limits Limits, duration func(*Task) time.Duration) time.Duration {
	s := schedule{tasks: tasks, limits: limits, waiting: make([]int, len(tasks)), next: make([][]int, len(tasks)), pools: map[string]*pool{}}
	for i := range tasks {
		s.waiting[i] = len(tasks[i].After)
		for _, before := range tasks[i].After {
			s.next[before] = append(s.next[before], i)
		}
	}
	for i := range tasks {
		if len(tasks[i].After) == 0 {
			s.ready(i)
		}
	}
	for {
		for p := s.choose(); p != nil; p = s.choose() {
			i := p.pop()
			p.running++
			heap.Push(&s.running, execution{task: i, end: s.now + duration(&tasks[i])})
		}
		if len(s.running) == 0 {
			return s.now
		}
		ended, _ := heap.Pop(&s.running).(execution)
		s.now = ended.end
		s.pools[tasks[ended.task].Pool].running--
		s.ended(ended.task)
	}
}

// schedule is the state of a simulated run.
type schedule struct {
	tasks   []Task
	limits  Limits
	waiting []int // how many tasks each task waits for
	next    [][]int
	pools   map[string]*pool
	order   []*pool
	running executions
	now     time.Duration
}

// pool holds the ready tasks of a pool.
type pool struct {
	tasks   []Task
	queue   []int // a heap
	limit   int   // 0: none
	running int
}

// ready adds a task whose upstream tasks have ended.
func (s *schedule) ready(i int) {
	todo := []int{i}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.tasks[i].Node {
			todo = append(todo, s.noteEnd(i)...)
			continue
		}
		name := s.tasks[i].Pool
		p := s.pools[name]
		if p == nil {
			p = &pool{tasks: s.tasks}
			if name != "" {
				p.limit = s.limits.Pools[name]
			}
			s.pools[name] = p
			s.order = append(s.order, p)
		}
		heap.Push(p, i)
	}
}

// noteEnd records that task i has ended, and returns the tasks that have waited for it and now wait for no other
// task.
func (s *schedule) noteEnd(i int) []int {
	var free []int
	for _, j := range s.next[i] {
		if s.waiting[j]--; s.waiting[j] == 0 {
			free = append(free, j)
		}
	}
	return free
}

func (s *schedule) ended(i int) {
	for _, j := range s.noteEnd(i) {
		s.ready(j)
	}
}

// choose returns the pool of the next task to start, or nil if none can start now.
func (s *schedule) choose() *pool {
	if s.limits.Tasks > 0 && len(s.running) >= s.limits.Tasks {
		return nil
	}
	var best *pool
	for _, p := range s.order {
		if len(p.queue) == 0 || p.limit > 0 && p.running >= p.limit {
			continue
		}
		if best == nil || startsBefore(s.tasks, p.queue[0], best.queue[0]) {
			best = p
		}
	}
	return best
}

// startsBefore reports whether task i starts before task j if both are ready.
func startsBefore(tasks []Task, i, j int) bool {
	return cmp.Or(cmp.Compare(tasks[j].Priority, tasks[i].Priority), cmp.Compare(i, j)) < 0
}

func (p *pool) pop() int {
	i, _ := heap.Pop(p).(int)
	return i
}

// The methods of [heap.Interface] order the ready tasks of a pool.

func (p *pool) Len() int           { return len(p.queue) }
func (p *pool) Less(i, j int) bool { return startsBefore(p.tasks, p.queue[i], p.queue[j]) }
func (p *pool) Swap(i, j int)      { p.queue[i], p.queue[j] = p.queue[j], p.queue[i] }

// Push adds a task.
func (p *pool) Push(x any) {
	i, _ := x.(int)
	p.queue = append(p.queue, i)
}

// Pop removes the last task.
func (p *pool) Pop() any {
	last := p.queue[len(p.queue)-1]
	p.queue = p.queue[:len(p.queue)-1]
	return last
}

// execution is a task that runs.
type execution struct {
	task int
	end  time.Duration
}

// executions is a heap by time of end.
type executions []execution

func (e executions) Len() int { return len(e) }
func (e executions) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].end, e[j].end), cmp.Compare(e[i].task, e[j].task)) < 0
}
func (e executions) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *executions) Push(x any) {
	x1, _ := x.(execution)
	*e = append(*e, x1)
}

func (e *executions) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
