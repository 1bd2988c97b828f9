package project

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/selector"
)

// alertRule holds the fields of an alert rule while its file is read.
type alertRule struct {
	event.AlertRule
	group    time.Duration
	file     yamlFile
	node     *yaml.Node
	selectAt *yaml.Node
	toAt     []*yaml.Node
	named    bool
}

// defaultGroup is the default time for which transitions of an alert are counted before the next message about it is
// sent.
const defaultGroup = 10 * time.Minute

// unbuiltCauses maps planned causes, which rules cannot name yet, to the reason or an alternative.
var unbuiltCauses = map[string]string{
	"publish_failed":     "`servo status` shows the published places that could not be updated",
	"sensor_failing":     "sensors are not supported",
	"automation_limited": "conditions are not supported",
}

// alertsField is the field alerts in servo.yaml and in its environments.
var alertsField = other("alerts", shape{
	Type: "array", Items: new(alertFields.shape(shape{Description: "A rule, which sends alerts to channels."}, "on", "to")), MaxItems: event.MaxAlertRules,
	Examples:    []any{[]any{map[string]any{"on": []any{"task_failed", "check_failed"}, "select": "raw/*", "to": []any{"data"}, "group": "10m"}}},
	Description: "The rules that send alerts to channels.",
}, func(f yamlFile, n *yaml.Node, _ *Project) {
	f.each(n, "alerts", func(item *yaml.Node) { f.alertRule(item) })
})

// alertFields are the fields of a rule.
var alertFields = table[alertRule]{
	other("name", shape{
		Type: "string", Pattern: schedulePattern, PatternHelp: "Use 1 to 128 of a-z, 0-9, _ and -.", Examples: []any{"gold-failures"},
		Description: "The name of the rule, for `servo alert mute`: 1 to 128 of a-z, 0-9, _ and -. Default: rule-1, rule-2, … in the order of the list.",
	}, func(f yamlFile, n *yaml.Node, r *alertRule) {
		r.Name, r.named = f.alertName(n, "the name of a rule"), true
	}),
	other("on", shape{
		Type: "array", Items: &shape{Enum: event.AlertCauses()}, MinItems: 1, Examples: []any{[]any{event.CauseTaskFailed, event.CauseRecovered}},
		Description: "The causes. If several of quarantined, check_failed and task_failed apply to a failure, the rule reports the failure once, under the first of them in this list. " +
			"`recovered` is sent only after a failure was reported.",
	}, func(f yamlFile, n *yaml.Node, r *alertRule) {
		f.each(n, "on", func(item *yaml.Node) { f.alertCause(item, r) })
		f.notEmptyList(n, "on", "write [task_failed]")
	}),
	other("to", shape{
		Type: "array", Items: &shape{Type: "string", Pattern: schedulePattern}, MinItems: 1, MaxItems: event.MaxAlertChannels, Examples: []any{[]any{"data"}},
		Description: "The channels.",
	}, func(f yamlFile, n *yaml.Node, r *alertRule) {
		f.each(n, "to", func(item *yaml.Node) {
			if name := f.alertName(item, "a channel"); name != "" {
				r.To, r.toAt = append(r.To, name), append(r.toAt, item)
			}
		})
		f.notEmptyList(n, "to", "name a channel of `channels`")
		if len(r.To) > event.MaxAlertChannels {
			f.fail(n, "", "the field to has %d channels; at most %d are allowed", len(r.To), event.MaxAlertChannels)
		}
	}),
	other("select", shape{
		Type: "string", MinLength: 1, Examples: []any{"tag:gold"},
		Description: "The assets that the rule is about, as in `servo run`. In a rule with `select`, `on` can contain only causes about assets, and `recovered`. Default: all.",
	}, func(f yamlFile, n *yaml.Node, r *alertRule) { r.selectAt, r.Select = n, f.nonEmpty(n, "select") }),
	other("group", typed("duration", shape{
		Description: "How long alerts about one subject are counted before the next message: 1m to 168h. The first alert is sent immediately.",
		Default:     "10m",
	}), func(f yamlFile, n *yaml.Node, r *alertRule) {
		if d, ok := f.duration(n, "group", time.Second, time.Minute, event.MaxAlertGroupSec*time.Second); ok {
			r.group = d
		}
	}),
}

// notEmptyList adds a problem if n is an empty list.
func (f yamlFile) notEmptyList(n *yaml.Node, what, suggestion string) {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.fail(n, suggestion, "%s is empty", what)
	}
}

// alertName reads the name of a rule or a channel. It returns "" after a problem.
func (f yamlFile) alertName(n *yaml.Node, what string) string {
	text, ok := f.text(n, what)
	if !ok {
		return ""
	}
	if !event.ValidScheduleName(text) {
		f.fail(n, "use 1 to 128 of a-z, 0-9, _ and -, and begin with a letter or digit", "%s cannot be %s", what, quoteShort(text))
		return ""
	}
	return text
}

// alertCause reads a cause of a rule.
func (f yamlFile) alertCause(n *yaml.Node, r *alertRule) {
	if n.Kind == yaml.ScalarNode && unbuiltCauses[n.Value] != "" {
		f.fail(n, "remove it", "no alert has the cause %s yet: %s", n.Value, unbuiltCauses[n.Value])
		return
	}
	cause := ""
	f.oneOf(n, "an item of on", event.AlertCauses(), &cause)
	switch {
	case cause == "":
	case slices.Contains(r.On, cause):
		f.fail(n, "remove one of them", "%s is listed twice", cause)
	default:
		r.On = append(r.On, cause)
	}
}

// alertRule reads a rule.
func (f yamlFile) alertRule(n *yaml.Node) {
	r := alertRule{group: defaultGroup, file: f, node: n}
	f.mapping(n, "an alert rule", alertFields.fields(f, &r))
	if n.Kind == yaml.MappingNode {
		for _, name := range []string{"on", "to"} {
			if !hasField(n, name) {
				f.fail(n, fmt.Sprintf("add %s: […]", name), "the rule has no field %s", name)
			}
		}
	}
	r.GroupSec = int64(r.group / time.Second)
	if !r.named {
		r.Name = fmt.Sprintf("rule-%d", len(f.alerts)+1)
	}
	f.alerts = append(f.alerts, r)
}

// linkAlerts adds the rules and channels to the project, and checks them against each other and the assets.
func (l *loader) linkAlerts() {
	slices.SortFunc(l.project.Channels, compareChannels)
	var catalog *selector.Catalog
	size, names := 0, map[string]bool{}
	for i := range l.alerts {
		r := &l.alerts[i]
		if names[r.Name] {
			r.file.fail(r.node, "rename one of them", "two alert rules have the name %s", r.Name)
		}
		names[r.Name] = true
		for j, channel := range r.To {
			if !slices.ContainsFunc(l.channels, func(name string) bool { return name == channel }) {
				r.file.fail(r.toAt[j], "declare it in `channels`", "no channel has the name %s", channel)
			}
		}
		if r.Select != "" {
			if catalog == nil {
				catalog = selector.NewCatalog(l.project.Assets)
			}
			size += l.selectAlerts(r, catalog)
		}
		l.project.Alerts = append(l.project.Alerts, r.AlertRule)
	}
	if size > event.MaxAlertBytes {
		l.report(place{file: ConfigFile}, "select fewer assets, or leave out select", "the alert rules select too many assets: their names have %d bytes; at most %d are allowed",
			size, event.MaxAlertBytes)
	}
	if len(l.alerts) > event.MaxAlertRules {
		l.report(place{file: ConfigFile}, "remove some", "the project has %d alert rules; at most %d are allowed", len(l.alerts), event.MaxAlertRules)
	}
}

// selectAlerts sets the assets of a rule, and returns the total length of their names.
func (l *loader) selectAlerts(r *alertRule, catalog *selector.Catalog) (size int) {
	for _, cause := range r.On {
		if !event.AssetCause(cause) && cause != event.CauseRecovered {
			r.file.fail(r.selectAt, "move "+cause+" to a rule without select", "select chooses assets, and %s is not about an asset", cause)
			return 0
		}
	}
	parsed, err := selector.Parse(r.Select)
	var found selector.Result
	if err == nil {
		found, err = catalog.Select(selector.Query{Include: parsed})
	}
	if err != nil {
		if l.certain(r.Select) {
			r.file.fail(r.selectAt, "", "%s", err)
		}
		return 0
	}
	for _, key := range found.Keys {
		r.Assets = append(r.Assets, key.String())
		size += len(key.String())
	}
	slices.SortFunc(r.Assets, strings.Compare)
	return size
}
