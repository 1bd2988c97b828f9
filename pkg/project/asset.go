package project

import (
	"cmp"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // so that every machine knows the same time zones

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Limits of an asset.
const (
	maxKeyPart = 128
	maxList    = 1_000
)

// newAsset returns an asset with the project's defaults. Its place is the start of the file
// until its key is read.
func (l *loader) newAsset(file string) *declared {
	d := l.project.Defaults
	return &declared{
		Asset: plan.Asset{
			File: file, Retries: d.Retries, TimeoutSec: d.TimeoutSec, HeartbeatTimeoutSec: d.HeartbeatTimeoutSec,
			Pool: d.Pool, Priority: d.Priority, Keep: d.Keep, WorkerQueue: "default", TriggerRule: event.RuleAllSuccess,
		},
		at: place{file: file, line: 1, column: 1},
	}
}

// keyOfPath returns the key implied by a file's path: the last folder and the file's name.
func keyOfPath(file string) string {
	folder, name := path.Split(strings.TrimPrefix(file, AssetsDir+"/"))
	name = strings.TrimSuffix(name, path.Ext(name))
	if folder == "" {
		return "default/" + name
	}
	return path.Base(folder) + "/" + name
}

// reserved are namespaces that DuckDB uses itself.
var reserved = []string{"information_schema", "pg_catalog", "system", "temp"}

// setKey sets an asset's key, or reports an invalid one.
func (l *loader) setKey(a *declared, at place, key, suggestion string) {
	a.at = at
	parsed, err := ids.ParseAssetKey(key)
	switch {
	case err != nil:
		l.report(at, suggestion, "invalid asset key %s: expected namespace/name using a-z, 0-9 and _", quoteShort(key))
	case len(parsed.Namespace) > maxKeyPart || len(parsed.Name) > maxKeyPart:
		l.report(at, "", "asset key %s is too long: namespace and name may have at most %d characters each", quoteShort(key), maxKeyPart)
	case slices.Contains(reserved, parsed.Namespace):
		l.report(at, "use another namespace", "the namespace %s belongs to DuckDB", parsed.Namespace)
	default:
		a.Key = parsed
	}
}

// setKeyOfPath sets the key implied by the file's path.
func (l *loader) setKeyOfPath(a *declared) {
	l.setKey(a, a.at, keyOfPath(a.File), "rename the file, or set the key with the field asset")
}

// readYAMLAssets reads a file with one asset or a list of assets.
func (l *loader) readYAMLAssets(name string, text []byte) {
	f := yamlFile{l, name}
	n := f.parse(text)
	switch {
	case n == nil || isNull(n):
		if len(l.problems) == 0 || l.problems[len(l.problems)-1].File != name {
			l.report(place{file: name}, "declare one, or remove the file", "the file declares no asset")
		}
	case n.Kind == yaml.MappingNode && hasField(n, "assets"):
		f.mapping(n, "a file with a list of assets", fields{"assets": func(n *yaml.Node) {
			f.each(n, "assets", func(item *yaml.Node) { f.commandAsset(item, true) })
		}})
	default:
		f.commandAsset(n, false)
	}
}

// commandAsset reads an asset that runs a command.
func (f yamlFile) commandAsset(n *yaml.Node, listed bool) {
	a := f.newAsset(f.name)
	a.at = f.place(n)
	if !f.assetFields(n, a, f.commandFields(a)) {
		return
	}
	if a.Key == (ids.AssetKey{}) && !hasField(n, "asset") {
		if listed {
			f.fail(n, "add asset: namespace/name", "an asset in a list needs a key")
		} else {
			f.setKeyOfPath(a)
		}
	}
	if !hasField(n, "run") {
		f.fail(n, `add run: {command: ["program", "argument"]}, or move a query to a .sql file`, "the asset has neither a query nor a command")
	}
	if a.Work.Output == plan.OutputNone && hasField(n, "keep") {
		f.fail(n, "remove keep, or output: none", "the asset has no outputs to keep")
	}
	f.checkTwice(n, &a.Work)
	f.assets = append(f.assets, *a)
}

// commandFields returns the fields that only assets with a command have.
func (f yamlFile) commandFields(a *declared) fields {
	w := &a.Work
	return fields{
		"run": func(n *yaml.Node) {
			f.mapping(n, "run", fields{
				"command": func(n *yaml.Node) { w.Command = f.command(n) },
				"input_format": func(n *yaml.Node) {
					f.oneOf(n, "input_format", []string{plan.FormatParquet, plan.FormatCSV}, &w.InputFormat)
				},
			})
			if n.Kind == yaml.MappingNode && !hasField(n, "command") {
				f.fail(n, `add command: ["program", "argument"]`, "run has no command")
			}
		},
		"env":     func(n *yaml.Node) { w.Env = f.env(n) },
		"secrets": func(n *yaml.Node) { w.Secrets = f.secrets(n) },
		"output":  func(n *yaml.Node) { f.output(n, w) },
	}
}

// outputFiles is the default of the field output.
const outputFiles = "files"

// output reads whether an asset's tasks write files.
func (f yamlFile) output(n *yaml.Node, w *plan.Work) {
	output := outputFiles
	f.oneOf(n, "output", []string{outputFiles, plan.OutputNone}, &output)
	if w.Output = ""; output == plan.OutputNone {
		w.Output = output
	}
}

// queryFields returns functions that reject the fields of commands in a query, and say why.
func (f yamlFile) queryFields() fields {
	refuse := func(message, suggestion string) func(*yaml.Node) {
		return func(n *yaml.Node) { f.fail(n, suggestion, "%s", message) }
	}
	return fields{
		"run":     refuse("the asset has both a query and a command", "declare the command in a .yaml file of its own"),
		"env":     refuse("a query has no environment", "env is for commands"),
		"secrets": refuse("a query cannot have secrets", "secrets are for commands"),
		"output":  refuse("a query has exactly one output: its rows", "output is for commands"),
	}
}

// assetFields reads the fields that every asset has, and more. It reports whether n is a
// mapping.
func (f yamlFile) assetFields(n *yaml.Node, a *declared, more fields) bool {
	known := fields{
		"asset": func(n *yaml.Node) {
			if s, ok := f.text(n, "asset"); ok {
				f.setKey(a, f.place(n), s, keySuggestion(s))
			}
		},
		"description":       func(n *yaml.Node) { a.Description, _ = f.text(n, "description") },
		"owners":            func(n *yaml.Node) { a.Owners = f.texts(n, "owners") },
		"tags":              func(n *yaml.Node) { a.Tags = f.texts(n, "tags") },
		"deps":              func(n *yaml.Node) { f.deps(n, a) },
		"partitions":        func(n *yaml.Node) { f.partitions(n, a) },
		"retries":           func(n *yaml.Node) { f.retries(n, &a.Retries) },
		"timeout":           func(n *yaml.Node) { f.seconds(n, "timeout", &a.TimeoutSec) },
		"heartbeat_timeout": func(n *yaml.Node) { f.seconds(n, "heartbeat_timeout", &a.HeartbeatTimeoutSec) },
		"priority":          func(n *yaml.Node) { f.int32(n, "priority", math.MinInt32, math.MaxInt32, &a.Priority) },
		"pool":              func(n *yaml.Node) { f.pool(n, &a.Pool) },
		"keep":              func(n *yaml.Node) { f.keep(n, &a.Keep) },
		"queue":             func(n *yaml.Node) { f.setName(n, "queue", &a.WorkerQueue) },
		"trigger_rule": func(n *yaml.Node) {
			f.oneOf(n, "trigger_rule", []string{event.RuleAllSuccess, event.RuleNoneFailed, event.RuleAllDone}, &a.TriggerRule)
		},
		"checks": func(n *yaml.Node) {
			f.fail(n, "remove the field; a query can fail the task itself with error('…')", "checks are not supported yet")
		},
	}
	maps.Copy(known, more)
	f.mapping(n, "an asset", known)
	return n.Kind == yaml.MappingNode
}

// keySuggestion suggests a valid key that is close to s.
func keySuggestion(s string) string {
	fixed := strings.ToLower(strings.NewReplacer("-", "_", " ", "_", ".", "/").Replace(strings.TrimSpace(s)))
	if _, err := ids.ParseAssetKey(fixed); err == nil {
		return didYouMean(fixed)
	}
	return "write, for example, raw/weather"
}

func (f yamlFile) oneOf(n *yaml.Node, what string, allowed []string, to *string) {
	s, ok := f.text(n, what)
	switch {
	case !ok:
	case slices.Contains(allowed, s):
		*to = s
	default:
		f.fail(n, didYouMean(plan.Suggest(s, allowed)), "%s is %s; must be one of %s", what, quoteShort(s), strings.Join(allowed, ", "))
	}
}

// deps reads the listed dependencies.
func (f yamlFile) deps(n *yaml.Node, a *declared) {
	f.each(n, "deps", func(item *yaml.Node) {
		s, ok := f.text(item, "an item of deps")
		if !ok {
			return
		}
		key, err := ids.ParseAssetKey(s)
		if err != nil {
			f.fail(item, keySuggestion(s), "invalid asset key %s: expected namespace/name", quoteShort(s))
			return
		}
		a.deps = append(a.deps, dep{key: key, at: f.place(item)})
	})
	if len(a.deps) > maxList {
		f.fail(n, "", "an asset may have at most %d deps", maxList)
		a.deps = a.deps[:maxList]
	}
}

func (f yamlFile) partitions(n *yaml.Node, a *declared) {
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.fail(n, `add daily: {start: 2025-01-01}`, "partitions is empty")
	}
	f.mapping(n, "partitions", fields{"daily": func(n *yaml.Node) {
		p := plan.Partitions{Dimension: "date"}
		f.mapping(n, "daily", fields{
			"start":    func(n *yaml.Node) { f.day(n, "start", &p.Start) },
			"end":      func(n *yaml.Node) { f.day(n, "end", &p.End) },
			"timezone": func(n *yaml.Node) { f.timezone(n, &p.Timezone) },
		})
		switch {
		case n.Kind != yaml.MappingNode:
			return
		case !hasField(n, "start"):
			f.fail(n, "add start: 2025-01-01", "daily has no start")
			return
		case p.End != "" && p.Start != "" && p.End < p.Start:
			f.fail(n, "", "the end %s is before the start %s", p.End, p.Start)
			return
		}
		f.skipped(n, &p)
		a.Partitions = &p
		a.Work.Dimensions = map[string]string{p.Dimension: "DATE"}
	}})
}

// skipped reports a start or an end that the time zone skipped.
func (f yamlFile) skipped(n *yaml.Node, p *plan.Partitions) {
	zone, err := time.LoadLocation(cmp.Or(p.Timezone, "UTC"))
	if err != nil {
		return // reported already
	}
	for _, day := range []string{p.Start, p.End} {
		if plan.Skipped(day, zone) {
			f.fail(n, "write the day before or after", "day %s does not exist: the time zone %s skipped it", day, zone)
		}
	}
}

func (f yamlFile) timezone(n *yaml.Node, to *string) {
	s, ok := f.text(n, "timezone")
	if !ok {
		return
	}
	if _, err := time.LoadLocation(s); err != nil || s == "" || s == "Local" {
		f.fail(n, "write a name such as UTC, Europe/Paris or America/New_York", "unknown time zone %s", quoteShort(s))
		return
	}
	*to = s
}

// listOf formats a command line as the list of its words.
func listOf(line string) string {
	words := strings.Fields(line)
	for i, word := range words {
		words[i] = quoteShort(word)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// command reads a program and its arguments.
func (f yamlFile) command(n *yaml.Node) []string {
	if n.Kind == yaml.ScalarNode {
		f.fail(n, "write "+listOf(n.Value), "command must be a list, got %s", kindOf(n))
		return nil
	}
	words := f.texts(n, "command")
	if n.Kind == yaml.SequenceNode && (len(n.Content) == 0 || (len(words) > 0 && words[0] == "")) {
		f.fail(n, "", "command is empty: its first item is the program")
	}
	if len(words) > maxList {
		f.fail(n, "", "a command may have at most %d items", maxList)
	}
	return words
}
