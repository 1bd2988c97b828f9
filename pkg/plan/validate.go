package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Validate returns an error with the first twenty problems of a plan, or nil.
func (p *Plan) Validate() error {
	if p.SchemaVersion != SchemaVersion {
		return fmt.Errorf("the plan's schema_version is %d; this build reads %d", p.SchemaVersion, SchemaVersion)
	}
	if len(p.Tasks) == 0 {
		return errors.New("the plan has no tasks")
	}
	if len(p.Tasks) > MaxTasks {
		return fmt.Errorf("the plan has %d tasks; at most %d are allowed", len(p.Tasks), MaxTasks)
	}
	v := validator{plan: p, at: make(map[string]int, len(p.Tasks))}
	for i := range p.Tasks {
		key := p.Tasks[i].TaskKey
		if first, ok := v.at[key]; ok {
			v.fail("duplicate task %s: at %d and at %d", key, first, i)
			continue
		}
		v.at[key] = i
	}
	for i := range p.Tasks {
		v.task(i)
	}
	if v.edges > MaxEdges {
		v.fail("the plan has %d dependencies between tasks; at most %d are allowed", v.edges, MaxEdges)
	}
	for _, key := range slices.Sorted(maps.Keys(p.Assets)) {
		v.work(key, p.Assets[key])
	}
	for _, key := range slices.Sorted(maps.Keys(p.PartitionColumns)) {
		for _, c := range p.PartitionColumns[key] {
			if !space.ValidName(c.Name) || !slices.Contains([]string{"DATE", "TIMESTAMPTZ", "VARCHAR"}, c.Type) {
				v.fail("asset %.200s has the partition column %.200q of type %.200q", key, c.Name, c.Type)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.Groups)) {
		for _, in := range p.Groups[key] {
			v.input("group "+key, in)
		}
	}
	return joinSome(v.errs)
}

type validator struct {
	plan  *Plan
	at    map[string]int // task key → position
	edges int
	errs  []error
}

func (v *validator) fail(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

func (v *validator) task(i int) {
	t := &v.plan.Tasks[i]
	if err := ids.ValidateTaskKey(t.TaskKey); err != nil {
		v.fail("task %d: %w", i, err)
		return
	}
	v.edges += len(t.DependsOn)
	for n, dep := range t.DependsOn {
		at, ok := v.at[dep]
		switch {
		case !ok:
			v.fail("task %s depends on %s, which is not in the plan", t.TaskKey, dep)
		case at == i:
			v.fail("task %s depends on itself", t.TaskKey)
		case at > i:
			v.fail("task %s depends on %s, which comes after it: the plan is not in topological order, or has a cycle", t.TaskKey, dep)
		case n > 0 && t.DependsOn[n-1] >= dep:
			v.fail("task %s: dependencies are unsorted, or contain %s twice", t.TaskKey, dep)
		}
	}
	switch t.Kind {
	case event.KindGroup:
		if len(t.DependsOn) == 0 {
			v.fail("group %s has no members", t.TaskKey)
		}
	case event.KindTask, event.KindCheck, "":
		v.workerTask(t)
	default:
		v.fail("task %s has the kind %q; it must be task, group or check", t.TaskKey, t.Kind)
	}
}

// workerTask validates a task that a worker executes. Group nodes are not such tasks.
func (v *validator) workerTask(t *Task) {
	if _, ok := v.plan.Assets[t.AssetKey]; !ok {
		v.fail("task %s materializes the asset %q, which is not in the plan", t.TaskKey, t.AssetKey)
	}
	if _, err := ids.ParsePartition(t.PartitionKey); err != nil {
		v.fail("task %s: %w", t.TaskKey, err)
	}
	v.batch(t)
	v.checkedOutput(t)
	for _, asset := range slices.Sorted(maps.Keys(t.Inputs)) {
		set := t.Inputs[asset]
		if _, err := ids.ParseAssetKey(asset); err != nil {
			v.fail("task %s has an input with an invalid asset: %w", t.TaskKey, err)
		}
		if _, ok := v.plan.Groups[set.Group]; set.Group != "" && !ok {
			v.fail("task %s reads the group %s, which is not in the plan", t.TaskKey, set.Group)
		}
		// The first partitions of an asset that reads itself have nothing to read.
		if (set.Group == "") == (len(set.Items) == 0) && (set.Group != "" || asset != t.AssetKey) {
			v.fail("task %s must read %s either through a group or directly", t.TaskKey, asset)
		}
		for _, in := range set.Items {
			v.input("task "+t.TaskKey, in)
		}
	}
}

// checkedOutput validates the output that a task of the kind check names.
func (v *validator) checkedOutput(t *Task) {
	work := v.plan.Assets[t.AssetKey]
	switch {
	case t.Kind != event.KindCheck && t.Checked != nil:
		v.fail("task %s is a %s, but names an output to check", t.TaskKey, cmp.Or(t.Kind, event.KindTask))
	case t.Kind != event.KindCheck:
	case t.Output != event.OutputNone || len(t.DependsOn) > 0:
		v.fail("task %s only checks an output, so it must have the output none and no dependencies", t.TaskKey)
	case (t.Checked != nil) != work.HasFiles():
		v.fail("task %s: if its asset has files, the task must name an output to check; otherwise, it must name none", t.TaskKey)
	case t.Checked != nil && t.Checked.TaskKey != "":
		v.fail("task %s must check the output of an earlier run", t.TaskKey)
	case t.Checked != nil:
		v.input("task "+t.TaskKey, *t.Checked)
	}
}

func (v *validator) work(key string, w Work) {
	if _, err := ids.ParseAssetKey(key); err != nil {
		v.errs = append(v.errs, err)
	}
	if (w.SQL == "") == (len(w.Command) == 0) {
		v.fail("asset %s must have a query or a command, and not both", key)
	}
	if w.InputFormat != "" && w.InputFormat != FormatParquet && w.InputFormat != FormatCSV {
		v.fail("asset %s has the input format %q; it must be parquet or csv", key, w.InputFormat)
	}
	if w.Output != "" && (w.Output != OutputNone || w.SQL != "") {
		v.fail("asset %s has the setting output: %q; the only valid setting is none, and only for a command", key, w.Output)
	}
	if t := w.Text; t != nil && (w.SQL != "" || w.Output != "" || !slices.Contains(TextFormats, t.Format) && t.Format != TextNone || len([]rune(t.Delimiter)) > 1) {
		v.fail("asset %s has text files of the format %.200q with the delimiter %.200q: only a command without an output setting may have text files, the format must be one of %s or none, and the delimiter at most one character", key, t.Format, t.Delimiter, strings.Join(TextFormats, ", "))
	}
	if r := w.Resources; r != nil && (r.MemoryBytes < 0 || r.Threads < 0) {
		v.fail("asset %s has the resources %d bytes and %d threads: they must not be negative", key, r.MemoryBytes, r.Threads)
	}
	if err := quality.Validate(w.Checks); err != nil {
		v.fail("asset %s: %w", key, err)
	}
	v.secrets(key, &w)
	for i := range w.External {
		if err := w.External[i].validate(); err != nil {
			v.fail("asset %s: %w", key, err)
		}
	}
	if len(w.External) > 0 && w.SQL == "" {
		v.fail("asset %s uses extensions; only queries may use them", key)
	}
}

func (v *validator) secrets(key string, w *Work) {
	if len(w.Secrets) > 0 && w.SQL != "" {
		v.fail("asset %s has secrets; only commands may have them", key)
	}
	if len(w.Secrets) > MaxSecrets {
		v.fail("asset %s has %d secrets; at most %d are allowed", key, len(w.Secrets), MaxSecrets)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Secrets)) {
		if !ValidVariable(name) {
			v.fail("asset %s: secret %.200q cannot be an environment variable", key, name)
			continue
		}
		if _, ok := w.Env[name]; ok {
			v.fail("asset %s: %s is in both env and secrets", key, name)
		}
		if _, err := ParseSecret(w.Secrets[name]); err != nil {
			v.fail("asset %s: secret %s: %w", key, name, err)
		}
	}
}

func (v *validator) input(reader string, in Input) {
	earlier := in.MaterializationID != "" && in.URI != ""
	switch {
	case in.TaskKey != "" && (in.MaterializationID != "" || in.URI != ""), in.TaskKey == "" && !earlier:
		v.fail("%s: the input %q must have a task of this run, or else a materialization and its URI", reader, in.PartitionKey)
	case in.TaskKey != "":
		if _, ok := v.at[in.TaskKey]; !ok {
			v.fail("%s reads the output of %s, which is not in the plan", reader, in.TaskKey)
		}
	}
	if _, err := ids.ParsePartition(in.PartitionKey); err != nil {
		v.fail("%s: %w", reader, err)
	}
}
