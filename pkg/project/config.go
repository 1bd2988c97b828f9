package project

import (
	"cmp"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Limits of servo.yaml.
const (
	maxAttempts    = 100
	maxSlots       = 100_000
	maxConcurrency = 1_024
	maxMultiplier  = 100
	minMemory      = 16_000_000
	maxMemory      = 1_000_000_000_000_000
)

// readConfig reads servo.yaml.
func (l *loader) readConfig() {
	l.project.Name, l.project.Extensions = filepath.Base(l.project.Root), plan.ExtensionsDir
	if _, err := fs.Stat(l.files, ConfigFile); errors.Is(err, fs.ErrNotExist) {
		l.report(place{file: ConfigFile}, "create a project with servo init, or name its folder", "no %s in %s", ConfigFile, l.project.Root)
		return
	}
	text, ok := l.readFile(ConfigFile)
	if !ok {
		return
	}
	f := yamlFile{l, ConfigFile}
	n := f.parse(text)
	if n == nil || isNull(n) {
		return // the file is empty, so all defaults apply
	}
	if n.Kind == yaml.MappingNode {
		n = f.environment(n)
	}
	f.mapping(n, ConfigFile, configFields.fields(f, &l.project))
}

// configFields are the fields of servo.yaml.
var configFields = slices.Concat(baseFields, environmentFields)

// baseFields are the fields of servo.yaml that environments cannot change.
var baseFields = table[Project]{
	other("name", typed("name", shape{Description: "The name of the project. Default: the name of its folder.", Examples: []any{"weather"}}),
		func(f yamlFile, n *yaml.Node, p *Project) { f.setName(n, "name", &p.Name) }),
	environmentsField,
}

// environmentFields are the fields that both servo.yaml and its environments can set.
var environmentFields = table[Project]{
	other("tenant", shape{Type: "string", Pattern: domainPattern, PatternHelp: "Use 1 to 63 of a-z, 0-9 and -.", Description: "The tenant of the project's runs: 1 to 63 of a-z, 0-9 and -.", Default: "default", Examples: []any{"acme"}},
		func(f yamlFile, n *yaml.Node, p *Project) { f.domainName(n, "tenant", &p.Domain.Tenant) }),
	other("workspace", shape{
		Type: "string", Pattern: workspacePattern, PatternHelp: "Use 1 to 63 of a-z, 0-9 and -, and $USER for the name of the user.",
		Description: "The workspace of the project's runs: 1 to 63 of a-z, 0-9 and -. `$USER` is replaced with the name of the user. " +
			"Default: the name of the environment, or `default`.",
		Examples: []any{"dev"},
	}, func(f yamlFile, n *yaml.Node, p *Project) { f.domainName(n, "workspace", &p.Domain.Workspace) }),
	storeField, deployField, protectedField, varsField, schedulesField, channelsField, alertsField,
	whole("max_concurrent_tasks", shape{Description: "How many tasks of the workspace execute at once, in all runs together.", Default: 1000},
		1, maxSlots, func(p *Project) *int32 { return &p.MaxConcurrentTasks }),
	whole("max_parallelism", shape{Description: "How many tasks of a single run execute at once. Default: no limit for a run.", Examples: []any{16}},
		1, maxSlots, func(p *Project) *int32 { return &p.MaxParallelism }),
	other("pools", poolsShape, func(f yamlFile, n *yaml.Node, _ *Project) { f.pools(n) }),
	other("workers", workerFields.shape(shape{Description: "The workers on this machine.", Examples: []any{map[string]any{"concurrency": 4, "memory_limit": "512MB", "threads": 2}}}),
		func(f yamlFile, n *yaml.Node, p *Project) {
			f.mapping(n, "workers", workerFields.fields(f, &p.Workers))
		}),
	other("data", shape{
		Type:    "array",
		Items:   &shape{Type: "string", Pattern: folderPattern, PatternHelp: "Write a folder in the project with /. It must not contain .., *, ?, [ or names that begin with a dot."},
		Default: []any{"data"}, Examples: []any{[]any{"data", "seeds"}},
		Description: `The folders whose files queries may read, relative to the project. "." is the whole project.`,
	}, func(f yamlFile, n *yaml.Node, p *Project) { f.dataFolders(n, &p.Data) }),
	sourcesField, publishPlacesField, pricingField,
	other("defaults", defaultFields.shape(shape{Description: "Values of fields that an asset does not set.", Examples: []any{map[string]any{"timeout": "10m"}}}),
		func(f yamlFile, n *yaml.Node, p *Project) {
			f.mapping(n, "defaults", defaultFields.fields(f, &p.Defaults))
		}),
	other("keep_logs", typed("age", shape{Description: "How long logs are kept: 1h to 36500d.", Default: "90d"}),
		func(f yamlFile, n *yaml.Node, p *Project) { f.days(n, "keep_logs", &p.Defaults.KeepLogs) }),
}

var workerFields = table[Workers]{
	whole("concurrency", shape{Description: "How many tasks execute at once on this machine. Default: twice the number of the machine's cores.", Examples: []any{4}},
		1, maxConcurrency, func(w *Workers) *int { return &w.Concurrency }),
	other("memory_limit", typed("size", shape{
		Description: "DuckDB's memory for each task. Default: half of the memory of the machine or container, divided by concurrency.",
	}), func(f yamlFile, n *yaml.Node, w *Workers) { f.memory(n, "memory_limit", &w.MemoryLimit) }),
	whole("threads", shape{Description: "DuckDB's threads for each task. Default: the number of cores, divided by the number of running tasks.", Examples: []any{2}},
		1, maxConcurrency, func(w *Workers) *int { return &w.Threads }),
}

var poolsShape = shape{
	Type: "object", PropertyNames: &shape{Pattern: namePattern.String()}, Examples: []any{map[string]any{"charts": 1, "warehouse": 8}},
	Additional:  shape{Type: "integer", Minimum: new(int64(1)), Maximum: new(int64(maxSlots)), Description: "The number of slots of the pool."},
	Description: "Named limits: how many tasks of each pool execute at once, in all runs together. 1 to 100,000 slots each.",
}

// defaultFields are the fields with which servo.yaml sets defaults for all assets.
var defaultFields = table[Defaults]{
	retriesField(func(d *Defaults) *plan.Retries { return &d.Retries }),
	timeoutField(func(d *Defaults) *int32 { return &d.TimeoutSec }),
	heartbeatField(func(d *Defaults) *int32 { return &d.HeartbeatTimeoutSec }),
	poolField(func(d *Defaults) *string { return &d.Pool }),
	priorityField(func(d *Defaults) *int32 { return &d.Priority }),
	keepField(func(d *Defaults) *plan.Keep { return &d.Keep }),
}

// These fields belong to both assets and defaults.

func retriesField[T any](at func(*T) *plan.Retries) field[T] {
	about := typed("retries", shape{
		Description: "When and how often a failed attempt is retried. Without this field, errors of the query or the command itself are not retried.",
		Examples:    []any{map[string]any{"max_attempts": 5, "initial_delay": "30s"}},
	})
	return other("retries", about, func(f yamlFile, n *yaml.Node, to *T) { f.retries(n, at(to)) })
}

func timeoutField[T any](at func(*T) *int32) field[T] {
	about := typed("duration", shape{Description: "How long an attempt may run: 1s to 168h, in whole seconds. Default: no timeout."})
	return other("timeout", about, func(f yamlFile, n *yaml.Node, to *T) { f.seconds(n, "timeout", at(to)) })
}

func heartbeatField[T any](at func(*T) *int32) field[T] {
	about := typed("duration", shape{
		Description: "How long an attempt may run without a heartbeat: 1s to 168h, in whole seconds.", Default: "5m",
	})
	return other("heartbeat_timeout", about, func(f yamlFile, n *yaml.Node, to *T) { f.seconds(n, "heartbeat_timeout", at(to)) })
}

func poolField[T any](at func(*T) *string) field[T] {
	about := typed("name", shape{Description: "The pool of " + ConfigFile + " to which the tasks belong. A pool limits how many of its tasks run at once. Default: none.", Examples: []any{"charts"}})
	return other("pool", about, func(f yamlFile, n *yaml.Node, to *T) { f.pool(n, at(to)) })
}

func priorityField[T any](at func(*T) *int32) field[T] {
	about := shape{Description: "Tasks with a greater number start first.", Default: 0, Examples: []any{10}}
	return whole("priority", about, math.MinInt32, math.MaxInt32, at)
}

func keepField[T any](at func(*T) *plan.Keep) field[T] {
	about := typed("keep", shape{
		Description: "Which superseded outputs are kept: the newest versions, for a limited time; or all.",
		Examples:    []any{map[string]any{"versions": 3, "for": "30d"}, "all"},
	})
	return other("keep", about, func(f yamlFile, n *yaml.Node, to *T) { f.keep(n, at(to)) })
}

// setName reads a name and stores it in *to.
func (f yamlFile) setName(n *yaml.Node, what string, to *string) {
	if s, ok := f.label(n, what); ok {
		*to = s
	}
}

// domainName reads a tenant or a workspace.
func (f yamlFile) domainName(n *yaml.Node, what string, to *string) {
	s, ok := f.text(n, what)
	if !ok {
		return
	}
	d := ids.Domain{Tenant: "default", Workspace: "default"}
	if what == "tenant" {
		d.Tenant = s
	} else {
		d.Workspace = f.withUser(s)
	}
	if err := d.Validate(); err != nil {
		f.fail(n, "", "%v", err)
		return
	}
	if *to = d.Tenant; what != "tenant" {
		*to = d.Workspace
	}
}

// pools reads the number of slots of each pool. Users choose the names of pools, so every name is allowed.
func (f yamlFile) pools(n *yaml.Node) {
	known := fields{}
	f.project.Pools = map[string]int32{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !namePattern.MatchString(key.Value) {
			f.fail(key, "", "invalid pool name %s: use 1 to 63 of a-z, 0-9, _ and -", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) {
			var slots int32
			f.int32(n, "number of slots of pool "+quoteShort(key.Value), 1, maxSlots, &slots)
			f.project.Pools[key.Value] = slots
		}
	}
	f.mapping(n, "pools", known)
}

// dataFolders reads the folders whose files queries may read.
func (f yamlFile) dataFolders(n *yaml.Node, to *[]string) {
	f.each(n, "data", func(item *yaml.Node) {
		name, ok := f.text(item, "an item of data")
		if !ok {
			return
		}
		if name = strings.TrimSuffix(name, "/"); !plan.ValidDataFolder(name) {
			f.fail(item, "write a folder in the project with /, for example data; it must not contain .., *, ?, [ or names that begin with a dot",
				"invalid data folder %s", quoteShort(name))
			return
		}
		*to = append(*to, name)
	})
}

// maxVersions is the maximum number of versions of a partition that a rule can keep.
const maxVersions = 1_000_000

// keep reads a retention rule into *to, which contains the project's defaults. Fields that the rule does not set keep
// these defaults.
func (f yamlFile) keep(n *yaml.Node, to *plan.Keep) {
	if n.Kind == yaml.ScalarNode && n.Value == "all" {
		to.All = true
		return
	}
	if n.Kind != yaml.MappingNode {
		f.fail(n, "write {versions: 3, for: 30d}, or all", "keep must be a mapping or all, got %s", kindOf(n))
		return
	}
	to.All = false
	f.mapping(n, "keep", keepFields.fields(f, to))
}

var keepFields = table[plan.Keep]{
	whole("versions", shape{Description: "How many of the newest versions of each partition are kept, counting the visible one.", Default: 3},
		1, maxVersions, func(k *plan.Keep) *int { return &k.Versions }),
	other("for", typed("age", shape{Description: "How long a version is kept after it was superseded: 1h to 36500d.", Default: "30d"}),
		func(f yamlFile, n *yaml.Node, k *plan.Keep) { f.days(n, "for", &k.For) }),
}

// pool reads the name of a pool. [loader.link] checks that the pool exists.
func (f yamlFile) pool(n *yaml.Node, to *string) {
	if s, ok := f.text(n, "pool"); ok {
		*to = s
		f.loader.pools = append(f.loader.pools, f.place(n))
	}
}

// defaultRetries returns the retry policy of a project that declares none (ADR 060). It does not retry errors in the
// query, the command or the data.
func defaultRetries() plan.Retries {
	return plan.Retries{
		MaxAttempts: 3, InitialDelayMS: 10_000, MaxDelayMS: defaultMaxDelayMS, MultiplierPermille: 2_000, JitterPermille: 100,
	}
}

const defaultMaxDelayMS = 3_600_000

// retryPolicy holds the fields of a retry policy while its file is read.
type retryPolicy struct {
	plan.Retries
	givenMax bool
}

var retryFields = table[retryPolicy]{
	whole("max_attempts", shape{Description: "How many attempts a task has. 1: it is not retried.", Default: 3},
		1, maxAttempts, func(r *retryPolicy) *int32 { return &r.MaxAttempts }),
	other("initial_delay", shape{
		AnyOf:       []*shape{{Ref: "#/definitions/duration"}, {Type: "string", Const: "0"}, {Type: "integer", Minimum: new(int64), Maximum: new(int64)}},
		Description: "The delay before the first retry: 0 to 24h.", Default: "10s",
	}, func(f yamlFile, n *yaml.Node, r *retryPolicy) { f.millis(n, "initial_delay", 0, &r.InitialDelayMS) }),
	other("max_delay", typed("duration", shape{Description: "The maximum delay: 1ms to 24h, and not less than initial_delay.", Default: "1h"}),
		func(f yamlFile, n *yaml.Node, r *retryPolicy) {
			r.givenMax = true
			f.millis(n, "max_delay", time.Millisecond, &r.MaxDelayMS)
		}),
	decimal("multiplier", shape{Description: "The factor by which the delay grows with each retry. At most three decimals.", Default: 2},
		1, maxMultiplier, func(r *retryPolicy) *int32 { return &r.MultiplierPermille }),
	decimal("jitter", shape{Description: "The random part of a delay: 0.1 is up to a tenth. At most three decimals.", Default: 0.1},
		0, 1, func(r *retryPolicy) *int32 { return &r.JitterPermille }),
	retryRules("on", "Codes and categories of errors that are always retried. Other errors are retried if they are retryable.",
		[]any{"transient", "EXIT_STATUS"}, func(r *retryPolicy) *[]string { return &r.On }),
	retryRules("never", "Codes and categories of errors that are never retried, even if `on` lists them.",
		[]any{"OUT_OF_MEMORY"}, func(r *retryPolicy) *[]string { return &r.Never }),
}

// retryRules returns a field with a list of error codes and categories.
func retryRules(name, about string, example []any, at func(*retryPolicy) *[]string) field[retryPolicy] {
	return other(name, shape{
		Type: "array", Items: &shape{Type: "string", Pattern: retryRulePattern(), PatternHelp: "Write a category, a code of Servo, or X_ followed by A-Z, 0-9 and _."},
		MaxItems: event.MaxRetryRules, Description: about, Examples: []any{example},
	}, func(f yamlFile, n *yaml.Node, r *retryPolicy) {
		var rules []string
		f.each(n, name, func(item *yaml.Node) {
			s, ok := f.text(item, "an item of "+name)
			switch {
			case !ok:
			case name == "on" && s == "CHECK_FAILED":
				f.fail(item, "remove it", "a task whose check has failed is never retried in its run, because the check would read the same inputs")
			case event.ValidRetryRule(s):
				rules = append(rules, s)
			default:
				known := append(event.Categories(), event.Codes()...)
				suggestion := cmp.Or(didYouMean(plan.Suggest(s, known)), "write a category such as transient, a code such as EXIT_STATUS, or one of your own such as X_QUOTA")
				f.fail(item, suggestion, "%s is neither a category nor a code of errors", quoteShort(s))
			}
		})
		if len(rules) > event.MaxRetryRules {
			f.fail(n, "", "%s may list at most %d codes and categories", name, event.MaxRetryRules)
			rules = rules[:event.MaxRetryRules]
		}
		*at(r) = rules
	})
}

// retryRulePattern matches an item of the lists `on` and `never`: a category, one of Servo's codes, or a code that
// begins with X_.
func retryRulePattern() string {
	return "^(" + strings.Join(append(event.Categories(), event.Codes()...), "|") + "|X_[A-Z0-9_]{1,62})$"
}

// retries reads a retry policy into *to, which contains the project's defaults. Fields that the policy does not set
// keep these defaults. A declared policy retries every retryable error, including errors of the user's own code.
func (f yamlFile) retries(n *yaml.Node, to *plan.Retries) {
	r := retryPolicy{Retries: *to, givenMax: to.MaxDelayMS != defaultMaxDelayMS}
	r.UserErrors = true
	f.mapping(n, "retries", retryFields.fields(f, &r))
	switch {
	case n.Kind != yaml.MappingNode:
		return
	case !r.givenMax:
		r.MaxDelayMS = max(defaultMaxDelayMS, r.InitialDelayMS)
	case r.MaxDelayMS > 0 && r.MaxDelayMS < r.InitialDelayMS: // 0: the problem was already reported
		f.fail(n, "", "initial_delay is longer than max_delay")
	}
	*to = r.Retries
}

func hasField(n *yaml.Node, name string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}
