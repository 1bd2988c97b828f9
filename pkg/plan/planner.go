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

// Limits of a plan: a domain holds a million tasks, and no run should take it all.
const (
	MaxTasks = 200_000
	MaxEdges = 1_000_000
)

var errTooMany = fmt.Errorf("the run has more than %d tasks: select fewer assets or partitions", MaxTasks)

// Request is what is asked of a run.
type Request struct {
	// Root is the absolute folder of the project, for workers on the same machine.
	Root string
	// Data are the folders below Root that queries may read; empty: the default.
	Data []string
	// Assets are all assets of the project, in any order.
	Assets []Asset
	// Select are the assets to make; All means every one.
	Select []ids.AssetKey
	All    bool
	// Upstream adds everything that the selected assets depend on.
	Upstream bool
	// Partitions are the partitions to make of the partitioned assets. An asset
	// that was named must have all of them; of the others (All, Upstream) those
	// that they have are made.
	Partitions []Selection
	// Materialized lists what earlier runs have made of an asset: one Input a
	// partition, with its MaterializationID and URI, in any order. Nil: nothing.
	Materialized func(asset ids.AssetKey) []Input
	// Calendar determines which days have begun, and which have ended and are expected to be
	// there. The zero value has every day, and expects only partitions that have an end.
	Calendar Calendar
}

// Build makes the plan of a run. The same request gives the same plan, byte for
// byte. Its error names everything that is in the way, and what to do about it.
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
		return nil, fmt.Errorf("no selected asset can be made (%s): their files have problems: run `servo validate`, which shows them", someOf(b.plan.LeftOut))
	case len(b.plan.Tasks) > MaxTasks: // with the group nodes
		return nil, errTooMany
	}
	if more := b.warnings - len(b.plan.Warnings); more > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("and %d more warnings", more))
	}
	if left := b.plan.LeftOut; len(left) > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("left out %s: their files have problems, which `servo validate` shows", someOf(left)))
	}
	return b.plan, nil
}

// addAsset adds the tasks of an asset of the run, or the order node of a gap.
func (b *builder) addAsset(key ids.AssetKey) {
	if g := b.gaps[key]; g != nil {
		b.addOrderNode(key, g.after)
	} else if n := b.nodes[key]; n != nil && len(n.tasks) > 0 {
		b.addTasks(n)
	}
}

// node is an asset of the run.
type node struct {
	asset *Asset
	// keys are its partition keys, in order: one "", when it is not partitioned.
	keys []string
	// tasks are the task keys, by position of keys.
	tasks []string
	// at is the position of a partition key in keys.
	at map[string]int
	// shared: its partitions are listed once, in Plan.Groups.
	shared bool
	// group: a group node stands for its tasks.
	group bool
	// order: an order node stands for the end of its tasks.
	order bool
	// after are the order nodes that every task of the asset waits for.
	after []string
}

type builder struct {
	request Request
	graph   *Graph
	order   []*node // topological
	nodes   map[ids.AssetKey]*node
	// chosen are the assets that the selection names, also those without a selected partition.
	chosen  map[ids.AssetKey]bool
	gaps    map[ids.AssetKey]*gap
	earlier map[ids.AssetKey]map[string]Input
	plan    *Plan
	edges   int
	// warnings counts the warnings, also those that the plan leaves out.
	warnings int
	errs     []error
}

// maxErrors is how many errors are worth reading.
const maxErrors = 20

func joinSome(errs []error) error {
	if len(errs) > maxErrors {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", len(errs)-maxErrors))
	}
	return errors.Join(errs...)
}

// selectAssets decides which partitions of which assets the run makes.
func (b *builder) selectAssets(order []ids.AssetKey) error {
	named, err := b.named()
	if err != nil {
		return err
	}
	days, err := selectedDays(b.request.Partitions)
	if err != nil {
		return err
	}
	b.chosen = setOf(b.closure(named))
	asked := setOf(named)
	used := make(map[string]bool, len(days))
	total := 0
	for _, key := range order {
		if !b.chosen[key] {
			continue
		}
		asset, _ := b.graph.Asset(key)
		if asset.Broken != "" {
			if asked[key] {
				b.errs = append(b.errs, fmt.Errorf("asset %s cannot be made: %s: run `servo validate`, which shows them", key, asset.Broken))
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
	return checkUsed(days, used)
}

// named are the assets that were asked for by name.
func (b *builder) named() ([]ids.AssetKey, error) {
	if b.request.All {
		return nil, nil
	}
	if len(b.request.Select) == 0 {
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

// choose is an asset with those of the days that it has.
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

// exampleSelection is the whole range where it ends, else its first day.
func exampleSelection(p *Partitions) Selection {
	if p.End == "" {
		return Selection{p.Dimension, p.Start, p.Start}
	}
	return Selection{p.Dimension, p.Start, p.End}
}

// days are those of the selected days that the asset has.
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

// checkUsed refuses days that no asset of the run has.
func checkUsed(days []string, used map[string]bool) error {
	if len(days) > 0 && len(used) == 0 {
		return fmt.Errorf("no selected asset is partitioned, but partitions are selected (%s): remove -p, or select a partitioned asset", someOf(days))
	}
	var unused []string
	for _, day := range days {
		if !used[day] {
			unused = append(unused, day)
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("no selected asset has the partitions %s: select fewer", someOf(unused))
	}
	return nil
}

// someOf is a list with the end left out where it is long.
func someOf(texts []string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
}

// taskDef is a task of an asset with every default filled in.
func taskDef(a *Asset, taskKey, partitionKey string) event.TaskDef {
	def := event.TaskDef{
		TaskKey: taskKey, Kind: event.KindTask, AssetKey: a.Key.String(), PartitionKey: partitionKey,
		TriggerRule: a.TriggerRule, WorkerQueue: a.WorkerQueue, Pool: a.Pool, Priority: a.Priority, Output: a.Work.Output,
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
