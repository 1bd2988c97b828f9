package project

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
)

// promises holds the deadline, the freshness and the SLA of an asset while its file is read.
type promises struct {
	event.WatchedAsset
	at, deadlineAt *yaml.Node
	file           yamlFile
}

const byPattern = `^([01][0-9]|2[0-3]):[0-5][0-9]$`

// maxPromise is the maximum duration of a promise.
const maxPromise = event.MaxDeadlineSec * time.Second

var deadlineField = other("deadline", deadlineFields.shape(shape{
	Description: "When the partitions of each period must be materialized and fresh. An alert with the cause deadline_missed reports late partitions, even while all workers are down.",
	Examples:    []any{map[string]any{"by": "09:00", "timezone": "Europe/Paris"}},
}), func(f yamlFile, n *yaml.Node, a *declared) {
	a.promises.Deadline = &event.Deadline{}
	a.promises.at, a.promises.deadlineAt, a.promises.file = n, n, f
	if !f.readSound(n, "deadline", deadlineFields.fields(f, &a.promises)) {
		return
	}
	if d := a.promises.Deadline; n.Kind == yaml.MappingNode && hasField(n, "by") == hasField(n, "after_end") {
		f.fail(n, `write {by: "09:00"}, or {after_end: 3h}`, "deadline needs exactly one of `by` and `after_end`")
	} else if n.Kind == yaml.MappingNode && d.By == "" && (hasField(n, "timezone") || hasField(n, "days_after")) && !hasField(n, "by") {
		f.fail(n, "remove them", "`timezone` and `days_after` have an effect only together with `by`")
	}
})

var deadlineFields = table[promises]{
	other("by", shape{
		Type: "string", Pattern: byPattern, PatternHelp: "Write a time in quotes, such as \"09:00\".", Examples: []any{"09:00"},
		Description: "The local time of the deadline, HH:MM. An asset without a time dimension has a deadline every day.",
	}, func(f yamlFile, n *yaml.Node, p *promises) {
		s, ok := f.text(n, "by")
		if _, err := time.Parse("15:04", s); ok && (err != nil || len(s) != len("15:04")) {
			f.fail(n, `write a time in quotes, such as "09:00"`, "by is %s", quoteShort(s))
			return
		}
		p.Deadline.By = s
	}),
	other("timezone", shape{Type: "string", Examples: []any{"Europe/Paris"}, Description: "The IANA time zone of `by`. Default: the time zone of the partitions, or UTC."},
		func(f yamlFile, n *yaml.Node, p *promises) { f.timezone(n, &p.Deadline.Timezone) }),
	whole("days_after", shape{Description: "The number of days from the last day of the period to the deadline. Default: 1; 0 without a time dimension.", Examples: []any{1}},
		1, event.MaxDaysAfter, func(p *promises) *int32 { return &p.Deadline.DaysAfter }),
	other("after_end", typed("duration", shape{Description: "The delay after the end of the period, instead of `by`: 1m to 8784h.", Examples: []any{"3h"}}),
		func(f yamlFile, n *yaml.Node, p *promises) { f.promise(n, "after_end", &p.Deadline.AfterEndSec) }),
}

var freshnessField = other("freshness", maxLagFields.shape(shape{
	Description: "How old the newest output may be. An alert with the cause freshness_missed reports an older output.",
	Examples:    []any{map[string]any{"max_lag": "6h"}},
}, "max_lag"), func(f yamlFile, n *yaml.Node, a *declared) {
	a.promises.at = n
	if f.readSound(n, "freshness", maxLagFields.fields(f, &a.promises)) {
		f.require(n, "freshness", "max_lag")
	}
})

var maxLagFields = table[promises]{
	other("max_lag", typed("duration", shape{Description: "The maximum age: 1m to 8784h.", Examples: []any{"6h"}}),
		func(f yamlFile, n *yaml.Node, p *promises) { f.promise(n, "max_lag", &p.MaxLagSec) }),
}

var assetSLAField = other("sla", assetSLAFields.shape(shape{
	Description: "How long tasks may take. An alert with the cause sla_missed reports a task that takes longer. The task is not cancelled.",
	Examples:    []any{map[string]any{"run": "2h", "task": "30m"}},
}), func(f yamlFile, n *yaml.Node, a *declared) {
	a.promises.at = n
	f.mapping(n, "sla", assetSLAFields.fields(f, &a.promises))
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.fail(n, "write {run: 2h}, {task: 30m}, or both", "sla is empty")
	}
})

var assetSLAFields = table[promises]{
	other("run", typed("duration", shape{Description: "From the trigger of the run to the end of the task: 1m to 8784h.", Examples: []any{"2h"}}),
		func(f yamlFile, n *yaml.Node, p *promises) { f.promise(n, "run", &p.RunSec) }),
	other("task", typed("duration", shape{Description: "From the admission of the task to its end: 1m to 8784h.", Examples: []any{"30m"}}),
		func(f yamlFile, n *yaml.Node, p *promises) { f.promise(n, "task", &p.TaskSec) }),
}

// scheduleSLAFields are the fields of `sla` of a schedule.
var scheduleSLAFields = table[schedule]{
	other("run", typed("duration", shape{Description: "From the trigger of a run to its end: 1m to 8784h.", Examples: []any{"2h"}}),
		func(f yamlFile, n *yaml.Node, s *schedule) { f.promise(n, "run", &s.SLASec) }),
}

// readSound reads a mapping, and reports whether the mapping has no problem.
func (f yamlFile) readSound(n *yaml.Node, what string, known fields) bool {
	before := len(f.problems)
	f.mapping(n, what, known)
	return len(f.problems) == before
}

// promise reads a duration in whole seconds.
func (f yamlFile) promise(n *yaml.Node, what string, to *int64) {
	if d, ok := f.duration(n, what, time.Second, time.Minute, maxPromise); ok {
		*to = int64(d / time.Second)
	}
}

// linkPromises adds the promises of assets to the project.
func (l *loader) linkPromises() {
	for i := range l.assets {
		a := &l.assets[i]
		p := &a.promises
		if p.at == nil {
			continue
		}
		if d := p.Deadline; d != nil {
			byTime := a.Partitions.Time() != nil
			switch {
			case !byTime && d.AfterEndSec > 0:
				p.file.fail(p.deadlineAt, `write {by: "09:00"}: a deadline every day`, "after_end needs a time dimension: the asset has no period that ends")
			case !byTime && d.DaysAfter > 0:
				p.file.fail(p.deadlineAt, "remove days_after", "days_after needs a time dimension: the asset has a deadline every day")
			case byTime && d.By != "":
				d.DaysAfter = cmp.Or(d.DaysAfter, 1)
			}
		}
		if a.Key.String() != "/" {
			p.Asset = a.Key.String()
			l.project.Watched = append(l.project.Watched, p.WatchedAsset)
		}
	}
	slices.SortFunc(l.project.Watched, func(a, b event.WatchedAsset) int { return strings.Compare(a.Asset, b.Asset) })
	l.project.Watched = slices.CompactFunc(l.project.Watched, func(a, b event.WatchedAsset) bool { return a.Asset == b.Asset })
	if n := len(l.project.Watched); n > event.MaxWatched {
		l.report(place{file: ConfigFile}, "remove some", "%d assets have a deadline, a freshness or an sla; at most %d are allowed", n, event.MaxWatched)
	}
}
