package plan

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// SchemaVersion is the version of the stored plan.
const SchemaVersion = 1

// Limits of a plan. A domain has room for a million tasks; a single run must not use all of it.
const (
	MaxTasks = 200_000
	MaxEdges = 1_000_000
)

// tooManyError reports that a request has more partitions than allowed.
type tooManyError struct{ most int }

// Error implements error.
func (e *tooManyError) Error() string {
	if e.most == MaxTasks {
		return fmt.Sprintf("the run has more than %d tasks: select fewer assets or partitions, or run them in chunks with `servo backfill create`", e.most)
	}
	return fmt.Sprintf("more than %d partitions are selected: select fewer assets or partitions", e.most)
}

func (b *builder) tooMany() error { return &tooManyError{b.most} }

// Request describes a run to plan.
type Request struct {
	// Root is the absolute folder of the project, for workers on the same machine.
	Root string
	// Source is the hash of the archive of the project's files. If it is set, workers do not need Root.
	Source string
	// Data lists the folders below Root that queries may read. Empty: the default.
	Data []string
	// Assets lists all assets of the project, in any order.
	Assets []Asset
	// Graph is the graph of Assets. It may be nil. A caller that plans many requests for the same assets sets it to
	// save time.
	Graph *Graph
	// Select lists the assets that the user has named. Matched lists the assets that only a pattern or a
	// tag selects. If All is set, every asset is selected instead.
	Select, Matched []ids.AssetKey
	All             bool
	// Upstream adds everything that the selected assets depend on, directly or indirectly.
	Upstream bool
	// Partitions selects partitions of the partitioned assets. An asset in Select must have every selected dimension
	// and value. For other assets, selections that do not fit are ignored. Suppose that an asset is not in Select, and
	// that no selection restricts its time dimension. Then it gets the partitions that the selected partitions of other
	// assets read. If there are none, it gets the partitions that read the selected partitions of other assets.
	Partitions []Selection
	// If Only is set, it replaces Partitions: it maps each selected asset to the partitions to materialize, sorted.
	Only map[ids.AssetKey][]string
	// ChecksOnly plans tasks that check the visible outputs of the selected partitions and materialize
	// nothing. Assets without checks and partitions without an output are left out. Without a
	// selection of partitions, all partitions with an output are checked.
	ChecksOnly bool
	// AllowIncomplete treats [RequiresComplete] as [RequiresAvailable].
	AllowIncomplete bool
	// Form is the form in which errors and warnings name the options of the request.
	Form Form
	// Priority and Pool replace the priorities and the pools of the assets, if they are set.
	Priority *int32
	Pool     string
	// AllowFuture lets Partitions contain periods that have not begun.
	AllowFuture bool
	// ReadsAt is the time of planning. It has an effect only if it is later than Calendar.Now, which is the time of the
	// request: see [space.Calendar.ReadsAt].
	ReadsAt time.Time
	// Materialized returns the materializations of an asset by earlier runs: one Input with
	// MaterializationID and URI for each partition, in any order. If Materialized is nil, there are none.
	Materialized func(asset ids.AssetKey) []Input
	// History returns the values that a check of an asset has measured in other partitions than the given one, the
	// newest last. The parameter "season" is the day of the week of the values to return, such as monday; it is "" for
	// a check without the setting `seasonal`. If History is nil, no values exist.
	History func(asset string, check *quality.Check, season, partition string) []int64
	// Calendar decides which periods have begun, and which are expected, because they ended long enough ago: see
	// ready_after. In the zero value, every period has begun, and the periods of a dimension are expected only if the
	// dimension declares an end.
	Calendar Calendar
}

// AssetGraph returns the graph of the request's assets.
func (r *Request) AssetGraph() (*Graph, error) {
	if r.Graph != nil {
		return r.Graph, nil
	}
	return NewGraph(r.Assets)
}

// Build plans a run. Equal requests return equal plans, byte for byte. The error lists every problem and what to do
// about it.
func Build(r Request) (*Plan, error) {
	b, err := newBuilder(r, MaxTasks)
	if err != nil {
		return nil, err
	}
	if err := b.selectAssets(); err != nil {
		return nil, err
	}
	if err := b.leaveOut(); err != nil {
		return nil, err
	}
	if err := b.batchAssets(); err != nil {
		return nil, err
	}
	if r.ChecksOnly {
		b.nodes = map[ids.AssetKey]*node{} // no task reads an output of another task of this run
	}
	b.addOrder()
	b.shareInputs()
	if err := b.addAssets(); err != nil {
		return nil, err
	}
	b.warnOfExternal()
	switch {
	case len(b.errs) > 0:
		return nil, joinSome(b.errs)
	case len(b.plan.Tasks) == 0 && r.ChecksOnly && len(b.plan.LeftOut) == 0:
		return nil, errors.New("nothing to check: no selected asset has checks and an output: see `servo checks`")
	case len(b.plan.Tasks) == 0 && len(b.plan.LeftOut) == 0:
		return nil, fmt.Errorf("no partition is selected: a range without an end selects only periods that have ended: name the partitions, or write %s", r.Form.Select("today"))
	case len(b.plan.Tasks) == 0:
		return nil, fmt.Errorf("no selected asset can be materialized (%s): their files have problems: run `servo validate`", someOf(b.plan.LeftOut))
	case len(b.plan.Tasks) > MaxTasks: // including the group nodes
		return nil, b.tooMany()
	}
	if more := b.warnings - len(b.plan.Warnings); more > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("and %d more warnings", more))
	}
	if left := b.plan.LeftOut; len(left) > 0 {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf("skipped %d %s with problems (%s): run `servo validate`",
			len(left), map[bool]string{true: "asset", false: "assets"}[len(left) == 1], someOf(left)))
	}
	return b.plan, nil
}

// newBuilder returns an error if the graph of the assets has problems, such as cycles.
func newBuilder(r Request, most int) (*builder, error) {
	g, err := r.AssetGraph()
	if err != nil {
		return nil, err
	}
	if _, err := g.Topological(); err != nil {
		return nil, err
	}
	return &builder{
		request: r, graph: g, most: most, nodes: map[ids.AssetKey]*node{}, omitted: map[ids.AssetKey]map[string]bool{}, earlier: map[ids.AssetKey]map[string]Input{},
		expected: map[ids.AssetKey][]string{}, degraded: map[ids.AssetKey]string{}, readers: g.Readers(r.Calendar),
		plan: &Plan{
			SchemaVersion: SchemaVersion, Root: r.Root, Source: r.Source, Data: r.Data, SecretVariables: g.secrets(),
			Assets: map[string]Work{},
		},
	}, nil
}

// Choice is the result of [Choose]: the partitions that a request selects.
type Choice struct {
	Partitions map[ids.AssetKey][]string
	// Selected are the selections. Relative selections, such as latest, are replaced by the dates that they mean.
	Selected []string
	Warnings []string
}

// Choose returns the partitions that a request selects, without planning tasks. It returns an error if their number
// exceeds the limit "most".
func Choose(r Request, most int) (*Choice, error) {
	b, err := newBuilder(r, most)
	if err != nil {
		return nil, err
	}
	if err := b.selectAssets(); err != nil {
		return nil, err
	}
	c := &Choice{Partitions: make(map[ids.AssetKey][]string, len(b.order)), Selected: b.plan.Selected, Warnings: b.plan.Warnings}
	for _, n := range b.order {
		c.Partitions[n.asset.Key] = n.keys
	}
	return c, nil
}

// addAssets adds the tasks of the run.
func (b *builder) addAssets() error {
	if b.request.ChecksOnly {
		for _, n := range b.order {
			b.addTasks(n)
		}
		return nil
	}
	for _, key := range b.involved {
		b.addAsset(key)
		if b.edges > MaxEdges {
			return fmt.Errorf("the run has more than %d dependencies between tasks: select fewer partitions", MaxEdges)
		}
	}
	return nil
}

// addAsset adds the tasks of an asset, or the order node of a gap.
func (b *builder) addAsset(key ids.AssetKey) {
	if g := b.gaps[key]; g != nil {
		b.addOrderNode(key, g.waitsFor)
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
	// batches lists the partitions of each task, if the asset has a batch; nil: each partition has its own task.
	batches [][]string
	// shared means that the asset's partitions are listed only once, in Plan.Groups, for all tasks that read all of
	// them.
	shared bool
	// group means that the asset has a group node for its tasks.
	group bool
	// order means that the asset has an order node for its tasks.
	order bool
	// waitsFor lists the order nodes that every task of the asset waits for.
	waitsFor []string
}

type builder struct {
	request Request
	graph   *Graph
	order   []*node // topological
	nodes   map[ids.AssetKey]*node
	// chosen are the selected assets, including those without a selected partition. involved are the chosen assets and
	// all their direct and indirect dependencies, in topological order.
	chosen   map[ids.AssetKey]bool
	involved []ids.AssetKey
	gaps     map[ids.AssetKey]*gap
	// omitted maps each asset to its selected partitions that the run leaves out. For an asset with problems, the map
	// has an entry without partitions.
	omitted map[ids.AssetKey]map[string]bool
	earlier map[ids.AssetKey]map[string]Input
	// expected caches the expected partitions of those assets of which another asset reads all partitions.
	expected map[ids.AssetKey][]string
	// degraded caches the results of degradedOfAll.
	degraded map[ids.AssetKey]string
	readers  *Readers
	plan     *Plan
	most     int // the maximum number of partitions
	edges    int
	// warnings counts all warnings, including those that the plan omits.
	warnings int
	errs     []error
}

// maxErrors is the maximum number of errors that a message lists.
const maxErrors = 20

func joinSome(errs []error) error {
	if len(errs) > maxErrors {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", len(errs)-maxErrors))
	}
	return errors.Join(errs...)
}

// named returns the assets that the request names, and checks that they exist. If the request selects all assets, it
// returns nil.
func (b *builder) named() ([]ids.AssetKey, error) {
	if b.request.All {
		return nil, nil
	}
	if len(b.request.Select) == 0 && len(b.request.Matched) == 0 {
		return nil, fmt.Errorf("no assets are selected: name some, or select all with %s", b.request.Form.Name(OptionAll))
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

// someOf joins the first five texts, and adds the number of the others.
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
	for _, d := range a.Reads {
		if d.RequireQuality {
			def.RequireQuality = append(def.RequireQuality, d.Asset.String())
		}
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
		def.RetryOn = a.Retries.On
	}
	// Set RetryNever even if max_attempts is 1: a task gets further attempts after losses to infrastructure.
	def.RetryNever = a.Retries.Never
	return def
}
