package bench

import (
	"context"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Workload is a set of runs of a defined shape.
type Workload struct {
	Name, Description string
	// OnCloud is set if the workload can also be measured on a simulated cloud.
	OnCloud bool
	// OnRequest is set if the workload takes minutes. It is measured only if its name is given.
	OnRequest bool

	measure func(context.Context, Config, Workload) ([]Result, error)
	unit    string
	value   func(sample) float64

	// runs returns the number of runs, all of which are triggered at once. assets returns the assets of each run. Size 0
	// means the size in the description.
	runs   func(size int) int
	assets func(size int) []plan.Asset
	// A run of size n has n*each+others tasks.
	each, others int
}

// MaxSize returns the largest possible size of a workload, or 0 if the workload has no size. The size is limited
// because a run has at most [plan.MaxTasks] tasks.
func (w Workload) MaxSize() int {
	if w.each == 0 {
		return 0
	}
	return (plan.MaxTasks - w.others) / w.each
}

// described returns the description of a workload, followed by the settings in cfg that change the workload.
func (cfg Config) described(w Workload) string {
	text := w.Description
	if w.assets == nil {
		return text
	}
	if cfg.Size > 0 {
		text += fmt.Sprintf("; measured with size %d", cfg.Size)
	}
	if cfg.Outputs {
		text += "; each commits an output"
	}
	return text
}

// Workloads returns all workloads.
func Workloads() []Workload {
	fanned := Workload{
		Name: "W2", Description: "one task, then 1,000 parallel tasks, then one task after all of them", OnCloud: true, measure: sampled,
		unit: "tasks/s", value: perSecond, runs: one,
		assets: func(size int) []plan.Asset { return fan(or(size, 1000)) }, each: 1, others: 2, //nolint:mnd // the default size, which Description states
	}
	history := fanned
	history.Name, history.Description = "W5", "W2, once for each value of --history, with this number of finished tasks in the store"
	history.OnCloud, history.measure = false, withHistory
	return append([]Workload{
		{
			Name: "W1", Description: "a chain of 200 tasks", OnCloud: true, measure: sampled,
			unit:   "ms/hop",
			value:  func(s sample) float64 { return s.took.Seconds() * 1000 / float64(s.tasks) },
			runs:   one,
			assets: func(size int) []plan.Asset { return chain(or(size, 200)) }, each: 1, //nolint:mnd // the default size, which Description states
		},
		fanned,
		{
			Name: "W3", Description: "200 concurrent runs of 10 tasks in three diamonds", OnCloud: true, measure: sampled,
			unit: "tasks/s", value: perSecond,
			runs:   func(size int) int { return or(size, 200) },            //nolint:mnd // the default size, which Description states
			assets: func(int) []plan.Asset { return diamonds() }, each: 10, //nolint:mnd // the default size, which Description states
		},
		{
			Name: "W4", Description: "an idle server with finished runs in the store: cold start, memory, CPU, operations",
			measure: idle, unit: "ms to the first answer",
		},
		history,
		{
			Name: "W7", Description: "one run of 100,010 tasks: one task, then 10,000 parallel tasks, ten times in a row", OnRequest: true, measure: sampled,
			unit: "tasks/s", value: perSecond, runs: one,
			assets: func(size int) []plan.Asset { return layers(10, or(size, 10_000)) }, each: 10, others: 10, //nolint:mnd // the default size, which Description states
		},
	}, scheduleWorkloads()...)
}

func perSecond(s sample) float64 { return float64(s.tasks) / s.took.Seconds() }

func one(int) int { return 1 }

func or(size, described int) int {
	if size > 0 {
		return size
	}
	return described
}

// asset returns an asset that depends on the given assets. Its task does nothing.
func asset(n int, after ...int) plan.Asset {
	a := plan.Asset{
		Key: key(n), Work: plan.Work{Command: []string{"nothing"}, Output: plan.OutputNone}, WorkerQueue: "default",
		Retries: plan.Retries{MaxAttempts: 1},
	}
	for _, m := range after {
		a.Deps = append(a.Deps, key(m))
	}
	return a
}

func key(n int) ids.AssetKey { return ids.AssetKey{Namespace: "bench", Name: fmt.Sprintf("t%06d", n)} }

func chain(n int) []plan.Asset {
	assets := []plan.Asset{asset(0)}
	for i := 1; i < n; i++ {
		assets = append(assets, asset(i, i-1))
	}
	return assets
}

func fan(n int) []plan.Asset {
	assets := []plan.Asset{asset(0)}
	all := make([]int, n)
	for i := range n {
		all[i] = i + 1
		assets = append(assets, asset(i+1, 0))
	}
	return append(assets, asset(n+1, all...))
}

// layers returns n stages. A stage is a single task, followed by parallel tasks that depend on it. The single task
// depends on all parallel tasks of the previous stage.
func layers(n, wide int) []plan.Asset {
	var assets []plan.Asset
	var before []int
	for range n {
		first := len(assets)
		assets = append(assets, asset(first, before...))
		before = before[:0]
		for i := range wide {
			assets = append(assets, asset(first+1+i, first))
			before = append(before, first+1+i)
		}
	}
	return assets
}

func diamonds() []plan.Asset {
	assets := []plan.Asset{asset(0)}
	for top := 0; top < 9; top += 3 {
		assets = append(assets, asset(top+1, top), asset(top+2, top), asset(top+3, top+1, top+2))
	}
	return assets
}
