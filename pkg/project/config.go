package project

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

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
	l.project.Name = filepath.Base(l.project.Root)
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
		return // an empty file: all defaults
	}
	p := &l.project
	f.mapping(n, ConfigFile, fields{
		"name":                 func(n *yaml.Node) { f.setName(n, "name", &p.Name) },
		"tenant":               func(n *yaml.Node) { f.domainName(n, "tenant", &p.Domain.Tenant) },
		"workspace":            func(n *yaml.Node) { f.domainName(n, "workspace", &p.Domain.Workspace) },
		"max_concurrent_tasks": func(n *yaml.Node) { f.int32(n, "max_concurrent_tasks", 1, maxSlots, &p.MaxConcurrentTasks) },
		"max_parallelism":      func(n *yaml.Node) { f.int32(n, "max_parallelism", 1, maxSlots, &p.MaxParallelism) },
		"pools":                func(n *yaml.Node) { f.pools(n) },
		"workers":              func(n *yaml.Node) { f.workers(n, &p.Workers) },
		"data":                 func(n *yaml.Node) { f.dataFolders(n, &p.Data) },
		"defaults":             func(n *yaml.Node) { f.defaults(n, &p.Defaults) },
		"keep_logs":            func(n *yaml.Node) { f.days(n, "keep_logs", &p.Defaults.KeepLogs) },
	})
}

// setName reads a name into to.
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
		d.Workspace = s
	}
	if err := d.Validate(); err != nil {
		f.fail(n, "", "%v", err)
		return
	}
	*to = s
}

// pools reads the number of slots of each pool. Users choose the names, so every field is
// known.
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

func (f yamlFile) workers(n *yaml.Node, w *Workers) {
	count := func(what string, to *int) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if i, ok := f.integer(n, what, 1, maxConcurrency); ok {
				*to = int(i)
			}
		}
	}
	f.mapping(n, "workers", fields{
		"concurrency":  count("concurrency", &w.Concurrency),
		"threads":      count("threads", &w.Threads),
		"memory_limit": func(n *yaml.Node) { f.memory(n, &w.MemoryLimit) },
	})
}

// dataFolders reads the folders whose files queries may read.
func (f yamlFile) dataFolders(n *yaml.Node, to *[]string) {
	f.each(n, "data", func(item *yaml.Node) {
		name, ok := f.text(item, "an item of data")
		if !ok {
			return
		}
		if name = strings.TrimSuffix(name, "/"); !plan.ValidDataFolder(name) {
			f.fail(item, "write data: [data, seeds]",
				"invalid data folder %s: expected a folder in the project, with slashes, without \"..\", hidden folders and * ? [", quoteShort(name))
			return
		}
		*to = append(*to, name)
	})
}

func (f yamlFile) defaults(n *yaml.Node, d *Defaults) {
	f.mapping(n, "defaults", fields{
		"retries":           func(n *yaml.Node) { f.retries(n, &d.Retries) },
		"timeout":           func(n *yaml.Node) { f.seconds(n, "timeout", &d.TimeoutSec) },
		"heartbeat_timeout": func(n *yaml.Node) { f.seconds(n, "heartbeat_timeout", &d.HeartbeatTimeoutSec) },
		"pool":              func(n *yaml.Node) { f.pool(n, &d.Pool) },
		"priority":          func(n *yaml.Node) { f.int32(n, "priority", math.MinInt32, math.MaxInt32, &d.Priority) },
		"keep":              func(n *yaml.Node) { f.keep(n, &d.Keep) },
	})
}

// maxVersions is more versions of a partition than anybody keeps.
const maxVersions = 1_000_000

// keep reads a retention rule over to. Missing fields keep the values of the project's
// defaults.
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
	f.mapping(n, "keep", fields{
		"versions": func(n *yaml.Node) {
			if i, ok := f.integer(n, "versions", 1, maxVersions); ok {
				to.Versions = int(i)
			}
		},
		"for": func(n *yaml.Node) { f.days(n, "for", &to.For) },
	})
}

// pool reads the name of a pool. [loader.link] checks that the pool exists.
func (f yamlFile) pool(n *yaml.Node, to *string) {
	if s, ok := f.text(n, "pool"); ok {
		*to = s
		f.loader.pools = append(f.loader.pools, f.place(n))
	}
}

// defaultRetries returns the retry policy of a project that sets none (ADR 060). It does not
// retry errors in the query, the command or the data.
func defaultRetries() plan.Retries {
	return plan.Retries{
		MaxAttempts: 3, InitialDelayMS: 10_000, MaxDelayMS: defaultMaxDelayMS, MultiplierPermille: 2_000, JitterPermille: 100,
	}
}

const defaultMaxDelayMS = 3_600_000

// retries reads a retry policy over to. Missing fields keep the project's defaults. An explicit
// policy retries every retryable error, including errors of the user's own code.
func (f yamlFile) retries(n *yaml.Node, to *plan.Retries) {
	r := *to
	r.UserErrors = true
	givenMax := r.MaxDelayMS != defaultMaxDelayMS
	f.mapping(n, "retries", fields{
		"max_attempts":  func(n *yaml.Node) { f.int32(n, "max_attempts", 1, maxAttempts, &r.MaxAttempts) },
		"initial_delay": func(n *yaml.Node) { f.millis(n, "initial_delay", 0, &r.InitialDelayMS) },
		"max_delay":     func(n *yaml.Node) { givenMax = true; f.millis(n, "max_delay", time.Millisecond, &r.MaxDelayMS) },
		"multiplier":    func(n *yaml.Node) { f.permille(n, "multiplier", 1, maxMultiplier, &r.MultiplierPermille) },
		"jitter":        func(n *yaml.Node) { f.permille(n, "jitter", 0, 1, &r.JitterPermille) },
	})
	switch {
	case n.Kind != yaml.MappingNode:
		return
	case !givenMax:
		r.MaxDelayMS = max(defaultMaxDelayMS, r.InitialDelayMS)
	case r.MaxDelayMS > 0 && r.MaxDelayMS < r.InitialDelayMS: // 0: reported already
		f.fail(n, "", "initial_delay is longer than max_delay")
	}
	*to = r
}

func hasField(n *yaml.Node, name string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}
