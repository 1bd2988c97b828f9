package bench

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Workload is work of a stated shape.
type Workload struct {
	Name, Description string

	runs   int // that are triggered one after the other, without waiting
	assets func() []plan.Asset
	chain  bool // the time from task to task is what is measured
	unit   string
	value  func(sample) float64
}

// Workloads are all that there are.
func Workloads() []Workload {
	perSecond := func(s sample) float64 { return float64(s.tasks) / s.took.Seconds() }
	return []Workload{
		{
			Name: "W1", Description: "a chain of 200 tasks, each after the one before", runs: 1, chain: true,
			assets: func() []plan.Asset { return chain(200) }, //nolint:mnd // as described
			unit:   "ms a hop",
			value:  func(s sample) float64 { return s.took.Seconds() * 1000 / float64(s.tasks) },
		},
		{
			Name: "W2", Description: "one task, 1,000 after it, and one after all of these", runs: 1,
			assets: func() []plan.Asset { return fan(1000) }, //nolint:mnd // as described
			unit:   "tasks a second", value: perSecond,
		},
		{
			Name: "W3", Description: "200 runs at once, each of 10 tasks in three diamonds", runs: 200, //nolint:mnd // as described
			assets: diamonds, unit: "tasks a second", value: perSecond,
		},
	}
}

// asset is a task that waits for others.
func asset(n int, after ...int) plan.Asset {
	a := plan.Asset{
		Key: key(n), Work: plan.Work{Command: []string{"nothing"}}, WorkerQueue: "default",
		Retries: plan.Retries{MaxAttempts: 1},
	}
	for _, m := range after {
		a.Deps = append(a.Deps, key(m))
	}
	return a
}

func key(n int) ids.AssetKey { return ids.AssetKey{Namespace: "bench", Name: fmt.Sprintf("t%05d", n)} }

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

func diamonds() []plan.Asset {
	assets := []plan.Asset{asset(0)}
	for top := 0; top < 9; top += 3 {
		assets = append(assets, asset(top+1, top), asset(top+2, top), asset(top+3, top+1, top+2))
	}
	return assets
}
