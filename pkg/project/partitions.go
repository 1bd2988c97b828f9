package project

import (
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// periods holds the fields of a time dimension while they are read.
type periods struct {
	space.Dimension
	start, end *yaml.Node
}

// timeFields returns the fields of time partitions of the given kind.
func timeFields(kind space.Kind) table[periods] {
	noun := map[space.Kind]string{space.Every: "period", space.Hourly: "hour", space.Daily: "day", space.Weekly: "week", space.Monthly: "month", space.Yearly: "year"}[kind]
	bound := typed("day", shape{})
	if kind != space.Daily {
		bound = shape{Type: []string{"string", "integer"}, Examples: []any{map[space.Kind]any{
			space.Every: "2025-01-01T06:00", space.Hourly: "2025-01-01T06:00", space.Weekly: "2025-01-06", space.Monthly: "2025-01", space.Yearly: 2025,
		}[kind]}}
	}
	about := func(text string) shape {
		b := bound
		b.Description = text
		return b
	}
	common := table[periods]{
		other("start", about("The first "+noun+"."), func(_ yamlFile, n *yaml.Node, p *periods) { p.start = n }),
		other("end", about("The last "+noun+", inclusive. A partition exists once its "+noun+" has begun. Default: no end."),
			func(_ yamlFile, n *yaml.Node, p *periods) { p.end = n }),
		other("timezone", shape{
			Type: "string", MinLength: 1, Default: "UTC", Examples: []any{"Europe/Paris"},
			Description: "The time zone: it decides when each " + noun + " begins and ends.",
		}, func(f yamlFile, n *yaml.Node, p *periods) { f.timezone(n, &p.Timezone) }),
		other("ready_after", typed("duration", shape{
			Description: "How long after the end of each " + noun + " Servo begins to expect the partition. Default: 0.", Examples: []any{"2h"},
		}), func(f yamlFile, n *yaml.Node, p *periods) {
			const most = 366 * 24 * time.Hour
			if d, ok := f.duration(n, "ready_after", time.Second, time.Second, most); ok {
				p.ReadyAfterSec = int64(d / time.Second)
			}
		}),
	}
	switch kind {
	case space.Every:
		return append(common, other("period", typed("duration", shape{
			Description: "The length of a period: a divisor of one hour.", Examples: []any{"15m"},
		}), func(f yamlFile, n *yaml.Node, p *periods) {
			d, ok := f.duration(n, "period", time.Minute, time.Minute, time.Hour)
			if ok && time.Hour%d != 0 {
				f.fail(n, "write, for example, 15m or 30m", "period is %s, which is not a divisor of one hour", d)
			}
			p.Minutes = int(d / time.Minute)
		}))
	case space.Weekly:
		return append(common, choice("starts", shape{Description: "The first day of a week.", Default: space.Weekdays[0]},
			space.Weekdays, func(p *periods) *string { return &p.Starts }))
	default:
		return common
	}
}

// kindShapes returns the shapes of the kinds of partitions.
func kindShapes(kinds []space.Kind) properties {
	about := map[space.Kind]string{
		space.Every:  "One partition for each period of some minutes. In the short form, the dimension is called time.",
		space.Hourly: "One partition for each hour. In the short form, the dimension is called hour.",
		space.Daily:  "One partition for each day. In the short form, the dimension is called date.",
		space.Weekly: "One partition for each week. In the short form, the dimension is called week.", space.Monthly: "One partition for each month. In the short form, the dimension is called month.",
		space.Yearly: "One partition for each year. In the short form, the dimension is called year.",
	}
	var all properties
	for _, kind := range kinds {
		var s shape
		switch kind {
		case space.Static:
			s = shape{
				Type: "array", Items: &shape{Type: "string", MinLength: 1}, MinItems: 1, MaxItems: space.MaxValues, Description: "One partition for each value of the list.",
				Examples: []any{[]any{"eu", "us"}},
			}
		case space.Dynamic:
			s = shape{Type: "string", MinLength: 1, Pattern: "^[a-z][a-z0-9_]*$", Description: "One partition for each key of this key set, which `servo partitions add` changes.", Examples: []any{"tenants"}}
		case space.Every:
			s = timeFields(kind).shape(shape{Description: about[kind]}, "start", "period")
		default:
			s = timeFields(kind).shape(shape{Description: about[kind]}, "start")
		}
		all = append(all, property{string(kind), &s})
	}
	return all
}

// partitionsShape is the shape of partitions: one kind of time partitions, or named dimensions.
func partitionsShape() shape {
	one := 1
	return shape{
		Type: "object", MinProperties: one, MaxProperties: space.MaxDimensions,
		Description: "The partitions of the asset: one kind of time, or up to four dimensions by name. Default: none.",
		Examples:    []any{map[string]any{"daily": map[string]any{"start": "2025-01-01", "timezone": "Europe/Paris"}}},
		Properties:  kindShapes(space.Kinds()[:6]),
		Additional: &shape{
			Type: "object", MinProperties: one, MaxProperties: one, Additional: false, Properties: kindShapes(space.Kinds()),
			Description: "A dimension: its kind.",
		},
		PropertyNames: &shape{Pattern: "^[a-z][a-z0-9_]*$", PatternHelp: "Use a-z, 0-9 and _, beginning with a letter."},
	}
}

// partitions reads the partitions of an asset.
func (f yamlFile) partitions(n *yaml.Node, a *declared) {
	a.partitioned = true
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.fail(n, `add daily: {start: 2025-01-01}`, "partitions is empty")
		return
	}
	var dimensions []space.Dimension
	known := fields{}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := resolve(n.Content[i])
			known[name.Value] = func(value *yaml.Node) {
				if d := f.dimension(name, value); d != nil {
					dimensions = append(dimensions, *d)
				}
			}
		}
	}
	before := len(f.problems)
	f.mapping(n, "partitions", known)
	if len(dimensions) == 0 || len(f.problems) > before {
		return
	}
	s := space.New(dimensions...)
	if err := s.Validate(); err != nil {
		f.fail(n, "", "%s", err)
		return
	}
	if err := reservedNames(s); err != "" {
		f.fail(n, "choose another name", "%s", err)
		return
	}
	a.Partitions, a.Work.Dimensions = s, s.Types()
}

// partitionColumns reads the field partition_columns, which determines whether readers of an asset get its dimensions
// as columns.
func (f yamlFile) partitionColumns(n *yaml.Node, a *declared) {
	on := true
	f.boolean(n, "partition_columns", &on)
	a.NoPartitionColumns = !on
}

// merge reads the field merge, which determines whether small outputs of the asset are copied to merged files.
func (f yamlFile) merge(n *yaml.Node, a *declared) {
	on := true
	f.boolean(n, "merge", &on)
	a.NoMerge = !on
}

// reservedNames returns "" or, if a dimension has a name that is not allowed, a description of the problem. A name is
// not allowed if the variable of the dimension would have the name of another variable.
func reservedNames(s *space.Space) string {
	at := s.Time()
	for i := range s.Dimensions {
		name := s.Dimensions[i].Name
		switch {
		case strings.HasPrefix(name, plan.VarPrefix), strings.HasPrefix(name, "servo_"):
			return "the dimension " + name + " has a reserved prefix"
		case at != nil && (name == at.Name+"_start" || name == at.Name+"_end"):
			return "the dimension " + name + " has the name of a variable of " + at.Name
		}
	}
	return ""
}

// dimension reads one dimension: a kind in the short form, or a name with a kind. It returns nil after
// a problem.
func (f yamlFile) dimension(name, value *yaml.Node) *space.Dimension {
	kinds := make([]string, 0, len(space.Kinds()))
	for _, k := range space.Kinds() {
		kinds = append(kinds, string(k))
	}
	if kind := space.Kind(name.Value); slices.Contains(space.Kinds(), kind) {
		if kind.DefaultName() == "" {
			f.fail(name, "write partitions: {region: {"+name.Value+": …}}", "%s partitions need a name for their dimension", kind)
			return nil
		}
		return f.kind(kind.DefaultName(), kind, value)
	}
	if value.Kind != yaml.MappingNode || len(value.Content) != 2 || !slices.Contains(kinds, value.Content[0].Value) {
		f.noKind(name, value, kinds)
		return nil
	}
	return f.kind(name.Value, space.Kind(value.Content[0].Value), resolve(value.Content[1]))
}

// noKind reports a dimension that has no kind, or an unknown one.
func (f yamlFile) noKind(name, value *yaml.Node, kinds []string) {
	near, list := plan.Suggest(name.Value, kinds), "[eu, us]"
	switch {
	case near != "":
		f.fail(name, didYouMean(near), "unknown kind of partitions %s", quoteShort(name.Value))
		return
	case value.Kind == yaml.MappingNode && len(value.Content) == 2: //nolint:mnd // a key and a value
		kind := resolve(value.Content[0])
		suggestion := didYouMean(plan.Suggest(kind.Value, kinds))
		if suggestion == "" {
			suggestion = "write one of " + strings.Join(kinds, ", ")
		}
		f.fail(kind, suggestion, "unknown kind %s of dimension %s", quoteShort(kind.Value), name.Value)
		return
	case value.Kind == yaml.SequenceNode && len(value.Content) > 0:
		list = "[" + resolve(value.Content[0]).Value + ", …]"
	}
	f.fail(name, "write "+name.Value+": {static: "+list+"}", "dimension %s has no kind", quoteShort(name.Value))
}

// kind reads the settings of a dimension.
func (f yamlFile) kind(name string, kind space.Kind, n *yaml.Node) *space.Dimension {
	p := periods{Dimension: space.Dimension{Name: name, Kind: kind}}
	before := len(f.problems)
	switch kind {
	case space.Static:
		p.Values = f.texts(n, name)
	case space.Dynamic:
		p.Set, _ = f.text(n, name+".dynamic")
	default:
		f.mapping(n, string(kind), timeFields(kind).fields(f, &p))
		f.bounds(n, &p)
	}
	if len(f.problems) > before {
		return nil
	}
	if err := p.Validate(); err != nil {
		f.fail(n, "", "%s", err)
		return nil
	}
	if err := (space.Calendar{Zone: calendar.Zone}).CheckZone(&p.Dimension); err != nil {
		f.fail(n, "", "%s", err)
		return nil
	}
	return &p.Dimension
}

// bounds reads start and end. It must run after the other fields are read, because the format of start and end
// depends on them.
func (f yamlFile) bounds(n *yaml.Node, p *periods) {
	if n.Kind != yaml.MappingNode {
		return
	}
	if p.start == nil {
		f.fail(n, "add start: "+p.ExampleBound(), "%s has no start", p.Kind)
		return
	}
	if p.Kind == space.Every && p.Minutes == 0 {
		if !hasField(n, "period") {
			f.fail(n, "add period: 15m", "every has no period")
		}
		return
	}
	read := func(n *yaml.Node, what string, to *string) {
		if n == nil {
			return
		}
		if n.Kind != yaml.ScalarNode {
			f.fail(n, p.Help(), "%s must be %s, got %s", what, p.Noun(), kindOf(n))
		} else if err := p.CheckBound(n.Value); err != nil {
			f.fail(n, "", "%s: %s", what, err)
		} else {
			*to = n.Value
		}
	}
	before := len(f.problems)
	read(p.start, "start", &p.Start)
	read(p.end, "end", &p.End)
	if len(f.problems) == before && p.EndsBeforeStart() {
		f.fail(n, "swap them, or remove end", "the end %s is before the start %s", p.End, p.Start)
	}
}

func (f yamlFile) timezone(n *yaml.Node, to *string) {
	s, ok := f.text(n, "timezone")
	if !ok {
		return
	}
	if _, err := calendar.Zone(s); err != nil {
		f.fail(n, "", "%s", err)
		return
	}
	*to = s
}

// depFields are the fields of a dependency with settings.
var depFields = table[dep]{
	other("asset", typed("key", shape{Description: "The asset that is read."}), func(f yamlFile, n *yaml.Node, d *dep) {
		if s, ok := f.text(n, "asset"); ok {
			f.depKey(n, s, d)
		}
	}),
	other("map", mapShape(), func(f yamlFile, n *yaml.Node, d *dep) { d.mapping = f.mapOf(n) }),
	requiresField(func(d *dep) *string { return &d.requires }),
	other("require_quality", shape{
		Type: "boolean", Default: false, Examples: []any{true},
		Description: "Do not read a degraded output: one for which a check of severity error has failed. The task is skipped with UPSTREAM_DEGRADED.",
	}, func(f yamlFile, n *yaml.Node, d *dep) { f.boolean(n, "require_quality", &d.requireQuality) }),
}

// requiresField returns the field `requires`, which determines whether partitions may be missing.
func requiresField[T any](at func(*T) *string) field[T] {
	return choice("requires", shape{
		Description: "complete: a run is rejected if an expected partition of an upstream asset is missing. available: the run reads the partitions that exist, and warns.",
		Default:     plan.RequiresComplete,
	}, []string{plan.RequiresComplete, plan.RequiresAvailable}, at)
}

// mapShape is the shape of a mapping of partitions.
func mapShape() shape {
	one := &shape{AnyOf: []*shape{
		{Enum: []string{"identity", "all", "latest", "coarsen", "refine"}},
		{Type: "object", MinProperties: 1, Additional: false, Properties: properties{
			{"identity", &shape{Type: "string", Description: "The upstream dimension with the same keys."}},
			{"coarsen", &shape{Type: "string", Description: "The upstream dimension with shorter periods."}},
			{"refine", &shape{Type: "string", Description: "The upstream dimension with longer periods."}},
			{"window", &shape{
				Type: "array", Items: &shape{Type: "integer"}, MinItems: 2, MaxItems: 2,
				Description: "The first and the last period that are read, relative to the period of the reading partition: [-6, 0] is that period and the six before it.", Examples: []any{[]any{-6, 0}},
			}},
			{"values", &shape{
				Type: "object", Additional: &shape{Type: "array", Items: &shape{Type: "string"}},
				Description: "For each value of the reader's dimension, the upstream values that a partition with this value reads.", Examples: []any{map[string]any{"eu": []any{"fr", "de"}}},
			}},
			{"of", &shape{Type: "string", Description: "The upstream dimension, if its name differs."}},
		}},
	}}
	return shape{
		Description: "Which partitions a partition reads: for the whole asset, or by dimension. Default: inferred from the partitions of both assets.",
		AnyOf:       []*shape{{Enum: []string{"identity", "all", "latest"}}, {Type: "object", MinProperties: 1, Additional: one}},
		Examples:    []any{map[string]any{"date": map[string]any{"window": []any{-6, 0}}}},
	}
}

// deps reads the listed dependencies.
func (f yamlFile) deps(n *yaml.Node, a *declared) {
	f.each(n, "deps", func(item *yaml.Node) {
		d := dep{at: f.place(item)}
		if item.Kind == yaml.MappingNode {
			f.mapping(item, "an item of deps", depFields.fields(f, &d))
			if !hasField(item, "asset") {
				f.fail(item, "add asset: namespace/name", "an item of deps has no asset")
			}
		} else if s, ok := f.text(item, "an item of deps"); ok {
			f.depKey(item, s, &d)
		}
		if d.key != (ids.AssetKey{}) {
			a.deps = append(a.deps, d)
		}
	})
	if len(a.deps) > maxList {
		f.fail(n, "", "an asset may have at most %d deps", maxList)
		a.deps = a.deps[:maxList]
	}
}

// depKey reads the key of a dependency.
func (f yamlFile) depKey(n *yaml.Node, s string, d *dep) {
	key, err := ids.ParseAssetKey(s)
	if err != nil {
		f.fail(n, keySuggestion(s), "invalid asset key %s: expected namespace/name", quoteShort(s))
		return
	}
	d.key = key
}

// These are the names of the operations of a map in project files.
var (
	wholeOps     = []string{"identity", "all", "latest"}
	dimensionOps = []string{"identity", "all", "latest", "project", "coarsen", "refine", "window", "values"}
)

// mapOf reads a mapping of partitions. It returns nil after a problem.
func (f yamlFile) mapOf(n *yaml.Node) *space.Map {
	if n.Kind == yaml.ScalarNode {
		var op string
		f.oneOf(n, "map", wholeOps, &op)
		if op == "" {
			return nil
		}
		return &space.Map{Op: space.Op(op)}
	}
	var m space.Map
	known := fields{}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := resolve(n.Content[i]).Value
			known[name] = func(value *yaml.Node) {
				d := space.DimensionMap{Dimension: name}
				f.dimensionMap(value, &d)
				m.Dimensions = append(m.Dimensions, d)
			}
		}
	}
	before := len(f.problems)
	f.mapping(n, "map", known)
	if len(f.problems) > before {
		return nil
	}
	slices.SortFunc(m.Dimensions, func(a, b space.DimensionMap) int { return strings.Compare(a.Dimension, b.Dimension) })
	return &m
}

// dimensionMap reads the operation on one dimension.
func (f yamlFile) dimensionMap(n *yaml.Node, d *space.DimensionMap) {
	if n.Kind == yaml.ScalarNode {
		var op string
		f.oneOf(n, "the map of "+d.Dimension, dimensionOps[:6], &op)
		if d.Op = space.Op(op); op == "project" {
			d.Op = space.All
		}
		return
	}
	of := func(op space.Op) func(*yaml.Node) {
		return func(n *yaml.Node) {
			d.Op = op
			d.Of, _ = f.text(n, string(op))
		}
	}
	f.mapping(n, "the map of "+d.Dimension, fields{
		"identity": of(space.Identity), "coarsen": of(space.Coarsen), "refine": of(space.Refine),
		"of":     func(n *yaml.Node) { d.Of, _ = f.text(n, "of") },
		"window": func(n *yaml.Node) { d.Op = space.Window; f.window(n, d) },
		"values": func(n *yaml.Node) { d.Op = space.Values; f.valueMap(n, d) },
	})
	if n.Kind == yaml.MappingNode && d.Op == "" {
		f.fail(n, "write one of "+strings.Join(dimensionOps, ", "), "the map of %s has no operation", d.Dimension)
	}
}

func (f yamlFile) window(n *yaml.Node, d *space.DimensionMap) {
	var offsets []int64
	f.each(n, "window", func(item *yaml.Node) {
		if i, ok := f.integer(item, "an offset of window", -space.MaxPeriods, space.MaxPeriods); ok {
			offsets = append(offsets, i)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) != 2 {
		f.fail(n, "write window: [-6, 0]", "window must have two offsets, got %d", len(n.Content))
	}
	if len(offsets) == 2 {
		d.From, d.To = offsets[0], offsets[1]
	}
}

func (f yamlFile) valueMap(n *yaml.Node, d *space.DimensionMap) {
	d.Values = map[string][]string{}
	known := fields{}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := resolve(n.Content[i]).Value
			known[name] = func(value *yaml.Node) { d.Values[name] = f.texts(value, "values of "+name) }
		}
	}
	f.mapping(n, "values", known)
}

// checkMapping reports a dependency whose partitions cannot be mapped to the partitions of the asset that reads them.
func (l *loader) checkMapping(a, upstream *declared, d dep) {
	if a.Broken != "" || upstream.Broken != "" || l.unreadable[upstream.File] {
		return
	}
	m, err := plan.Mapping(&upstream.Asset, &a.Asset)
	if err != nil {
		l.report(d.at, "", "%s", err)
		return
	}
	if value, dimension := m.Unmatched(); value != "" {
		l.report(d.at, "add the value to "+upstream.Key.String()+", remove it from "+a.Key.String()+", or declare what it reads: map: {"+dimension+": {values: …}}",
			"partitions with the value %s can never run: %s has no %s=%s", quoteShort(value), upstream.Key, dimension, value)
	}
}
