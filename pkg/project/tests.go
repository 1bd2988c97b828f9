package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// TestsDir is the folder of the unit tests of queries.
const TestsDir = "tests"

// MaxTests is the maximum number of unit tests of a project.
const MaxTests = 100_000

// LoadTests reads the unit tests in the YAML files below tests/. It returns the tests without problems, by file and
// position, and the problems of the other tests.
func LoadTests(ctx context.Context, p *Project) (tests []testcase.Test, problems Problems, err error) {
	folder, err := os.OpenRoot(p.Root)
	if err != nil {
		return nil, nil, fmt.Errorf("open project folder: %w", err)
	}
	tests, problems, err = LoadTestsFS(ctx, folder.FS(), p)
	return tests, problems, errors.Join(err, folder.Close())
}

// LoadTestsFS reads the unit tests of a project in a file system.
func LoadTestsFS(ctx context.Context, files fs.FS, p *Project) (tests []testcase.Test, problems Problems, err error) {
	t := testLoader{loader: &loader{files: files, project: *p}, assets: map[ids.AssetKey]*plan.Asset{}}
	for i := range p.Assets {
		t.assets[p.Assets[i].Key] = &p.Assets[i]
	}
	if _, err := fs.Stat(files, TestsDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	err = t.walk(ctx, TestsDir, t.visitTests)
	return t.tests, t.problems.Sorted(), err
}

// testLoader reads the unit tests of a project.
type testLoader struct {
	*loader
	assets map[ids.AssetKey]*plan.Asset
	tests  []testcase.Test
}

// visitTests reads a file with unit tests.
func (t *testLoader) visitTests(name string, entry fs.DirEntry) error {
	hidden := strings.HasPrefix(path.Base(name), ".")
	switch {
	case entry.IsDir() && hidden:
		return fs.SkipDir
	case entry.IsDir() || hidden || path.Ext(name) != ".yaml" && path.Ext(name) != ".yml":
		return nil
	}
	if entry.Type()&fs.ModeSymlink != 0 && !t.leadsToFile(name, true) {
		return nil
	}
	text, ok := t.readFile(name)
	if !ok {
		return nil
	}
	if t.read > MaxTotalBytes {
		t.report(place{file: TestsDir}, "remove some", "the files together are larger than %d bytes", MaxTotalBytes)
		return errEnough
	}
	t.readTests(name, text)
	if len(t.tests) > MaxTests {
		t.report(place{file: TestsDir}, "remove some", "the project has more than %d unit tests", MaxTests)
		return errEnough
	}
	return nil
}

// readTests reads the tests of a file.
func (t *testLoader) readTests(name string, text []byte) {
	f := yamlFile{t.loader, name}
	n := f.parse(text)
	switch {
	case n == nil && slices.ContainsFunc(t.problems, func(p Problem) bool { return p.File == name }):
		return
	case n == nil || isNull(n):
		f.report(place{file: name}, "write tests:, or remove the file", "the file has no tests")
		return
	}
	if n.Kind == yaml.MappingNode && !hasField(n, "tests") {
		f.fail(n, "write tests:, or move the file out of the folder "+TestsDir, "the file has no tests")
	}
	names := map[string]int{}
	f.mapping(n, "a file with unit tests", fields{"tests": func(n *yaml.Node) {
		f.each(n, "tests", func(item *yaml.Node) { t.readTest(f, item, names) })
	}})
}

// testDeclaration holds the fields of a unit test while its file is read.
type testDeclaration struct {
	testcase.Test
	loader *testLoader
	// asset is the tested asset, or nil if there is no such asset.
	asset           *plan.Asset
	partition, vars *yaml.Node
	given           *yaml.Node
}

// readTest reads a test. The parameter names maps the names of the tests in the file to their lines.
func (t *testLoader) readTest(f yamlFile, n *yaml.Node, names map[string]int) {
	before := len(t.problems)
	d := testDeclaration{Test: testcase.Test{At: f.testPlace(n)}, loader: t}
	f.mapping(n, "a test", testFields.fields(f, &d))
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, required := range []string{"name", "asset", "expect"} {
		if !hasField(n, required) {
			f.fail(n, "add "+required, "the test has no %s", required)
		}
	}
	if first, twice := names[d.Name]; twice && d.Name != "" {
		f.fail(n, "choose another name", "duplicate test %s: first on line %d", quoteShort(d.Name), first)
	}
	names[d.Name] = n.Line
	if d.asset != nil {
		d.readPartition(f, n)
		d.readVars(f)
		d.readGiven(f)
		d.readChecks(f)
	}
	if len(t.problems) == before {
		t.tests = append(t.tests, d.Test)
	}
}

// testFields are the fields of a unit test.
var testFields = table[testDeclaration]{
	other("name", shape{Type: "string", MinLength: 1, Description: "The behaviour that the test shows, in a few words.", Examples: []any{"a day with at least 1 mm of precipitation is wet"}},
		func(f yamlFile, n *yaml.Node, d *testDeclaration) {
			if d.Name, _ = f.text(n, "name"); strings.TrimSpace(d.Name) == "" {
				f.fail(n, "say what the test shows", "the name of the test is empty")
			}
		}),
	other("asset", tableShape(shape{Description: "The asset whose query is tested: namespace/name.", Examples: []any{"report/rain"}}),
		func(f yamlFile, n *yaml.Node, d *testDeclaration) { d.readAsset(f, n) }),
	other("partition", shape{
		Type: "object", Additional: &shape{Type: []string{"string", "integer", "number"}}, MinProperties: 1,
		Description: "The partition that the query computes: dimensions and their keys. Required for a partitioned asset.",
		Examples:    []any{map[string]any{"date": "2025-01-15"}},
	}, func(_ yamlFile, n *yaml.Node, d *testDeclaration) { d.partition = n }),
	other("vars", shape{
		Type: "object", PropertyNames: &shape{Pattern: plan.VarPattern},
		Additional:  &shape{Type: []string{"string", "integer", "boolean"}},
		Description: "Values of variables that the query reads. Default: the values in " + ConfigFile + ".",
		Examples:    []any{map[string]any{"currency": "USD"}},
	}, func(_ yamlFile, n *yaml.Node, d *testDeclaration) { d.vars = n }),
	other("given", shape{
		Type: "object", PropertyNames: &shape{Pattern: tablePattern}, Additional: givenShape(),
		Description: "The rows of every asset that the query reads: a list of rows, {csv: FILE} or {sql: QUERY}.",
		Examples:    []any{map[string]any{"raw.weather": []any{map[string]any{"city": "Oslo", "rain": 1.5}}}},
	}, func(_ yamlFile, n *yaml.Node, d *testDeclaration) { d.given = n }),
	other("expect", expectShape(), func(f yamlFile, n *yaml.Node, d *testDeclaration) { f.expect(n, &d.Expect) }),
}

// expectFields are the fields of expect.
var expectFields = table[testcase.Expect]{
	other("rows", rowsShape(shape{Description: "All rows that the query returns, with the columns to compare."}),
		func(f yamlFile, n *yaml.Node, e *testcase.Expect) { f.expectedRows(n, e) }),
	other("ordered", shape{Type: "boolean", Default: false, Description: "Whether the rows must come in this order."},
		func(f yamlFile, n *yaml.Node, e *testcase.Expect) {
			if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
				f.fail(n, "", "ordered must be true or false, got %s", kindOf(n))
			}
			e.Ordered = n.Value == "true"
		}),
	other("checks", shape{
		Type: "object", Additional: &shape{Enum: []string{"passed", "failed"}}, MinProperties: 1,
		Description: "The outcomes of checks of the asset on the rows that the query returns, by name.",
		Examples:    []any{map[string]any{"unique_city": "failed"}},
	}, func(f yamlFile, n *yaml.Node, e *testcase.Expect) { f.expectedChecks(n, e) }),
	other("error", shape{Type: "string", MinLength: 1, Description: "A part of the error message with which the query must fail."},
		func(f yamlFile, n *yaml.Node, e *testcase.Expect) {
			if e.Error, _ = f.text(n, "error"); e.Error == "" && n.Value == "" {
				f.fail(n, "write a part of the message", "error is empty")
			}
		}),
}

// tablePattern matches the name of an asset, either as a key or as in SQL.
const tablePattern = `^[a-z0-9_]{1,128}[/.][a-z0-9_]{1,128}$`

func tableShape(about shape) shape {
	about.Type, about.Pattern, about.PatternHelp = "string", tablePattern, "Write namespace/name, of a-z, 0-9 and _."
	return about
}

func rowsShape(about shape) shape {
	about.Type, about.Items = "array", &shape{Type: "object", Additional: &shape{}}
	return about
}

func givenShape() *shape {
	list := rowsShape(shape{Description: "Rows. Columns that a row does not have are NULL."})
	csv := shape{Type: "object", Additional: false, Required: []string{"csv"}, Properties: properties{
		{"csv", &shape{Type: "string", MinLength: 1, Description: "A CSV file with a header, relative to the project's folder."}},
	}}
	query := shape{Type: "object", Additional: false, Required: []string{"sql"}, Properties: properties{
		{"sql", &shape{Type: "string", MinLength: 1, Description: "A query that returns the rows."}},
	}}
	return &shape{AnyOf: []*shape{&list, &csv, &query}}
}

func expectShape() shape {
	about := expectFields.shape(shape{Description: "The expected result: rows, outcomes of checks, or an error."})
	about.AnyOf = []*shape{{Required: []string{"rows"}}, {Required: []string{"checks"}}, {Required: []string{"error"}}}
	return about
}

// testsShape is the shape of a file below tests/.
func testsShape() *shape {
	test := testFields.shape(shape{Description: "A unit test of a query."}, "name", "asset", "expect")
	tests := shape{Type: "array", Description: "The unit tests of this file.", Items: &test}
	return &shape{
		Title: "a YAML file below " + TestsDir, Description: "Unit tests of queries.",
		Type: "object", Additional: false, Required: []string{"tests"}, Properties: properties{{"tests", &tests}},
	}
}

func (f yamlFile) testPlace(n *yaml.Node) testcase.Place {
	return testcase.Place{File: f.name, Line: n.Line, Column: n.Column}
}

// readAsset finds the tested asset.
func (d *testDeclaration) readAsset(f yamlFile, n *yaml.Node) {
	s, ok := f.text(n, "asset")
	if !ok {
		return
	}
	a := d.loader.find(f, n, s)
	switch {
	case a == nil:
	case a.Work.SQL == "" && a.Broken == "":
		f.fail(n, "test a query, or test the program with its own tools", "%s is computed by a command, which a unit test cannot execute", a.Key)
	case a.Broken != "":
		f.fail(n, "servo validate shows them", "the file of %s has problems", a.Key)
	default:
		d.asset, d.Asset = a, a.Key
	}
}

// find returns the asset with the given name: namespace.name, as in SQL, or the key namespace/name.
func (t *testLoader) find(f yamlFile, n *yaml.Node, name string) *plan.Asset {
	key, err := ids.ParseAssetKey(strings.Replace(name, ".", "/", 1))
	if a := t.assets[key]; err == nil && a != nil {
		return a
	}
	var known []string
	for key := range t.assets {
		known = append(known, key.String())
	}
	slices.Sort(known)
	suggestion := didYouMean(plan.Suggest(strings.Replace(name, ".", "/", 1), known))
	if suggestion == "" {
		suggestion = "list the assets with servo assets"
	}
	f.fail(n, suggestion, "unknown asset %s", quoteShort(name))
	return nil
}

// readPartition reads the partition, whose dimensions must be those of the asset.
func (d *testDeclaration) readPartition(f yamlFile, test *yaml.Node) {
	of := d.asset.Partitions
	switch {
	case d.partition == nil && of != nil:
		names := slices.Sorted(maps.Keys(of.Types()))
		f.fail(test, "add partition: {"+strings.Join(names, ": …, ")+": …}", "%s is partitioned, and the test has no partition", d.Asset)
		return
	case d.partition == nil:
		return
	case of == nil:
		f.fail(d.partition, "remove the field", "%s is not partitioned", d.Asset)
		return
	}
	times := space.Calendar{Zone: calendar.Zone}
	members, err := times.Members(of)
	if err != nil {
		f.fail(d.partition, "", "the partitions of %s are not known: %v", d.Asset, err)
		return
	}
	before := len(d.loader.problems)
	known := fields{}
	d.Partition = ids.Partition{}
	for i := range of.Dimensions {
		known[of.Dimensions[i].Name] = func(n *yaml.Node) { d.readKey(f, n, &of.Dimensions[i], i, members) }
	}
	f.mapping(d.partition, "partition", known)
	if d.partition.Kind != yaml.MappingNode || len(d.loader.problems) > before {
		return
	}
	for i := range of.Dimensions {
		if name := of.Dimensions[i].Name; !hasField(d.partition, name) {
			f.fail(d.partition, "add "+name, "the partition has no %s", name)
			return
		}
	}
	if period := of.Time(); period != nil {
		start, end, err := times.Interval(period, d.Partition[period.Name])
		if err != nil {
			f.fail(d.partition, "", "the period is not known: %v", err)
		}
		d.Period = &plan.Period{Start: start.UTC(), End: end.UTC()}
	}
}

// readKey reads the key of dimension i. For a dynamic dimension, it accepts any key, because the project's files do
// not contain the keys of such a dimension.
func (d *testDeclaration) readKey(f yamlFile, n *yaml.Node, of *space.Dimension, i int, members *space.Members) {
	if n.Kind != yaml.ScalarNode {
		f.fail(n, "write the key of the partition", "%s must be a string, got %s", of.Name, kindOf(n))
		return
	}
	err := of.Check(n.Value)
	switch {
	case err != nil:
		f.fail(n, "", "%s: %v", of.Name, err)
	case of.Kind != space.Dynamic && !members.HasValue(i, n.Value):
		f.fail(n, "", "%s has no partition %s: it has %s", d.Asset, n.Value, of.Range())
	}
	d.Partition[of.Name] = n.Value
}

// readVars reads the values of variables, which must have the types that servo.yaml declares.
func (d *testDeclaration) readVars(f yamlFile) {
	d.Vars = d.asset.Work.Vars
	if d.vars == nil {
		return
	}
	d.Vars = maps.Clone(d.Vars)
	for i := 0; d.vars.Kind == yaml.MappingNode && i+1 < len(d.vars.Content); i += 2 {
		key := resolve(d.vars.Content[i])
		if _, declared := f.project.Vars[key.Value]; declared && d.asset.Work.Vars[key.Value].Type == "" {
			f.fail(key, "remove it", "the query of %s does not read the variable %s", d.Asset, key.Value)
		}
	}
	known := fields{}
	for name, declared := range f.project.Vars {
		known[name] = func(n *yaml.Node) {
			v, ok := f.variable(name, n)
			if ok && v.Type != declared.Type {
				f.fail(n, "", "variable %s must have the type %s, as in %s, got %s", name, declared.Type, ConfigFile, kindOf(n))
			}
			if d.Vars != nil {
				d.Vars[name] = v
			}
		}
	}
	f.mapping(d.vars, "vars", known)
}
