package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// SchemaVersion is the version of the stored plan.
const SchemaVersion = 1

// Limits of a plan. A domain holds a million tasks; no single run should use them all.
const (
	MaxTasks = 200_000
	MaxEdges = 1_000_000
)

var errTooMany = fmt.Errorf("the run has more than %d tasks: select fewer assets or partitions", MaxTasks)

// Request describes a run to plan.
type Request struct {
	// Root is the absolute folder of the project, for workers on the same machine.
	Root string
	// Data lists the folders below Root that queries may read. Empty: the default.
	Data []string
	// Assets lists all assets of the project, in any order.
	Assets []Asset
	// Select lists the assets to materialize by name, and Matched those that the user did not name:
	// a pattern or a tag selects them. All selects every asset instead.
	Select, Matched []ids.AssetKey
	All             bool
	// Upstream adds everything that the selected assets depend on, directly or indirectly.
	Upstream bool
	// Partitions selects partitions of the partitioned assets. An asset in Select must declare
	// all of them. Other assets use those that they declare.
	Partitions []Selection
	// Materialized returns the materializations of an asset by earlier runs: one Input with
	// MaterializationID and URI for each partition, in any order. Nil: there are none.
	Materialized func(asset ids.AssetKey) []Input
	// Calendar decides which days have begun, and which have ended and are therefore expected.
	// In the zero value every day has begun, and only partitions with an end are expected.
	Calendar Calendar
}

// Build plans a run. Equal requests return equal plans, byte for byte. Its error lists every
// problem and what to do about it.
func Build(r Request) (*Plan, error) {
	g, err := NewGraph(r.Assets)
	if err != nil {
		return nil, err
	}
	order, err := g.Topological()
	if err != nil {
		return nil, err
	}
	b := builder{
		request: r, graph: g, nodes: map[ids.AssetKey]*node{}, earlier: map[ids.AssetKey]map[string]Input{},
		plan: &Plan{
			SchemaVersion: SchemaVersion, Root: r.Root, Data: r.Data, SecretVariables: secretVariables(r.Assets),
			Assets: map[string]Work{},
		},
	}
	if err := b.selectAssets(order); err != nil {
		return nil, err
	}
	b.addOrder(order)
	b.shareInputs()
	for _, key := range order {
		b.addAsset(key)
		if b.edges > MaxEdges {
			return nil, fmt.Errorf("the run has more than %d dependencies between tasks: select fewer partitions", MaxEdges)
		}
	}
	switch {
	case len(b.errs) > 0:
		return nil, joinSome(b.errs)
	case len(b.plan.Tasks) == 0:
		return nil, fmt.Errorf("no selected asset can be materialized (%s): their files have problems: run `servo validate`", someOf(b.plan.LeftOut))
	case len(b.plan.Tasks) > MaxTasks: // counting the group nodes
		return nil, errTooMany
	}
	if more := b.warnings - len(b.plan.Warnings); more > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("and %d more warnings", more))
	}
	if left := b.plan.LeftOut; len(left) > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("skipped %s: their files have problems: run `servo validate`", someOf(left)))
	}
	return b.plan, nil
}

// addAsset adds the tasks of an asset, or the order node of a gap.
func (b *builder) addAsset(key ids.AssetKey) {
	if g := b.gaps[key]; g != nil {
		b.addOrderNode(key, g.after)
	} else if n := b.nodes[key]; n != nil && len(n.tasks) > 0 {
		b.addTasks(n)
	}
}

// node is an asset that the run materializes.
type node struct {
	asset *Asset
	// keys are the partition keys, in order: only "" for an unpartitioned asset.
	keys []string
	// tasks are the task keys, parallel to keys.
	tasks []string
	// at maps a partition key to its position in keys.
	at map[string]int
	// shared means that Plan.Groups lists the partitions once for all readers.
	shared bool
	// group means that the asset has a group node for its tasks.
	group bool
	// order means that the asset has an order node for its tasks.
	order bool
	// after are the order nodes that every task of the asset waits for.
	after []string
}

type builder struct {
	request Request
	graph   *Graph
	order   []*node // topological
	nodes   map[ids.AssetKey]*node
	// chosen are the selected assets, including those without a selected partition.
	chosen  map[ids.AssetKey]bool
	gaps    map[ids.AssetKey]*gap
	earlier map[ids.AssetKey]map[string]Input
	plan    *Plan
	edges   int
	// warnings counts all warnings, including those that the plan omits.
	warnings int
	errs     []error
}

// maxErrors is the most errors that a message lists.
const maxErrors = 20

func joinSome(errs []error) error {
	if len(errs) > maxErrors {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", len(errs)-maxErrors))
	}
	return errors.Join(errs...)
}

// selectAssets decides which partitions of which assets the run materializes.
func (b *builder) selectAssets(order []ids.AssetKey) error {
	named, err := b.named()
	if err != nil {
		return err
	}
	days, err := selectedDays(b.request.Partitions)
	if err != nil {
		return err
	}
	b.chosen = setOf(slices.Concat(b.closure(named), b.request.Matched))
	asked := setOf(named)
	used, partitioned := make(map[string]bool, len(days)), false
	total := 0
	for _, key := range order {
		if !b.chosen[key] {
			continue
		}
		asset, _ := b.graph.Asset(key)
		if asset.Broken != "" {
			if asked[key] {
				b.errs = append(b.errs, fmt.Errorf("asset %s cannot be materialized: %s: run `servo validate`", key, asset.Broken))
			}
			b.plan.LeftOut = append(b.plan.LeftOut, key.String())
			continue
		}
		n, err := b.choose(asset, asked[key], days)
		if err != nil {
			b.errs = append(b.errs, err)
			continue
		}
		if total += len(n.keys); total > MaxTasks {
			return errTooMany
		}
		if asset.Partitions != nil {
			partitioned = true
			for _, day := range n.days(days) {
				used[day] = true
			}
		}
		if len(n.keys) > 0 {
			b.order = append(b.order, n)
			b.nodes[key] = n
		}
	}
	if len(b.errs) > 0 {
		return joinSome(b.errs)
	}
	if len(days) > 0 && !partitioned {
		return fmt.Errorf("no selected asset is partitioned, but partitions are selected (%s): remove -p, or select a partitioned asset", someOf(days))
	}
	return checkUsed(days, used)
}

// named returns the assets that the request selects by name.
func (b *builder) named() ([]ids.AssetKey, error) {
	if b.request.All {
		return nil, nil
	}
	if len(b.request.Select) == 0 && len(b.request.Matched) == 0 {
		return nil, errors.New("no assets are selected: name some, or select all with --all")
	}
	var errs []error
	for _, key := range b.request.Select {
		if _, ok := b.graph.Asset(key); ok {
			continue
		}
		err := fmt.Errorf("unknown asset %s", key)
		if near := Suggest(key.String(), keyStrings(b.graph.Keys())); near != "" {
			err = fmt.Errorf("%w: did you mean %s?", err, near)
		}
		errs = append(errs, err)
	}
	return b.request.Select, joinSome(errs)
}

func setOf(keys []ids.AssetKey) map[ids.AssetKey]bool {
	set := make(map[ids.AssetKey]bool, len(keys))
	for _, key := range keys {
		set[key] = true
	}
	return set
}

func keyStrings(keys []ids.AssetKey) []string {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = key.String()
	}
	return texts
}

func (b *builder) closure(named []ids.AssetKey) []ids.AssetKey {
	switch {
	case b.request.All:
		return b.graph.Keys()
	case b.request.Upstream:
		return b.graph.Upstream(named...)
	default:
		return named
	}
}

// choose returns the node of an asset, with those of the days that it declares.
func (b *builder) choose(a *Asset, named bool, days []string) (*node, error) {
	if a.Partitions == nil {
		return &node{asset: a, keys: []string{""}, tasks: []string{a.Key.String()}, at: map[string]int{"": 0}}, nil
	}
	p := a.Partitions
	for _, s := range b.request.Partitions {
		if s.Dimension != p.Dimension {
			return nil, fmt.Errorf("asset %s is partitioned by %s, not by %s: select -p %s", a.Key, p.Dimension, s.Dimension,
				Selection{p.Dimension, p.Start, p.Start})
		}
	}
	if len(days) == 0 {
		return nil, fmt.Errorf("asset %s is partitioned by %s (%s): select partitions, for example -p %s",
			a.Key, p.Dimension, p, exampleSelection(p))
	}
	n := &node{asset: a, at: map[string]int{}}
	if named {
		for _, day := range days {
			if !p.Contains(day) {
				return nil, fmt.Errorf("asset %s has no partition %s=%s: it has %s", a.Key, p.Dimension, day, p)
			}
		}
	}
	days, err := b.begunDays(a, n.days(days))
	if err != nil {
		return nil, err
	}
	for _, day := range days {
		key := p.Key(day)
		n.at[key] = len(n.keys)
		n.keys = append(n.keys, key)
		n.tasks = append(n.tasks, ids.TaskKey(a.Key, ids.Partition{p.Dimension: day}))
	}
	return n, nil
}

// exampleSelection returns the whole range, or the first day if the range has no end.
func exampleSelection(p *Partitions) Selection {
	if p.End == "" {
		return Selection{p.Dimension, p.Start, p.Start}
	}
	return Selection{p.Dimension, p.Start, p.End}
}

// days returns the selected days that the asset declares.
func (n *node) days(selected []string) []string {
	first, _ := slices.BinarySearch(selected, n.asset.Partitions.Start)
	last := len(selected)
	if end := n.asset.Partitions.End; end != "" {
		var found bool
		if last, found = slices.BinarySearch(selected, end); found {
			last++
		}
	}
	return selected[first:max(first, last)]
}

// checkUsed returns an error if a selected day belongs to no asset of the run.
func checkUsed(days []string, used map[string]bool) error {
	var unused []string
	for _, day := range days {
		if !used[day] {
			unused = append(unused, day)
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("no selected asset has partition %s: select other partitions", someOf(unused))
	}
	return nil
}

// someOf joins the first five texts and counts the others.
func someOf(texts []string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
}

// taskDef returns a task of an asset, with every default filled in.
func taskDef(a *Asset, taskKey, partitionKey string) event.TaskDef {
	def := event.TaskDef{
		TaskKey: taskKey, Kind: event.KindTask, AssetKey: a.Key.String(), PartitionKey: partitionKey,
		TriggerRule: a.TriggerRule, WorkerQueue: a.WorkerQueue, Pool: a.Pool, Priority: a.Priority, Output: a.Work.Output, Code: a.Code,
		MaxAttempts: max(a.Retries.MaxAttempts, 1), TimeoutSec: a.TimeoutSec, HeartbeatTimeoutSec: a.HeartbeatTimeoutSec,
	}
	if def.TriggerRule == "" {
		def.TriggerRule = event.RuleAllSuccess
	}
	if def.WorkerQueue == "" {
		def.WorkerQueue = "default"
	}
	if def.MaxAttempts > 1 {
		def.RetryInitialDelayMS = a.Retries.InitialDelayMS
		def.RetryMaxDelayMS = a.Retries.MaxDelayMS
		def.RetryMultiplierPermille = a.Retries.MultiplierPermille
		def.RetryJitterPermille = a.Retries.JitterPermille
		def.RetryUserErrors = a.Retries.UserErrors
	}
	return def
}
