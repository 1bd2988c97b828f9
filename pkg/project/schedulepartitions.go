package project

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// namedDimension is a dimension that the partitions of a schedule name, with its position in the file.
type namedDimension struct {
	name string
	at   *yaml.Node
	// clause selects values of the dimension. Problems with these values are reported at the node values. status means
	// that the selection also has a status.
	clause space.Clause
	values *yaml.Node
	status bool
}

// runPartitionsField is the field partitions in the field run of a schedule.
var runPartitionsField = noted("partitions", shape{
	AnyOf: []*shape{
		{Type: "string"},
		{Type: "array", Items: &shape{Type: "string"}, MinItems: 1},
		{Type: "object", Additional: &shape{AnyOf: []*shape{{Type: "string"}, {Type: "array", Items: &shape{Type: "string"}}}}},
	},
	Examples: []any{map[string]any{"date": "latest"}, "latest", []any{"date=2025-01-15;region=eu", "2025-02"}},
	Description: "The partitions: a selection as in -p of `servo run`, a list of such selections, or a mapping from dimensions to their values. " +
		"latest is the newest partition at the time of the tick.",
}, func(f yamlFile, n *yaml.Node, s *schedule) {
	switch n.Kind {
	case yaml.ScalarNode:
		f.runSelection(n, s)
	case yaml.SequenceNode:
		f.each(n, "partitions", func(item *yaml.Node) { f.runSelection(item, s) })
		if len(n.Content) == 0 {
			f.fail(n, "write [latest], or remove the field", "partitions is empty")
		}
	default:
		f.runPartitions(n, s)
	}
})

// runSelection reads one selection of partitions, which has the form of the flag -p.
func (f yamlFile) runSelection(n *yaml.Node, s *schedule) {
	if n.Kind != yaml.ScalarNode {
		f.fail(n, "write, for example, [latest] or {date: latest}", "an item of partitions must be a string, got %s", kindOf(n))
		return
	}
	selection, err := plan.ParseSelection(n.Value)
	if err != nil {
		f.fail(n, "write, for example, latest or date=2025-01-01..2025-01-31", "partitions: invalid selection %s", quoteShort(n.Value))
		return
	}
	for _, clause := range selection.Clauses {
		s.dimensions = append(s.dimensions, namedDimension{name: clause.Dimension, at: n, clause: clause, values: n, status: selection.Status != ""})
	}
	s.Run.Partitions = append(s.Run.Partitions, n.Value)
}

// runPartitions reads a mapping from dimensions to values as one selection.
func (f yamlFile) runPartitions(n *yaml.Node, s *schedule) {
	known := fields{}
	var clauses []string
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		name := resolve(n.Content[i])
		at := len(s.dimensions)
		s.dimensions = append(s.dimensions, namedDimension{name: name.Value, at: name})
		known[name.Value] = func(n *yaml.Node) {
			texts := []string{n.Value}
			if n.Kind == yaml.SequenceNode {
				texts = f.scalars(n, "partitions."+name.Value)
			} else if n.Kind != yaml.ScalarNode {
				f.fail(n, "", "partitions of %s must be a string or a list, got %s", name.Value, kindOf(n))
				return
			}
			clause := name.Value + "=" + strings.Join(texts, ",")
			selection, err := plan.ParseSelection(clause)
			if err != nil || strings.Contains(clause, ";") {
				f.fail(n, "write, for example, date: latest or date: 2025-01-01..2025-01-31", "partitions: invalid selection %s", quoteShort(clause))
				return
			}
			s.dimensions[at].clause, s.dimensions[at].values = selection.Clauses[0], n
			clauses = append(clauses, clause)
		}
	}
	f.mapping(n, "partitions", known)
	if len(clauses) > 0 {
		s.Run.Partitions = []string{strings.Join(clauses, ";")}
	}
}

// scalars reads a list of strings, dates or numbers, and returns them as they are written.
func (f yamlFile) scalars(n *yaml.Node, what string) []string {
	var texts []string
	f.each(n, what, func(item *yaml.Node) {
		if item.Kind != yaml.ScalarNode {
			f.fail(item, "", "an item of %s must be a string, got %s", what, kindOf(item))
			return
		}
		texts = append(texts, item.Value)
	})
	return texts
}

// checkDimensions reports dimensions in selections that no selected asset has. "" means the time dimension. The
// parameter known contains the dimensions of the selected assets.
func (s *schedule) checkDimensions(known map[string]bool) {
	for _, d := range s.dimensions {
		switch {
		case known[d.name] || d.name == "" && len(known) > 0:
		case d.name == "":
			s.file.fail(d.at, "remove partitions, or select a partitioned asset", "no selected asset is partitioned")
		default:
			s.file.fail(d.at, "", "no selected asset has the dimension %s", quoteShort(d.name))
		}
	}
}

// checkValues reports selected values that the dimensions of the selected assets can never have, so that every tick
// would be refused.
func (s *schedule) checkValues(assets []*plan.Asset, named map[ids.AssetKey]bool) {
	for _, d := range s.dimensions {
		if err := d.check(assets, named); err != nil {
			s.file.fail(d.values, "", "partitions: %s", err)
		}
	}
}

// check returns an error if the assets cannot have the selected values. An asset that the schedule names must declare
// all of them. If the selection has a status, it may select undeclared values.
func (d *namedDimension) check(assets []*plan.Asset, named map[ids.AssetKey]bool) (undeclared error) {
	declared := false
	for _, a := range assets {
		dimension := a.Partitions.Dimension(d.name)
		if d.name == "" {
			dimension = a.Partitions.Time()
		}
		if dimension == nil {
			continue
		}
		err := dimension.CheckClause(d.clause, calendar.Zone)
		switch mine := fmt.Errorf("asset %s: %w", a.Key, err); {
		case err == nil:
			declared = true
		case !errors.As(err, new(*space.UndeclaredError)), named[a.Key] && !d.status:
			return mine
		default:
			undeclared = cmp.Or(undeclared, mine)
		}
	}
	if declared || d.status {
		return nil
	}
	return undeclared
}

// lacksPartitions reports that the schedule selects a partitioned asset but no partitions.
func (s *schedule) lacksPartitions(a *plan.Asset, at *yaml.Node) {
	advice := "under run, write partitions: all, or write upstream: stale to run all missing and stale partitions"
	if a.Partitions.Time() != nil {
		advice = "under run, write partitions: latest, or write upstream: stale to run all missing and stale partitions"
	}
	s.file.fail(at, advice, "schedule %s selects no partitions, but asset %s is partitioned: every tick would be refused", s.Name, a.Key)
}
