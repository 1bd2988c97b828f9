package plan_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// drawAssets draws an acyclic set of assets, some of them daily, in random order.
func drawAssets(t *rapid.T) []plan.Asset {
	n := rapid.IntRange(1, 10).Draw(t, "assets")
	name := func(i int) string { return fmt.Sprintf("n%d/a%d", i%3, i) }
	assets := make([]plan.Asset, n)
	for i := range n {
		var deps []string
		for j := range i {
			if rapid.IntRange(0, 2).Draw(t, "edge") == 0 {
				deps = append(deps, name(j))
			}
		}
		assets[i] = asset(name(i), deps...)
		if rapid.Bool().Draw(t, "daily") {
			assets[i] = daily(name(i), "2012-02-01", "2012-03-31", deps...)
		}
		assets[i].TriggerRule = rapid.SampledFrom([]string{"", "", "", event.RuleAllDone}).Draw(t, "rule")
	}
	return rapid.Permutation(assets).Draw(t, "order")
}

func anyPartitioned(assets []plan.Asset) bool {
	for _, a := range assets {
		if a.Partitions != nil {
			return true
		}
	}
	return false
}

// drawPlan draws assets and plans a run of all of them.
func drawPlan(t *rapid.T) (*plan.Plan, []plan.Asset) {
	assets := drawAssets(t)
	r := plan.Request{Root: "/p", Assets: assets, All: true, AllowIncomplete: true}
	if anyPartitioned(assets) {
		last := rapid.IntRange(1, 29).Draw(t, "days")
		r.Partitions = []plan.Selection{days("2012-02-01", fmt.Sprintf("2012-02-%02d", last))}
	}
	p, err := plan.Build(r)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return p, assets
}

func TestTasksAreInTopologicalOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawPlan(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, task := range p.Tasks {
			for _, dep := range task.DependsOn {
				if dep == task.TaskKey || !seen[dep] {
					t.Fatalf("%s depends on %s, which does not precede it", task.TaskKey, dep)
				}
			}
			seen[task.TaskKey] = true
		}
	})
}

// TestTasksWaitForTheirInputs checks that each task waits for, and reads, exactly the partitions that the mappings
// determine. It replaces each group by its members.
func TestTasksWaitForTheirInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, assets := drawPlan(t)
		declared, tasks, members := map[string]plan.Asset{}, map[string][]string{}, map[string][]string{}
		for _, a := range assets {
			declared[a.Key.String()] = a
		}
		for _, task := range p.Tasks {
			if task.Kind == event.KindGroup {
				members[task.TaskKey] = task.DependsOn
				continue
			}
			tasks[task.AssetKey] = append(tasks[task.AssetKey], task.TaskKey)
		}
		for _, task := range p.Tasks {
			if task.Kind == event.KindGroup {
				continue
			}
			want := map[string]bool{}
			for _, dep := range declared[task.AssetKey].Deps {
				upstream := declared[dep.String()]
				if upstream.Partitions != nil && task.PartitionKey != "" {
					partition, err := ids.ParsePartition(task.PartitionKey)
					if err != nil {
						t.Fatal(err)
					}
					want[ids.TaskKey(dep, partition)] = true
					continue
				}
				for _, key := range tasks[dep.String()] {
					want[key] = true
				}
			}
			waits, reads := map[string]bool{}, map[string]bool{}
			for _, dep := range task.DependsOn {
				if group, ok := members[dep]; ok {
					for _, key := range group {
						waits[key] = true
					}
					continue
				}
				waits[dep] = true
			}
			for _, set := range task.Inputs {
				for _, in := range append(p.Groups[set.Group], set.Items...) {
					reads[in.TaskKey] = true
				}
			}
			if fmt.Sprint(waits) != fmt.Sprint(want) || fmt.Sprint(reads) != fmt.Sprint(want) {
				t.Fatalf("%s waits for %v and reads %v, want %v", task.TaskKey, waits, reads, want)
			}
		}
	})
}

func TestGroupEdgesGrowLinearly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m := rapid.IntRange(2, 60).Draw(t, "upstreams"), rapid.IntRange(2, 60).Draw(t, "downstreams")
		all, err := daysBetween("2012-01-01", "2012-03-31")
		if err != nil {
			t.Fatal(err)
		}
		assets := []plan.Asset{daily("up/up", "2012-01-01", "")}
		for i := range m {
			assets = append(assets, asset(fmt.Sprintf("down/d%d", i), "up/up"))
		}
		p, err := plan.Build(plan.Request{
			Assets: assets, All: true, Partitions: []plan.Selection{days(all[0], all[n-1])},
		})
		if err != nil {
			t.Fatal(err)
		}
		edges, items := 0, len(p.Groups["up/up[*]"])
		for _, task := range p.Tasks {
			edges += len(task.DependsOn)
			for _, set := range task.Inputs {
				items += len(set.Items)
			}
		}
		if edges != n+m || items != n {
			t.Fatalf("%d partitions and %d readers have %d edges and %d inputs", n, m, edges, items)
		}
	})
}

func TestPlanIsIndependentOfAssetOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, assets := drawPlan(t)
		r := plan.Request{Root: "/p", Assets: rapid.Permutation(assets).Draw(t, "again"), All: true, AllowIncomplete: true}
		if anyPartitioned(assets) {
			var last string
			for _, task := range p.Tasks {
				if partition, err := ids.ParsePartition(task.PartitionKey); err == nil && partition["date"] > last {
					last = partition["date"]
				}
			}
			r.Partitions = []plan.Selection{days("2012-02-01", last)}
		}
		again, err := plan.Build(r)
		if err != nil {
			t.Fatal(err)
		}
		_, sha, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		_, shaAgain, err := again.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if sha != shaAgain {
			t.Fatalf("the same request returned two plans:\n%v\n%v", p, again)
		}
	})
}

// Several goroutines plan different selections on one graph. Each plan must equal the plan that the same request
// returns without a shared graph.
func TestPlansShareGraph(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		assets := drawAssets(t)
		graph, err := plan.NewGraph(assets)
		require.NoError(t, err)
		var group errgroup.Group
		for _, a := range assets {
			r := plan.Request{Root: "/p", Assets: assets, Select: []ids.AssetKey{a.Key, assets[0].Key}, Upstream: rapid.Bool().Draw(t, "upstream"), AllowIncomplete: true}
			alone, failed := plan.Build(r)
			r.Graph = graph
			group.Go(func() error {
				shared, err := plan.Build(r)
				if fmt.Sprint(failed) != fmt.Sprint(err) || !reflect.DeepEqual(alone, shared) {
					return fmt.Errorf("%s: got %v (%w), expected %v (%w)", a.Key, shared, err, alone, failed)
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
	})
}

// TestRetryReadsOutputsOfEarlierRun draws plans in which random tasks, and all tasks after them, have failed, and
// retries the failed tasks.
func TestRetryReadsOutputsOfEarlierRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := drawPlan(t)
		failed, outputs := map[string]bool{}, map[string]plan.Input{}
		var repeat []string
		for _, task := range p.Tasks {
			down := rapid.IntRange(0, 4).Draw(t, "fails") == 0 && task.Kind == event.KindTask
			for _, dep := range task.DependsOn {
				down = down || failed[dep]
			}
			failed[task.TaskKey] = down
			switch {
			case down:
				repeat = append(repeat, task.TaskKey)
			case task.Kind == event.KindTask:
				outputs[task.TaskKey] = plan.Input{MaterializationID: "M-" + task.TaskKey, URI: "assets/" + task.TaskKey}
			}
		}
		if len(repeat) == 0 {
			return
		}
		again, err := plan.Retry(p, repeat, outputs)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Validate(); err != nil {
			t.Fatal(err)
		}
		before := map[string]plan.Task{}
		for _, task := range p.Tasks {
			before[task.TaskKey] = task
		}
		ran := 0
		for _, task := range again.Tasks {
			if task.Kind == event.KindGroup {
				continue
			}
			ran++
			if !failed[task.TaskKey] {
				t.Fatalf("%s succeeded but is repeated", task.TaskKey)
			}
			for dep, set := range task.Inputs {
				old := before[task.TaskKey].Inputs[dep]
				oldItems, items := append(p.Groups[old.Group], old.Items...), append(again.Groups[set.Group], set.Items...)
				if len(oldItems) != len(items) {
					t.Fatalf("%s reads %d inputs of %s, want %d", task.TaskKey, len(items), dep, len(oldItems))
				}
				for i, in := range items {
					want := oldItems[i]
					if !failed[want.TaskKey] {
						want = plan.Input{PartitionKey: want.PartitionKey, MaterializationID: "M-" + want.TaskKey, URI: "assets/" + want.TaskKey}
					}
					if in != want {
						t.Fatalf("%s reads %v, want %v", task.TaskKey, in, want)
					}
				}
			}
		}
		for _, key := range repeat {
			if before[key].Kind == event.KindTask {
				ran--
			}
		}
		if ran != 0 {
			t.Fatalf("%d unexpected tasks", ran)
		}
	})
}
