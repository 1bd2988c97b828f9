package event

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of a run's plan, inline or by reference. Package plan creates only smaller plans, because a domain is designed
// for these numbers of tasks and edges in all of its live runs together.
const (
	MaxPlanTasks = 1_000_000
	MaxPlanEdges = 4_000_000
	// MaxPlanBytes is the maximum size of a plan that an event refers to.
	MaxPlanBytes = 256 << 20
)

// ValidateTasks checks the tasks of a stored plan. The error is a [*DecodeError]: BAD_PLAN for the
// structure, INVALID for a value.
func ValidateTasks(tasks []TaskDef) error {
	c := &checker{}
	c.tasks("tasks", tasks, KindTask, KindGroup, KindCheck)
	if c.err != nil {
		return c.err
	}
	return nil
}

// tasks validates the tasks of a plan. Each task must have one of the given kinds.
func (c *checker) tasks(path string, tasks []TaskDef, kinds ...string) {
	if len(tasks) > MaxPlanTasks {
		c.refuse(ReasonBadPlan, path, "has %d tasks: at most %d are allowed", len(tasks), MaxPlanTasks)
		return
	}
	position := make(map[string]int32, len(tasks))
	edges := 0
	for i := range tasks {
		t := &tasks[i]
		if err := ids.ValidateTaskKey(t.TaskKey); err != nil {
			c.refuse(ReasonBadPlan, fmt.Sprintf("%s[%d].task_key", path, i), "%v", err)
		}
		if first, ok := position[t.TaskKey]; ok {
			c.refuse(ReasonBadPlan, fmt.Sprintf("%s[%d].task_key", path, i), "duplicate of %s[%d]: %q", path, first, t.TaskKey)
		}
		position[t.TaskKey] = int32(i)
		edges += len(t.DependsOn)
		// The first check does not compose the path of the task in the event, so it allocates nothing. If the check fails,
		// it is repeated with the path, because the error must contain the path.
		var quick checker
		if quick.task("", t, kinds); quick.err != nil {
			c.task(fmt.Sprintf("%s[%d]", path, i), t, kinds)
		}
		if c.err != nil {
			return
		}
	}
	if edges > MaxPlanEdges {
		c.refuse(ReasonBadPlan, path, "has %d edges: at most %d are allowed", edges, MaxPlanEdges)
		return
	}
	c.graph(path, tasks, position)
}

func (c *checker) task(path string, t *TaskDef, kinds []string) {
	c.text(path+".task_key", t.TaskKey, ids.MaxTaskKey)
	c.optionalOneOf(path+".kind", t.Kind, kinds...)
	if t.AssetKey != "" {
		c.assetKey(path+".asset_key", t.AssetKey)
	}
	c.partition(path+".partition_key", t.PartitionKey)
	c.batch(path+".partitions", t)
	c.optionalOneOf(path+".trigger_rule", t.TriggerRule, RuleAllSuccess, RuleNoneFailed, RuleAllDone)
	c.text(path+".worker_queue", t.WorkerQueue, MaxName)
	c.text(path+".pool", t.Pool, MaxName)
	c.optionalOneOf(path+".output", t.Output, OutputNone)
	if t.Code != "" {
		c.hex(path+".code", t.Code, digitsOfCode)
	}
	c.checkNames(path+".checks", t.Checks)
	c.checkNames(path+".error_checks", t.ErrorChecks)
	c.atMost(path+".require_quality (count)", int64(len(t.RequireQuality)), MaxSelection)
	for i, key := range t.RequireQuality {
		c.assetKey(fmt.Sprintf("%s.require_quality[%d]", path, i), key)
	}
	c.quarantine(path+".quarantine", t.Quarantine)
	c.count(path+".max_attempts", int64(t.MaxAttempts))
	c.count(path+".retry_initial_delay_ms", t.RetryInitialDelayMS)
	c.count(path+".retry_max_delay_ms", t.RetryMaxDelayMS)
	c.atMost(path+".retry_multiplier_permille", int64(t.RetryMultiplierPermille), maxPermille)
	c.atMost(path+".retry_jitter_permille", int64(t.RetryJitterPermille), 1000)
	c.retryRules(path+".retry_on", t.RetryOn)
	c.retryRules(path+".retry_never", t.RetryNever)
	c.count(path+".timeout_sec", int64(t.TimeoutSec))
	c.count(path+".heartbeat_timeout_sec", int64(t.HeartbeatTimeoutSec))
}

// partition validates a partition key, which may be empty.
func (c *checker) partition(path, key string) {
	if _, err := ids.ParsePartition(key); err != nil {
		c.fail(path, "%v", err)
	}
	c.text(path, key, MaxRef)
}

// batch validates the partitions of a task.
func (c *checker) batch(path string, t *TaskDef) {
	if len(t.Partitions) == 0 {
		return
	}
	c.atMost(path+" (count)", int64(len(t.Partitions)), MaxBatch)
	if len(t.Partitions) < 2 || t.Partitions[0] != t.PartitionKey {
		c.fail(path, "a batch has at least two partitions, and the first of them is partition_key")
	}
	seen, size := make(map[string]bool, len(t.Partitions)), 0
	for i, key := range t.Partitions {
		if key == "" || seen[key] {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "is empty or a duplicate: %.100q", key)
		}
		seen[key], size = true, size+len(key)
		c.partition(fmt.Sprintf("%s[%d]", path, i), key)
	}
	c.atMost(path+" (bytes)", int64(size), MaxBatchBytes)
}

// MaxGates is the maximum number of checks of the same severity that a task has.
const MaxGates = 64

func (c *checker) checkNames(path string, names []string) {
	if len(names) == 0 {
		return
	}
	c.atMost(path+" (count)", int64(len(names)), MaxGates)
	for i, name := range names {
		c.name(fmt.Sprintf("%s[%d]", path, i), name)
	}
}

func (c *checker) retryRules(path string, rules []string) {
	if len(rules) == 0 {
		return
	}
	c.atMost(path+" (count)", int64(len(rules)), MaxRetryRules)
	for i, rule := range rules {
		if !ValidRetryRule(rule) {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "%.100q is neither a code nor a category of errors", rule)
		}
	}
}

// graph checks that both ends of every edge exist, that no edge occurs twice, and that the
// edges have no cycle.
func (c *checker) graph(path string, tasks []TaskDef, position map[string]int32) {
	missing := make([]int32, len(tasks)) // for each task, the number of its upstreams that are not ordered yet
	downstream := make([][]int32, len(tasks))
	dependent := make([]int32, len(tasks)) // for each task T, 1 + the index of the last task seen so far that depends on T
	for i := range tasks {
		for j, key := range tasks[i].DependsOn {
			upstream, ok := position[key]
			reason := ""
			switch {
			case !ok:
				reason = "%.100q is not a task of the plan"
			case int(upstream) == i:
				reason = "%.100q depends on itself"
			case dependent[upstream] == int32(i)+1:
				reason = "duplicate dependency %.100q"
			}
			if reason != "" {
				c.refuse(ReasonBadPlan, fmt.Sprintf("%s[%d].depends_on[%d]", path, i, j), reason, key)
				return
			}
			dependent[upstream] = int32(i) + 1
			downstream[upstream] = append(downstream[upstream], int32(i))
		}
		missing[i] = int32(len(tasks[i].DependsOn))
	}
	if stuck := unordered(missing, downstream); stuck >= 0 {
		c.refuse(ReasonBadPlan, fmt.Sprintf("%s[%d]", path, stuck), "%.100q depends on a cycle", tasks[stuck].TaskKey)
	}
}

// unordered returns a node that is on a cycle or downstream of one, or -1 if the nodes have a topological order. It
// changes the elements of the parameter missing.
func unordered(missing []int32, downstream [][]int32) int {
	ready := make([]int32, 0, len(missing))
	for i, n := range missing {
		if n == 0 {
			ready = append(ready, int32(i))
		}
	}
	for done := 0; done < len(ready); done++ {
		for _, d := range downstream[ready[done]] {
			if missing[d]--; missing[d] == 0 {
				ready = append(ready, d)
			}
		}
	}
	for i, n := range missing {
		if n > 0 {
			return i
		}
	}
	return -1
}
