package project

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
)

// SchedulesDir is the folder of schedules.
const SchedulesDir = "schedules"

// MaxSchedules is the maximum number of schedules of a project.
const MaxSchedules = 10_000

// schedule contains the fields of a schedule while the project is loaded.
type schedule struct {
	event.Schedule
	file yamlFile
	node *yaml.Node // the name of the schedule
	// fields are the nodes of the schedule's fields, by name, such as cron and dst.gap.
	fields map[string]*yaml.Node
	// upstream is the value of the field `run.upstream`, or "".
	upstream string
	// selections are the items of the field `assets`. dimensions are the dimensions in the field `partitions`.
	// [loader.linkSchedules] checks both.
	selections []*yaml.Node
	dimensions []namedDimension
	start, end string
}

// runOfSchedule is the name of the field `run` in messages about problems.
const runOfSchedule = "run"

// These are the values of the field upstream.
const (
	upstreamNone    = "none"
	upstreamMissing = "missing"
	upstreamStale   = "stale"
	upstreamAll     = "all"
)

const schedulePattern = `^[a-z0-9][a-z0-9_-]{0,127}$`

// schedulesField is the field schedules in servo.yaml and in its environments.
var schedulesField = other("schedules", schedulesShape(), func(f yamlFile, n *yaml.Node, _ *Project) { f.schedules(n) })

func schedulesShape() shape {
	about := typed("schedules", shape{
		Description: "Schedules, by name: 1 to 128 of a-z, 0-9, _ and -. Files in the folder " + SchedulesDir + " have the same form.",
		Examples: []any{map[string]any{"nightly": map[string]any{
			"cron": "30 2 * * 1-5", "timezone": "Europe/Paris", "run": map[string]any{"assets": []any{"raw/weather"}},
		}}},
	})
	return about
}

// schedulesDefinition is the shape of a mapping from names to schedules.
func schedulesDefinition() *shape {
	each := scheduleFields.shape(shape{Description: "When to run which assets: cron or every, and run."}, "run")
	each.AnyOf = []*shape{{Required: []string{"cron"}}, {Required: []string{"every"}}}
	return &shape{
		Title: "a YAML file in " + SchedulesDir, Description: "Schedules, by name.",
		Type: "object", PropertyNames: &shape{Pattern: schedulePattern}, Additional: &each,
	}
}

// scheduleFields are the fields of a schedule.
var scheduleFields = table[schedule]{
	noted("cron", shape{
		Type: "string", Examples: []any{"30 2 * * 1-5"},
		Description: "When to tick: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, @monthly, @yearly.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) { s.Cron, _ = f.text(n, "cron") }),
	noted("every", typed("duration", shape{
		Description: "The elapsed time between two ticks, instead of `cron`: 1m to 8784h, in whole minutes. It counts from `start`, or from 1970-01-01T00:00Z.",
		Examples:    []any{"15m"},
	}), func(f yamlFile, n *yaml.Node, s *schedule) {
		if d, ok := f.duration(n, "every", time.Minute, calendar.MinEverySec*time.Second, calendar.MaxEverySec*time.Second); ok {
			s.EverySec = int64(d / time.Second)
		}
	}),
	noted("timezone", shape{Type: "string", Default: "UTC", Examples: []any{"Europe/Paris"}, Description: "The IANA time zone of `cron`, `start` and `end`."},
		func(f yamlFile, n *yaml.Node, s *schedule) { f.timezone(n, &s.Timezone) }),
	other("run", tickFields.shape(shape{Description: "The assets and partitions that a tick runs."}, "assets"), func(f yamlFile, n *yaml.Node, s *schedule) {
		f.mapping(n, runOfSchedule, tickFields.fields(f, s))
		if n.Kind == yaml.MappingNode && !hasField(n, "assets") {
			f.fail(n, `add assets: ["*"] for all assets`, "run has no assets")
		}
	}),
	noted("dst", dstFields.shape(shape{Description: "The policy for ticks at local times that clocks skip or repeat. It has no effect if the hour field of `cron` is *."}),
		func(f yamlFile, n *yaml.Node, s *schedule) { f.mapping(n, "dst", dstFields.fields(f, s)) }),
	noted("catch_up", catchUpFields.shape(shape{Description: "Which ticks run late, if no process could run them at their time."}),
		func(f yamlFile, n *yaml.Node, s *schedule) {
			f.mapping(n, "catch_up", catchUpFields.fields(f, s))
		}),
	choice("overlap", shape{
		Description: "The policy for a tick while a run of the schedule is live. skip: the tick starts no run. buffer_one: the tick waits, unless another tick waits already. buffer_all: the tick waits. " +
			"cancel_other: the tick cancels the live run, and starts its own run when the live run has ended. terminate_other: the tick ends the live run and starts its own immediately. allow_all: the tick starts its run immediately.",
		Default: event.OverlapSkip,
	}, event.Overlaps(), func(s *schedule) *string { return &s.Overlap }),
	noted("jitter", typed("duration", shape{
		Description: "The maximum delay of a tick: 1s to 24h. Each tick has its own delay, which is the same on every machine and ends before the next tick. Default: none.",
		Examples:    []any{"5m"},
	}), func(f yamlFile, n *yaml.Node, s *schedule) {
		if d, ok := f.duration(n, "jitter", time.Second, time.Second, calendar.MaxJitterSec*time.Second); ok {
			s.JitterSec = int64(d / time.Second)
		}
	}),
	noted("start", boundShape("The first possible tick: a date, a local time, or a time with a UTC offset. Default: none.", "2025-01-01"),
		func(f yamlFile, n *yaml.Node, s *schedule) { s.start = f.bound(n, "start") }),
	noted("end", boundShape("No tick is at or after this time. Default: none.", "2035-01-01T06:00"),
		func(f yamlFile, n *yaml.Node, s *schedule) { s.end = f.bound(n, "end") }),
	other("sla", scheduleSLAFields.shape(shape{Description: "How long a run may take. An alert with the cause sla_missed reports a run that takes longer. The run is not cancelled.", Examples: []any{map[string]any{"run": "2h"}}}, "run"),
		func(f yamlFile, n *yaml.Node, s *schedule) {
			if f.readSound(n, "sla", scheduleSLAFields.fields(f, s)) {
				f.require(n, "sla", "run")
			}
		}),
	whole("pause_after_failures", shape{Description: "Pause the schedule after this many failed runs in a row. Default: never.", Examples: []any{5}},
		1, maxFailures, func(s *schedule) *int32 { return &s.PauseAfterFailures }),
	whole("max_parallelism", shape{Description: "How many tasks of a run of the schedule execute at once. Default: max_parallelism of " + ConfigFile + ".", Examples: []any{8}},
		1, maxSlots, func(s *schedule) *int32 { return &s.Run.MaxParallelism }),
	other("labels", shape{
		Type: "object", Additional: &shape{Type: "string"}, MaxProperties: event.MaxLabels, Examples: []any{map[string]any{"team": "data"}},
		Description: "Labels of the runs. At most 64.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) { s.Run.Labels = f.runLabels(n) }),
	other("allow_incomplete", shape{
		Type: "boolean", Default: false, Description: "true: runs accept missing partitions of their inputs.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) {
		f.boolean(n, "allow_incomplete", &s.Run.AllowIncomplete)
	}),
	other("paused", shape{
		Type: "boolean", Default: false, Description: "true: the schedule is paused when it is deployed for the first time. Later, only commands pause and resume it.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) { f.boolean(n, "paused", &s.Paused) }),
}

// maxFailures is the maximum value of pause_after_failures.
const maxFailures = 1_000

func boundShape(about, example string) shape {
	return shape{Type: "string", Description: about, Examples: []any{example}}
}

// noted returns a field that also records its position, so that [schedule.compile] can report a problem at this
// position.
func noted(name string, about shape, read func(f yamlFile, n *yaml.Node, s *schedule)) field[schedule] {
	return other(name, about, func(f yamlFile, n *yaml.Node, s *schedule) {
		s.fields[name] = n
		read(f, n, s)
	})
}

// tickFields are the fields of run.
var tickFields = table[schedule]{
	other("assets", shape{
		Type: "array", Items: &shape{Type: "string"}, MinItems: 1, MaxItems: event.MaxSelections,
		Description: `Selections of assets, as in "servo run": clean/daily, tag:gold, "*".`,
		Examples:    []any{[]any{"clean/daily", "tag:gold"}},
	}, func(f yamlFile, n *yaml.Node, s *schedule) {
		f.each(n, "assets", func(item *yaml.Node) {
			if text, ok := f.text(item, "an item of assets"); ok {
				s.Run.Assets, s.selections = append(s.Run.Assets, text), append(s.selections, item)
			}
		})
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			f.fail(n, `write ["*"] for all assets`, "assets is empty")
		}
	}),
	runPartitionsField,
	noted("upstream", shape{
		Enum: []string{upstreamNone, upstreamMissing, upstreamStale, upstreamAll}, Default: upstreamNone,
		Description: "all: also run everything that the assets depend on. missing: like all, but run only missing partitions. stale: like all, but run only missing and stale partitions. If `partitions` is set, only the selected partitions and their upstream partitions run.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) {
		f.oneOf(n, "upstream", []string{upstreamNone, upstreamMissing, upstreamStale, upstreamAll}, &s.upstream)
	}),
}

var dstFields = table[schedule]{
	other("gap", shape{
		Enum: []string{calendar.GapShift, calendar.GapSkip}, Default: calendar.GapShift,
		Description: "A local time that clocks skip. shift: tick at the first instant after the gap. skip: no tick.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) {
		s.fields["dst.gap"] = n
		f.oneOf(n, "gap", []string{calendar.GapShift, calendar.GapSkip}, &s.Gap)
	}),
	other("overlap", shape{
		Enum: []string{calendar.OverlapFirst, calendar.OverlapLast, calendar.OverlapBoth}, Default: calendar.OverlapFirst,
		Description: "A local time that clocks repeat: which of its two instants are ticks.",
	}, func(f yamlFile, n *yaml.Node, s *schedule) {
		s.fields["dst.overlap"] = n
		f.oneOf(n, "overlap", []string{calendar.OverlapFirst, calendar.OverlapLast, calendar.OverlapBoth}, &s.Repeated)
	}),
}

var catchUpFields = table[schedule]{
	choice("policy", shape{
		Description: "Which late ticks run. none: those that are at most 15 minutes late; with overlap skip or buffer_one, only the newest of these. latest: only the newest tick. all: every tick, at most the newest 1,000 (with overlap: allow_all, the newest 100); needs overlap: buffer_all or allow_all.",
		Default:     event.CatchUpNone,
	}, []string{event.CatchUpNone, event.CatchUpLatest, event.CatchUpAll}, func(s *schedule) *string { return &s.CatchUp }),
	other("window", typed("age", shape{
		Description: "How late a tick may run: 1s to 36500d. Default: no limit.", Examples: []any{"24h"},
	}), func(f yamlFile, n *yaml.Node, s *schedule) {
		var d time.Duration
		s.fields["catch_up.window"] = n
		f.age(n, "window", &d)
		s.WindowSec = int64(d / time.Second)
	}),
}

// schedules reads a mapping from names to schedules.
func (f yamlFile) schedules(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		f.fail(n, "write NAME: {cron: …} for each schedule", "schedules must be a mapping, got a list")
		return
	}
	known := fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if !event.ValidScheduleName(key.Value) {
			f.fail(key, "use 1 to 128 of a-z, 0-9, _ and -, and begin with a letter or digit", "invalid schedule name %s", quoteShort(key.Value))
		}
		known[key.Value] = func(n *yaml.Node) { f.schedule(key, n) }
	}
	f.mapping(n, "schedules", known)
}

func (f yamlFile) schedule(name, n *yaml.Node) {
	before := len(f.problems)
	s := schedule{Schedule: event.Schedule{Name: name.Value}, file: f, node: name, fields: map[string]*yaml.Node{}}
	f.mapping(n, "schedule "+name.Value, scheduleFields.fields(f, &s))
	if n.Kind == yaml.MappingNode && !hasField(n, "run") {
		f.fail(name, "add run: {assets: [KEY]}", "schedule %s has no run", name.Value)
	}
	if len(f.problems) == before {
		s.compile()
	}
	f.loader.schedules = append(f.loader.schedules, s)
}

// compile reports fields of a schedule that are invalid or contradict each other.
func (s *schedule) compile() {
	zone := s.Timezone
	if zone == "" {
		zone = "UTC"
	}
	for _, bound := range []struct {
		name, text string
		to         *event.Time
	}{{"start", s.start, &s.Start}, {"end", s.end, &s.End}} {
		if bound.text == "" {
			continue
		}
		at, err := calendar.Bound(bound.text, zone)
		if err != nil {
			s.fail(bound.name, "", "%s: %s", bound.name, err)
			return
		}
		*bound.to = event.At(at)
	}
	compiled, err := calendar.Compile(&s.Schedule)
	if err != nil {
		s.invalid(err)
	} else if compiled.EveryHour() && s.fields["dst"] != nil {
		s.fail("dst", "remove it", "dst has no effect: a schedule whose hour field is * ticks in every hour")
	}
	buffers := s.Overlap == event.OverlapBufferAll || s.Overlap == event.OverlapAllowAll
	if s.CatchUp == event.CatchUpAll && !buffers {
		s.fail("catch_up", "add overlap: buffer_all or overlap: allow_all", "catch_up: all has almost no effect with overlap: %s, which drops ticks", s.overlap())
	}
	if s.WindowSec != 0 && (s.CatchUp == "" || s.CatchUp == event.CatchUpNone) {
		s.fail("catch_up.window", "add policy: latest, or remove window", "window has no effect without a policy")
	}
	switch s.upstream {
	case upstreamAll, upstreamMissing, upstreamStale:
		if s.Run.Upstream = true; s.upstream != upstreamAll {
			s.Run.Only = s.upstream
		}
	}
	if err := s.Validate(); err != nil && len(s.file.problems) == 0 {
		s.file.fail(s.node, "", "%s", err)
	}
}

func (s *schedule) overlap() string {
	if s.Overlap == "" {
		return event.OverlapSkip
	}
	return s.Overlap
}

// fail reports a problem at a field. If the field is absent, it reports the problem at the name of the schedule.
func (s *schedule) fail(field, suggestion, format string, args ...any) {
	n := s.fields[field]
	if n == nil {
		n = s.node
	}
	s.file.fail(n, suggestion, format, args...)
}

// invalid reports an error of package calendar, if possible at the field that caused it.
func (s *schedule) invalid(err error) {
	var field *calendar.FieldError
	if !errors.As(err, &field) {
		s.file.fail(s.node, "", "%s", err)
		return
	}
	if expression := new(calendar.CronError); errors.As(err, &expression) {
		n := s.fields["cron"]
		at := s.file.place(n)
		if at.column += expression.Column - 1; n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
			at.column++
		}
		where := "cron: "
		if expression.Field != "" {
			where += expression.Field + ": "
		}
		s.file.report(at, "write "+quoteShort(expression.Suggestion), "%s%s", where, expression.Problem)
		return
	}
	s.fail(field.Field, "", "%s: %s", field.Field, field.Err)
}

// bound reads the text of a start or an end, which [schedule.compile] parses. In YAML, the text may be an unquoted
// date.
func (f yamlFile) bound(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode {
		f.fail(n, "write 2026-01-31 or 2026-01-31T06:00", "%s must be a date or a time, got %s", what, kindOf(n))
		return ""
	}
	return n.Value
}

// runLabels reads the labels of runs.
func (f yamlFile) runLabels(n *yaml.Node) map[string]string {
	labels, known := map[string]string{}, fields{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		name := resolve(n.Content[i]).Value
		known[name] = func(n *yaml.Node) {
			if text, ok := f.text(n, "label "+quoteShort(name)); ok {
				labels[name] = text
			}
		}
	}
	f.mapping(n, "labels", known)
	return labels
}

// readSchedules reads the files in the folder of schedules.
func (l *loader) readSchedules(ctx context.Context) error {
	if _, err := fs.Stat(l.files, SchedulesDir); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.report(place{file: SchedulesDir}, "", "the folder cannot be read: %v", reason(err))
		}
		return nil
	}
	return l.walk(ctx, SchedulesDir, func(name string, entry fs.DirEntry) error {
		hidden := strings.HasPrefix(path.Base(name), ".")
		switch {
		case entry.IsDir() && hidden:
			return fs.SkipDir
		case entry.IsDir() || hidden || path.Ext(name) != ".yaml" && path.Ext(name) != ".yml":
			return nil
		case entry.Type()&fs.ModeSymlink != 0 && !l.leadsToFile(name, true):
			return nil
		}
		text, ok := l.readFile(name)
		if !ok {
			return nil
		}
		f := yamlFile{l, name}
		if n := f.parse(text); n != nil && !isNull(n) {
			f.schedules(n)
		}
		return nil
	})
}

// linkSchedules adds the schedules to the project, and checks them against the assets.
func (l *loader) linkSchedules() {
	l.collectSchedules()
	l.checkSelections()
}

// collectSchedules checks whether the schedules conflict, and adds them to the project.
func (l *loader) collectSchedules() {
	first := map[string]place{}
	for i := range l.schedules {
		s := &l.schedules[i]
		if before, ok := first[s.Name]; ok {
			s.file.fail(s.node, "rename one of them", "schedule %s is declared twice: first in %s:%d", s.Name, before.file, before.line)
			continue
		}
		first[s.Name] = s.file.place(s.node)
		l.project.Schedules = append(l.project.Schedules, s.Schedule)
	}
	if len(l.schedules) > MaxSchedules {
		l.report(place{file: SchedulesDir}, "remove some", "the project has %d schedules; at most %d are allowed", len(l.schedules), MaxSchedules)
	}
	slices.SortFunc(l.project.Schedules, func(a, b event.Schedule) int { return strings.Compare(a.Name, b.Name) })
}

// checkSelections reports selections that match no asset, dimensions that no selected asset has, and schedules that
// select partitioned assets but no partitions. Problems in asset files may hide assets, tags or partitions. In this
// case, checkSelections omits the reports that could be wrong because of what is hidden.
func (l *loader) checkSelections() {
	if len(l.schedules) == 0 {
		return
	}
	complete := l.assetsKnown()
	catalog := selector.NewCatalog(l.project.Assets)
	for i := range l.schedules {
		s := &l.schedules[i]
		dimensions, before := map[string]bool{}, len(l.problems)
		var partitioned []*plan.Asset
		named := map[ids.AssetKey]bool{}
		var lacking *plan.Asset // the first selected asset with partitions
		var at *yaml.Node
		for j, text := range s.Run.Assets {
			parsed, err := selector.Parse(text)
			var found selector.Result
			if err == nil {
				found, err = catalog.Select(selector.Query{Include: parsed, Upstream: s.Run.Upstream})
			}
			if err != nil {
				if l.certain(text) {
					s.file.fail(s.selections[j], "", "%s", err)
				}
				continue
			}
			roots := found.Named
			if s.Run.Only != "" {
				roots = found.Roots
			}
			for _, key := range roots {
				named[key] = true
			}
			for k := range l.project.Assets {
				a := &l.project.Assets[k]
				if a.Partitions == nil || !slices.Contains(found.Keys, a.Key) {
					continue
				}
				if lacking == nil {
					lacking, at = a, s.selections[j]
				}
				partitioned = append(partitioned, a)
				for d := range a.Partitions.Dimensions {
					dimensions[a.Partitions.Dimensions[d].Name] = true
				}
			}
		}
		switch {
		case lacking != nil && s.fields["partitions"] == nil && s.Run.Only == "":
			s.lacksPartitions(lacking, at)
		case complete && len(l.problems) == before:
			if s.checkDimensions(dimensions); len(l.problems) == before {
				s.checkValues(partitioned, named)
			}
		}
	}
}
