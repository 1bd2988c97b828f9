package project

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/quality"
)

// check holds the fields of an asset's check while its file is read.
type check struct {
	quality.Check
	at place
	// kinds are the kinds that the check declares. A valid check declares exactly one kind.
	kinds []string
	// columnsAt are the positions of Columns.
	columnsAt []place
	// sqlAt is the position where SQL begins.
	sqlAt place
	// reads is the asset that a check of kind relationships reads.
	reads *dep
	// allowed is how often the field allow was read: it may be beside the kind or within it, but not both.
	allowed int
	// seasonal is the field seasonal of an anomaly check.
	seasonal string
}

// checkFields are the fields of a check. The kind of a check is the name of one of these fields: a name in
// [quality.Kinds], sql or command.
var checkFields = table[check]{
	kind(quality.NotNull, columnList("Columns that have no NULL."), yamlFile.checkColumns),
	kind(quality.Unique, columnList("Columns whose combination of values is unique. Rows with a NULL in one of the columns are ignored."), yamlFile.checkColumns),
	kind(quality.RowCount, rowCountFields.shape(shape{Description: "Bounds of the number of rows.", MinProperties: 1}), yamlFile.rowCount),
	kind(quality.AcceptedValues, acceptedFields.shape(shape{Description: "The values that a column may have. NULL is ignored."}, "column", "values"),
		func(f yamlFile, n *yaml.Node, c *check) { f.checkMapping(n, c, acceptedFields, "column", "values") }),
	kind(quality.Relationships, relationFields.shape(shape{Description: "Values that exist in a column of another asset, which becomes a dependency. NULL is ignored."},
		"column", "to", "field"), func(f yamlFile, n *yaml.Node, c *check) {
		f.checkMapping(n, c, relationFields, "column", "to", "field")
	}),
	kind(quality.Range, rangeFields.shape(shape{Description: "Bounds of a column: numbers, dates or texts. NULL is ignored."}, "column"), yamlFile.inRange),
	kind(quality.Regex, regexFields.shape(shape{Description: "A regular expression (RE2) that every value matches somewhere; ^ and $ anchor it. NULL is ignored."}, "column", "pattern"),
		func(f yamlFile, n *yaml.Node, c *check) { f.checkMapping(n, c, regexFields, "column", "pattern") }),
	kind(quality.Freshness, freshnessFields.shape(shape{Description: "The maximum age of the newest value of a column, when the check runs."}, "column", "max_age"),
		func(f yamlFile, n *yaml.Node, c *check) { f.checkMapping(n, c, freshnessFields, "column", "max_age") }),
	kind(quality.Schema, schemaCheckFields.shape(shape{Description: "The columns of the output and their types."}, "columns"),
		func(f yamlFile, n *yaml.Node, c *check) { f.checkMapping(n, c, schemaCheckFields, "columns") }),
	kind(quality.Anomaly, anomalyFields.shape(shape{
		Description: "Compares a metric with earlier outputs: median ± threshold × MAD (median absolute deviation).",
	}, "metric"), yamlFile.anomaly),
	kind(quality.SQL, shape{Type: "string", MinLength: 1, Description: "A SELECT that returns the failing rows. The asset's own name is its new rows; " +
		"other names are assets, which become dependencies."}, yamlFile.checkSQL),
	kind(quality.Command, shape{
		Type: "array", Items: &shape{Type: "string"}, MinItems: 1, MaxItems: maxList,
		Description: "A program and its arguments. It reads SERVO_OUTPUT and may write its verdict to SERVO_VERDICT.",
	}, func(f yamlFile, n *yaml.Node, c *check) { c.Command = f.command(n) }),
	other("name", shape{
		Type: "string", Pattern: quality.NamePattern, PatternHelp: "1 to 100 of a-z, 0-9 and _.", Not: &shape{Enum: contractNames},
		Description: "The name, unique in the asset. Default: the kind and the columns. The names `columns` and `columns_not_null` are reserved.",
	}, yamlFile.checkName),
	choice("severity", shape{
		Description: "The effect of a failure: critical blocks the output, error marks it as degraded, warning and info are recorded.",
		Default:     "critical",
	}, []string{"critical", "error", "warning", "info"}, func(c *check) *string { return (*string)(&c.Severity) }),
	choice("phase", shape{Description: "pre: the check runs before the work, on the inputs. Only for sql and command.", Default: "post"},
		[]string{"pre", "post"}, func(c *check) *string { return &c.Phase }),
	allowField(),
	other("timeout", typed("duration", shape{Description: "How long the check may run: 1s to 168h, in whole seconds. Default: as long as the task."}),
		func(f yamlFile, n *yaml.Node, c *check) { f.seconds(n, "timeout", &c.TimeoutSec) }),
}

// checkKinds returns the fields that name the kind of a check.
func checkKinds() []string {
	return append(quality.Kinds(), quality.SQL, quality.Command)
}

// kind returns a field whose name is a kind of check.
func kind(name string, about shape, read func(yamlFile, *yaml.Node, *check)) field[check] {
	return field[check]{name, about, func(f yamlFile, n *yaml.Node, c *check) {
		c.kinds = append(c.kinds, name)
		c.Kind = name
		read(f, n, c)
	}}
}

func columnList(about string) shape {
	return shape{Type: "array", Items: &shape{Type: "string", MinLength: 1}, MinItems: 1, MaxItems: maxList, Description: about}
}

var columnField = other("column", shape{Type: "string", MinLength: 1, Description: "The column."}, func(f yamlFile, n *yaml.Node, c *check) {
	f.checkColumn(n, c)
})

const percentPattern = `^[0-9]{1,5}(\.[0-9]{1,4})?%$`

func allowField() field[check] {
	return other("allow", shape{
		AnyOf:       []*shape{{Type: "integer", Minimum: new(int64)}, {Type: "string", Pattern: percentPattern}},
		Description: "How many failing rows are tolerated: a number, or a percentage of all rows such as 0.1%.", Default: 0,
	}, yamlFile.allow)
}

var (
	rowCountFields = table[check]{
		other("min", shape{Type: "integer", Minimum: new(int64), Description: "The minimum number of rows."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.Min = f.wholeBound(n, "min") }),
		other("max", shape{Type: "integer", Minimum: new(int64), Description: "The maximum number of rows."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.Max = f.wholeBound(n, "max") }),
		other("against_previous", previousFields.shape(shape{
			MinProperties: 1, Description: "Bounds relative to the previous output of the same partition. If there is none, the check passes.",
		}), func(f yamlFile, n *yaml.Node, c *check) {
			f.mapping(n, "against_previous", previousFields.fields(f, c))
			f.notEmpty(n, "against_previous", "add min: 50%")
		}),
	}
	previousFields = table[check]{
		other("min", shape{Type: "string", Pattern: percentPattern, Description: "The lower bound, as a percentage of the previous number of rows."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.MinOfPrevious, _ = f.percent(n, "min") }),
		other("max", shape{Type: "string", Pattern: percentPattern, Description: "The upper bound, as a percentage of the previous number of rows."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.MaxOfPrevious, _ = f.percent(n, "max") }),
	}
	acceptedFields = table[check]{
		columnField,
		other("values", shape{
			Type: "array", Items: &shape{Type: []string{"string", "number", "boolean"}}, MinItems: 1, MaxItems: quality.MaxValues,
			Description: "Texts, numbers or booleans. Unless all of them are numbers, they are compared as text.",
		}, yamlFile.values),
		allowField(),
	}
	relationFields = table[check]{
		columnField,
		other("to", typed("key", shape{Description: "The other asset."}), yamlFile.relation),
		other("field", shape{Type: "string", MinLength: 1, Description: "The column of the other asset."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.Field = f.nonEmpty(n, "field") }),
		allowField(),
	}
	rangeFields = table[check]{
		columnField,
		other("min", shape{Type: []string{"string", "number"}, Description: "The minimum."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.Min = f.literal(n, "min") }),
		other("max", shape{Type: []string{"string", "number"}, Description: "The maximum."},
			func(f yamlFile, n *yaml.Node, c *check) { c.Params.Max = f.literal(n, "max") }),
		allowField(),
	}
	regexFields = table[check]{
		columnField,
		other("pattern", shape{Type: "string", Description: "The regular expression."}, yamlFile.pattern),
		allowField(),
	}
	freshnessFields = table[check]{
		columnField,
		other("max_age", typed("age", shape{Description: "The maximum age: 1s to 36500d."}), yamlFile.maxAge),
	}
	anomalyFields = table[check]{
		choice("metric", shape{Description: "The measured quantity. null_count and distinct_count need a column."},
			[]string{quality.MetricRows, quality.MetricNulls, quality.MetricDistinct}, func(c *check) *string { return &c.watch().Metric }),
		columnField,
		whole("window", shape{Description: "How many earlier values are compared.", Default: defaultWindow},
			quality.LeastHistory, quality.MaxWindow, func(c *check) *int { return &c.watch().Window }),
		other("threshold", shape{Type: "number", Minimum: new(int64), Maximum: &greatestThreshold, Default: defaultThreshold, Description: "The tolerated distance from the median, as a multiple of MAD."},
			func(f yamlFile, n *yaml.Node, c *check) {
				var permille int32
				f.permille(n, "threshold", 0, float64(greatestThreshold), &permille)
				c.watch().Threshold = int64(permille)
			}),
		choice("seasonal", shape{Description: "weekday: compare with values of the same day of the week. The asset needs partitions of days or shorter periods."},
			[]string{"weekday"}, func(c *check) *string { return &c.seasonal }),
	}
	schemaCheckFields = table[check]{
		other("columns", columnTypesShape(shape{Type: "string"}, shape{Description: "The types of the columns, by name."}),
			func(f yamlFile, n *yaml.Node, c *check) {
				f.columnTypes(n, "columns", func(name, value *yaml.Node) {
					if kind, ok := f.columnType(value, "the type of "+name.Value); ok {
						c.Params.Types = append(c.Params.Types, quality.ColumnType{Name: name.Value, Type: kind})
					}
				})
			}),
		other("extra", shape{Enum: []string{"forbid", "allow"}, Default: "forbid", Description: "Whether the output may have other columns."},
			func(f yamlFile, n *yaml.Node, c *check) {
				extra := "forbid"
				f.oneOf(n, "extra", []string{"forbid", "allow"}, &extra)
				c.Params.ForbidExtra = extra == "forbid"
			}),
	}
)

// checks reads the checks of an asset.
func (f yamlFile) checks(n *yaml.Node, a *declared) {
	f.each(n, "checks", func(item *yaml.Node) {
		if len(a.checks) < quality.MaxChecks+1 {
			f.check(item, a)
		}
	})
	if len(a.checks) > quality.MaxChecks {
		f.fail(n, "combine some of them in one sql check", "an asset may have at most %d checks, including those of columns", quality.MaxChecks)
		a.checks = a.checks[:quality.MaxChecks]
	}
}

// check reads one check and adds it to the asset.
func (f yamlFile) check(n *yaml.Node, a *declared) {
	c := check{at: f.place(n)}
	c.Params.ForbidExtra = true
	before := len(f.problems)
	f.mapping(n, "a check", checkFields.fields(f, &c))
	if n.Kind != yaml.MappingNode {
		return
	}
	c.Severity, c.Phase = quality.Severity(strings.ToUpper(string(c.Severity))), strings.ToUpper(c.Phase)
	if c.Severity == quality.Critical {
		c.Severity = ""
	}
	if c.Phase == quality.Post {
		c.Phase = ""
	}
	if c.Kind != quality.Schema {
		c.Params.ForbidExtra = false
	}
	f.checkKind(n, &c)
	if len(f.problems) > before {
		return
	}
	if c.Name == "" {
		c.Name = defaultName(&c.Check)
	}
	a.checks = append(a.checks, c)
}

// checkKind reports a check without a kind or with several kinds, and fields that contradict the kind or each other.
func (f yamlFile) checkKind(n *yaml.Node, c *check) {
	rows := []string{quality.NotNull, quality.Unique, quality.AcceptedValues, quality.Relationships, quality.Range, quality.Regex, quality.SQL}
	switch {
	case len(c.kinds) == 0:
		f.fail(n, "add one of "+strings.Join(checkKinds(), ", "), "the check has no kind")
	case len(c.kinds) > 1:
		f.fail(n, "write each kind as a separate item", "the check has several kinds: %s", strings.Join(c.kinds, ", "))
	case c.PhaseOf() == quality.Pre && c.Kind != quality.SQL && c.Kind != quality.Command:
		f.fail(n, "remove phase", "a check of kind %s looks at the rows of the output, so it cannot run before the work", c.Kind)
	case c.allowed > 1:
		f.fail(n, "remove one of them", "the check has `allow` twice: beside its kind and within it")
	case c.allowed > 0 && !slices.Contains(rows, c.Kind):
		f.fail(n, "remove allow", "a check of kind %s does not count failing rows", c.Kind)
	}
}

// defaultName returns the name of a check that declares none. It consists of the kind and the columns.
func defaultName(c *quality.Check) string {
	name := c.Kind
	for _, column := range c.Columns {
		name += "_" + strings.ToLower(column)
	}
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), quality.MaxName)]
}

// checkMapping reads the mapping of a kind, and reports required fields that are missing.
func (f yamlFile) checkMapping(n *yaml.Node, c *check, known table[check], required ...string) {
	f.mapping(n, c.Kind, known.fields(f, c))
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, name := range required {
		if !hasField(n, name) {
			f.fail(n, "add "+name, "%s has no %s", c.Kind, name)
		}
	}
}

func (f yamlFile) notEmpty(n *yaml.Node, what, suggestion string) {
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.fail(n, suggestion, "%s is empty", what)
	}
}

func (f yamlFile) rowCount(n *yaml.Node, c *check) {
	f.checkMapping(n, c, rowCountFields)
	f.notEmpty(n, "row_count", "add min: 1")
}

// Defaults of anomaly checks.
const (
	defaultWindow    = 30
	defaultThreshold = 6
)

var greatestThreshold int64 = quality.MaxThreshold / 1000

// watch returns the parameters of an anomaly check.
func (c *check) watch() *quality.Watch {
	if c.Params.Watch == nil {
		c.Params.Watch = &quality.Watch{Window: defaultWindow, Threshold: defaultThreshold * 1000}
	}
	return c.Params.Watch
}

func (f yamlFile) anomaly(n *yaml.Node, c *check) {
	c.watch()
	f.checkMapping(n, c, anomalyFields, "metric")
	c.watch().Weekday = c.seasonal != ""
	switch rows := c.watch().Metric == quality.MetricRows; {
	case n.Kind != yaml.MappingNode || c.watch().Metric == "":
	case rows && len(c.Columns) > 0:
		f.fail(n, "remove column", "row_count has no column")
	case !rows && len(c.Columns) == 0:
		f.fail(n, "add column", "%s needs a column", c.watch().Metric)
	case c.watch().Threshold == 0 && hasField(n, "threshold"):
		f.fail(n, "", "threshold must be above 0")
	}
}

func (f yamlFile) inRange(n *yaml.Node, c *check) {
	f.checkMapping(n, c, rangeFields, "column")
	if n.Kind == yaml.MappingNode && !hasField(n, "min") && !hasField(n, "max") {
		f.fail(n, "add min or max", "range has no bound")
	}
}

// checkColumns reads a list of columns.
func (f yamlFile) checkColumns(n *yaml.Node, c *check) {
	f.each(n, c.Kind, func(item *yaml.Node) { f.checkColumn(item, c) })
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.fail(n, "name a column", "%s is empty", c.Kind)
	}
	if len(c.Columns) > maxList {
		f.fail(n, "", "a check may name at most %d columns", maxList)
	}
}

func (f yamlFile) checkColumn(n *yaml.Node, c *check) {
	name := f.nonEmpty(n, "a column")
	c.Columns, c.columnsAt = append(c.Columns, name), append(c.columnsAt, f.place(n))
}

// nonEmpty reads a non-empty text.
func (f yamlFile) nonEmpty(n *yaml.Node, what string) string {
	s, ok := f.text(n, what)
	if ok && s == "" {
		f.fail(n, "", "%s is empty", what)
	}
	return s
}

// contractNames are the names of the checks that the field `columns` defines.
var contractNames = []string{quality.ContractCheck, quality.ContractNotNullCheck}

func (f yamlFile) checkName(n *yaml.Node, c *check) {
	s, ok := f.text(n, "name")
	switch {
	case ok && !quality.ValidName(s):
		f.fail(n, "", "name is %s; use 1 to %d of a-z, 0-9 and _", quoteShort(s), quality.MaxName)
		return
	case slices.Contains(contractNames, s):
		f.fail(n, "choose another name", "the name %s is reserved for a check that the asset's field `columns` defines", s)
		return
	}
	c.Name = s
}

func (f yamlFile) checkSQL(n *yaml.Node, c *check) {
	c.SQL, c.sqlAt = f.nonEmpty(n, "sql"), f.textPlace(n)
	if len(c.SQL) > quality.MaxText {
		f.fail(n, "", "sql has %d bytes; at most %d are allowed", len(c.SQL), quality.MaxText)
	}
}

// textPlace returns the position of the first character of a text, after an opening quote. The position is right only
// if the text begins on the line of its node.
func (f yamlFile) textPlace(n *yaml.Node) place {
	at := f.place(n)
	if n.Style == yaml.DoubleQuotedStyle || n.Style == yaml.SingleQuotedStyle {
		at.column++
	}
	return at
}
