package project

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// maxTestRows is the maximum number of rows of a table in a unit test.
const maxTestRows = 10_000

// readGiven reads the rows of the assets that the query reads.
func (d *testDeclaration) readGiven(f yamlFile) {
	if d.given == nil {
		return
	}
	known, seen := fields{}, map[ids.AssetKey]bool{}
	for i := 0; d.given.Kind == yaml.MappingNode && i+1 < len(d.given.Content); i += 2 {
		name := resolve(d.given.Content[i])
		known[name.Value] = func(n *yaml.Node) {
			a := d.loader.find(f, name, name.Value)
			if a == nil {
				return
			}
			if seen[a.Key] {
				f.fail(name, "remove one of them", "%s is given twice", a.Key)
			}
			seen[a.Key] = true
			given := testcase.Given{At: f.testPlace(name), Asset: a.Key}
			f.given(n, &given)
			d.Given = append(d.Given, given)
		}
	}
	f.mapping(d.given, "given", known)
}

// given reads a list of rows, the name of a CSV file, or a query.
func (f yamlFile) given(n *yaml.Node, to *testcase.Given) {
	if n.Kind == yaml.SequenceNode {
		to.Rows = f.testRows(n, "the rows of "+to.Asset.String())
		return
	}
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		f.fail(n, "write a list of rows, {csv: FILE} or {sql: QUERY}", "the rows of %s must be a list or a mapping, got %s", to.Asset, kindOf(n))
		return
	}
	f.mapping(n, "the rows of "+to.Asset.String(), fields{
		"csv": func(n *yaml.Node) {
			if name, ok := f.text(n, "csv"); ok {
				to.Rows = f.csvRows(n, name)
			}
		},
		"sql": func(n *yaml.Node) {
			text, ok := f.text(n, "sql")
			if to.SQL, _ = trimQuery(text); ok && to.SQL == "" {
				f.fail(n, "write one SELECT", "sql is empty")
			}
			to.SQLAt = f.testPlace(n)
		},
	})
	if hasField(n, "csv") && hasField(n, "sql") {
		f.fail(n, "remove one of them", "the rows of %s have both csv and sql", to.Asset)
	}
}

// testRows reads a list of rows. The result is never nil.
func (f yamlFile) testRows(n *yaml.Node, what string) []testcase.Row {
	list := []testcase.Row{}
	f.each(n, what, func(item *yaml.Node) {
		if item.Kind != yaml.MappingNode {
			f.fail(item, "write columns and values: {city: Oslo, rain: 1.5}", "a row must be a mapping, got %s", kindOf(item))
			return
		}
		row, seen := testcase.Row{At: f.testPlace(item)}, map[string]bool{}
		for i := 0; i+1 < len(item.Content); i += 2 {
			name, value := resolve(item.Content[i]), resolve(item.Content[i+1])
			if folded := strings.ToLower(name.Value); seen[folded] {
				f.fail(name, "remove one of them", "the row has the column %s twice", quoteShort(name.Value))
			} else {
				seen[folded] = true
			}
			row.Cells = append(row.Cells, testcase.Cell{
				Name: name.Value, NameAt: f.testPlace(name), At: f.testPlace(value), Value: f.testValue(value),
			})
		}
		list = append(list, row)
	})
	if len(list) > maxTestRows {
		f.fail(n, "test with fewer rows", "%s: got %d, at most %d are allowed", what, len(list), maxTestRows)
	}
	return list
}

// testValue reads a value of a row.
func (f yamlFile) testValue(n *yaml.Node) testcase.Value {
	n = resolve(n)
	switch n.Kind {
	case yaml.SequenceNode:
		v := testcase.Value{Kind: testcase.List}
		for _, item := range n.Content {
			v.Items = append(v.Items, f.testValue(item))
		}
		return v
	case yaml.MappingNode:
		v := testcase.Value{Kind: testcase.Struct}
		if len(n.Content) == 0 {
			f.fail(n, "write null, or at least one field", "a value is an empty mapping")
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			v.Names = append(v.Names, resolve(n.Content[i]).Value)
			v.Items = append(v.Items, f.testValue(n.Content[i+1]))
		}
		return v
	default:
		f.noLeadingZero(n, "a value")
		v := testScalar(n)
		if v.Kind == testcase.Text {
			v.Spelled = spelled(n.Value)
		}
		return v
	}
}

// spelled parses a text that contains a YAML list or mapping. Such a text can be the value of a column with a list,
// struct or map type. spelled returns nil for other texts.
func spelled(text string) *testcase.Value {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
		return nil
	}
	var doc yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) != nil || len(doc.Content) != 1 || hasAlias(&doc) {
		return nil
	}
	f := yamlFile{loader: &loader{}}
	v := f.testValue(doc.Content[0])
	if len(f.problems) > 0 {
		return nil
	}
	return &v
}

// hasAlias reports whether a node contains an alias. A short text with aliases can represent a value of any size.
func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}

// testScalar converts a scalar to a value that SQL can read.
func testScalar(n *yaml.Node) testcase.Value {
	switch n.ShortTag() {
	case "!!null":
		return testcase.Value{}
	case "!!bool":
		return testcase.Value{Kind: testcase.Bool, Text: strings.ToLower(n.Value)}
	case "!!int":
		return testcase.Value{Kind: testcase.Integer, Text: integerText(n)}
	case "!!float":
		if wholeNumber.MatchString(n.Value) { // an integer of more than 64 bits
			return testcase.Value{Kind: testcase.Integer, Text: integerText(n)}
		}
		var x float64
		if n.Decode(&x) == nil && (math.IsInf(x, 0) || math.IsNaN(x)) {
			return testcase.Value{Kind: testcase.Number, Text: strconv.FormatFloat(x, 'g', -1, 64)}
		}
		return testcase.Value{Kind: testcase.Number, Text: strings.ReplaceAll(n.Value, "_", "")}
	case "!!timestamp":
		return testcase.Value{Kind: testcase.Time, Text: n.Value}
	default:
		return testcase.Value{Kind: testcase.Text, Text: n.Value}
	}
}

var wholeNumber = regexp.MustCompile(`^[-+]?[0-9][0-9_]*$`)

// integerText returns an integer in decimal digits.
func integerText(n *yaml.Node) string {
	var i int64
	if n.Decode(&i) == nil {
		return strconv.FormatInt(i, 10)
	}
	var u uint64
	if n.Decode(&u) == nil {
		return strconv.FormatUint(u, 10)
	}
	return strings.TrimPrefix(strings.ReplaceAll(n.Value, "_", ""), "+")
}

// csvRows reads a CSV file with a header. An empty field is NULL. Other fields have the type that they would have as
// unquoted YAML.
func (f yamlFile) csvRows(n *yaml.Node, name string) []testcase.Row {
	if clean := path.Clean(name); !fs.ValidPath(clean) || path.Ext(clean) != ".csv" {
		f.fail(n, "write a path relative to the project's folder, such as "+TestsDir+"/weather.csv", "%s is not a CSV file of the project", quoteShort(name))
		return nil
	}
	name = path.Clean(name)
	if _, err := fs.Stat(f.files, name); err != nil {
		f.fail(n, "write a path relative to the project's folder", "the file %s cannot be read: %v", quoteShort(name), reason(err))
		return nil
	}
	text, ok := f.readFile(name)
	if !ok {
		return nil
	}
	rows, at, err := parseCSV(name, text)
	if err != nil {
		f.report(at, "", "not CSV: %v", err)
	}
	return rows
}

// parseCSV reads rows from CSV. If it returns an error, at is the position of the error.
func parseCSV(name string, text []byte) (rows []testcase.Row, at place, err error) {
	r := csv.NewReader(bytes.NewReader(text))
	at = place{file: name}
	position := func(field int) testcase.Place {
		line, column := r.FieldPos(field)
		at.line, at.column = line, column
		return testcase.Place{File: name, Line: line, Column: column}
	}
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, at, errors.New("the file is empty: its first line must name the columns")
	}
	if err != nil {
		return nil, csvPlace(at, err), csvReason(err)
	}
	places := make([]testcase.Place, len(header))
	for i := range header {
		places[i] = position(i)
	}
	rows = []testcase.Row{}
	for {
		record, err := r.Read()
		switch {
		case errors.Is(err, io.EOF):
			return rows, at, nil
		case err != nil:
			return nil, csvPlace(at, err), csvReason(err)
		case len(rows) == maxTestRows:
			return nil, at, fmt.Errorf("the file has more than %d rows: test with fewer", maxTestRows)
		}
		row := testcase.Row{At: position(0)}
		for i, field := range record {
			row.Cells = append(row.Cells, testcase.Cell{Name: header[i], NameAt: places[i], At: position(i), Value: csvValue(field)})
		}
		rows = append(rows, row)
	}
}

// csvPlace returns the position of an error of the CSV reader.
func csvPlace(at place, err error) place {
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		at.line, at.column = bad.Line, bad.Column
	}
	return at
}

// csvReason returns an error of the CSV reader without its position.
func csvReason(err error) error {
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		return bad.Err
	}
	return err
}

func csvValue(field string) testcase.Value {
	if field == "" {
		return testcase.Value{}
	}
	v := testScalar(&yaml.Node{Kind: yaml.ScalarNode, Value: field})
	if v.Kind == testcase.Null || v.Kind == testcase.Text || v.Text != field { // in CSV, a word such as null and a number such as 007 are texts
		v = testcase.Value{Kind: testcase.Text, Text: field, Spelled: spelled(field)}
	}
	return v
}

// expect reads the expected result.
func (f yamlFile) expect(n *yaml.Node, e *testcase.Expect) {
	e.At = f.testPlace(n)
	f.mapping(n, "expect", expectFields.fields(f, e))
	if n.Kind != yaml.MappingNode {
		return
	}
	switch rows, failure, checks := hasField(n, "rows"), hasField(n, "error"), hasField(n, "checks"); {
	case rows && failure:
		f.fail(n, "remove one of them", "the field expect has both rows and error")
	case checks && failure:
		f.fail(n, "remove one of them", "the field expect has both checks and error")
	case !rows && !failure && !checks:
		f.fail(n, "add rows: [] if it returns none", "the field expect has neither rows nor error")
	case !rows && hasField(n, "ordered"):
		f.fail(n, "remove ordered", "an error has no order")
	}
}

// expectedChecks reads the expected outcomes of checks.
func (f yamlFile) expectedChecks(n *yaml.Node, e *testcase.Expect) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		f.fail(n, "write {NAME: passed}", "checks must be a mapping of names and outcomes, got %s", kindOf(n))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, outcome := resolve(n.Content[i]), ""
		f.oneOf(resolve(n.Content[i+1]), "the outcome of "+name.Value, []string{"passed", "failed"}, &outcome)
		e.Checks = append(e.Checks, testcase.ExpectedCheck{At: f.testPlace(name), Name: name.Value, Passed: outcome == "passed"})
	}
}

// readChecks reports expected checks that the asset does not have, and those that a unit test cannot execute.
func (d *testDeclaration) readChecks(f yamlFile) {
	var names []string
	for i := range d.asset.Work.Checks {
		names = append(names, d.asset.Work.Checks[i].Name)
	}
	for i := range d.Expect.Checks {
		c := &d.Expect.Checks[i]
		at := place{file: c.At.File, line: c.At.Line, column: c.At.Column}
		k := slices.Index(names, c.Name)
		if k < 0 {
			suggestion := didYouMean(plan.Suggest(c.Name, names))
			if suggestion == "" {
				suggestion = "list them with servo checks " + d.Asset.String()
			}
			f.report(at, suggestion, "%s has no check %s", d.Asset, quoteShort(c.Name))
			continue
		}
		why := map[string]string{
			quality.Command: "is a command", quality.Freshness: "depends on the time of the check",
			quality.Anomaly: "compares with earlier outputs", quality.SchemaDrift: "compares with earlier outputs",
		}[d.asset.Work.Checks[k].Kind]
		if d.asset.Work.Checks[k].PhaseOf() == quality.Pre {
			why = "runs before the query"
		}
		if why != "" {
			f.report(at, "remove it", "a unit test cannot execute check %s, which %s", c.Name, why)
		}
	}
}

// expectedRows reads the expected rows, which must all have the same columns.
func (f yamlFile) expectedRows(n *yaml.Node, e *testcase.Expect) {
	e.Rows, e.RowsAt = f.testRows(n, "the expected rows"), f.testPlace(n)
	for i := range e.Rows {
		row := &e.Rows[i]
		at := place{file: row.At.File, line: row.At.Line, column: row.At.Column}
		if len(row.Cells) == 0 {
			f.report(at, "name the columns to compare", "an expected row has no columns")
			continue
		}
		for _, pair := range [][2]*testcase.Row{{&e.Rows[0], row}, {row, &e.Rows[0]}} {
			if name := lacking(pair[0], pair[1]); name != "" {
				f.report(at, "name the same columns in every row; write null for NULL", "the expected rows differ in the column %s", quoteShort(name))
				break
			}
		}
	}
}

// lacking returns the name of the first column that the first row has and the second one lacks, or "".
func lacking(of, in *testcase.Row) string {
	for i := range of.Cells {
		if in.Cell(of.Cells[i].Name) == nil {
			return of.Cells[i].Name
		}
	}
	return ""
}
