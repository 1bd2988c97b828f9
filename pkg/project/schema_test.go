package project_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

const schemaFile = "../../docs/reference/" + project.SchemaFile

func TestSchemaFileIsCurrent(t *testing.T) {
	if *rewrite {
		require.NoError(t, os.WriteFile(schemaFile, project.Schema(), 0o600))
	}
	committed, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(project.Schema()), string(committed), "run make reference")
}

func TestIsSchemaIgnoresFormatting(t *testing.T) {
	require.True(t, project.IsSchema(bytes.ReplaceAll(project.Schema(), []byte("\n"), []byte("\r\n"))))
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, project.Schema()))
	require.True(t, project.IsSchema(compact.Bytes()))
	require.False(t, project.IsSchema(bytes.Replace(project.Schema(), []byte(`"keep_logs"`), []byte(`"keep_log"`), 1)))
	require.False(t, project.IsSchema([]byte("no JSON")))
}

// schemas are the compiled definitions for the kinds of files.
type schemas struct{ config, assets, query, tests, schedules *jsonschema.Schema }

func compile(t testing.TB) schemas {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(project.Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("servo.json", doc))
	definition := func(name string) *jsonschema.Schema {
		s, err := c.Compile("servo.json#/definitions/" + name)
		require.NoError(t, err)
		return s
	}
	return schemas{definition("project"), definition("assets"), definition("query"), definition("tests"), definition("schedules")}
}

// validate checks a file in the same way as an editor.
func (s schemas) validate(name string, text []byte) error {
	schema := s.assets
	switch {
	case name == project.ConfigFile:
		schema = s.config
	case strings.HasPrefix(name, project.TestsDir+"/"):
		schema = s.tests
	case strings.HasPrefix(name, project.SchedulesDir+"/"):
		schema = s.schedules
	case path.Ext(name) == ".sql":
		schema, text = s.query, project.Header(text)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return err
	}
	if len(n.Content) == 0 {
		return schema.Validate(nil)
	}
	value, err := jsonOf(n.Content[0], 0)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// jsonOf converts a YAML value to the JSON value that an editor validates. Dates become strings, as in YAML 1.2.
func jsonOf(n *yaml.Node, depth int) (any, error) {
	if depth > 32 {
		return nil, errors.New("nested too deep, or an alias of itself")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return jsonOf(n.Alias, depth+1)
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			value, err := jsonOf(item, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("duplicate key %s", name)
			}
			value, err := jsonOf(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			object[name] = value
		}
		return object, nil
	default:
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool", "!!int":
		var value any
		if err := n.Decode(&value); err != nil {
			return nil, err
		}
		if i, ok := value.(int); ok {
			return json.Number(fmt.Sprint(i)), nil
		}
		return value, nil
	case "!!float":
		var value float64
		if err := n.Decode(&value); err != nil {
			return nil, err
		}
		return min(max(value, -1e300), 1e300), nil
	}
	return n.Value, nil
}

// problemsOf loads a project and returns its problems by file.
func problemsOf(t testing.TB, files fstest.MapFS) map[string]project.Problems {
	t.Helper()
	_, err := project.LoadFS(t.Context(), files, "/p/demo", options)
	byFile := map[string]project.Problems{}
	if err == nil {
		return byFile
	}
	var problems project.Problems
	require.ErrorAs(t, err, &problems)
	for _, p := range problems {
		byFile[p.File] = append(byFile[p.File], p)
	}
	return byFile
}

// projects returns the projects of the examples and of the tests, by name.
func projects(t *testing.T) map[string]fstest.MapFS {
	t.Helper()
	all := map[string]fstest.MapFS{}
	for _, dir := range []string{"../../examples/weather", "../cli/template"} {
		files := fstest.MapFS{}
		for _, pattern := range []string{"servo.yaml", "assets/*/*"} {
			names, err := filepath.Glob(dir + "/" + pattern)
			require.NoError(t, err)
			for _, name := range names {
				text, err := os.ReadFile(name)
				require.NoError(t, err)
				files[strings.TrimPrefix(name, dir+"/")] = &fstest.MapFile{Data: bytes.ReplaceAll(text, []byte("{{name}}"), []byte("demo"))}
			}
		}
		all[dir] = files
	}
	for _, pattern := range []string{"testdata/*.txtar", "testdata/problems/*.txtar", "../../tests/script/testdata/*.txtar", "../../tests/script/testdata/*/*.txtar"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			a, err := txtar.ParseFile(name)
			require.NoError(t, err)
			addProjects(all, name, a)
		}
	}
	require.Greater(t, len(all), 10)
	return all
}

// addProjects adds the projects in an archive: each folder that contains a servo.yaml.
func addProjects(all map[string]fstest.MapFS, name string, a *txtar.Archive) {
	for _, f := range a.Files {
		root, assets, below := strings.Cut("/"+f.Name, "/"+project.AssetsDir+"/")
		key := project.AssetsDir + "/" + assets
		if above, schedules, is := strings.Cut("/"+f.Name, "/"+project.SchedulesDir+"/"); is && !below {
			root, key, below = above, project.SchedulesDir+"/"+schedules, true
		}
		if !below {
			if path.Base(f.Name) != project.ConfigFile {
				continue
			}
			root, key = path.Dir("/"+f.Name), project.ConfigFile
		}
		id := name + " " + strings.TrimSuffix(root, "/")
		if all[id] == nil {
			all[id] = fstest.MapFS{}
		}
		all[id][key] = &fstest.MapFile{Data: f.Data}
	}
}

func declares(name string) bool {
	return name == project.ConfigFile || slices.Contains([]string{".sql", ".yaml", ".yml"}, path.Ext(name))
}

func TestSchemaAcceptsEveryValidFile(t *testing.T) {
	s := compile(t)
	valid := 0
	for name, files := range projects(t) {
		problems := problemsOf(t, files)
		for file, data := range files {
			if declares(file) && len(problems[file]) == 0 {
				valid++
				require.NoError(t, s.validate(file, data.Data), "%s: %s", name, file)
			}
		}
	}
	require.Greater(t, valid, 50)
}

// beyond matches the problems that no schema can express, because they need arithmetic, or because they concern other
// files, the query, the text of the file, or several fields together.
var beyond = regexp.MustCompile(`also the name of a database|which the base does not declare|in the base it has the type|has no scope|covers no prefix|not for secrets of type|uses lists .* twice|does not declare the data|so no query could read|unknown variable|no output that could be kept|matches no file|unknown pool|unknown variable|refers to a secret|unknown time zone|unknown asset|reads itself|dependency cycle|is declared twice|` +
	`more than one document|invalid asset key|belongs to DuckDB|` +
	`cannot have a batch|needs days before|must be a SELECT|statements; an asset is one|the file has no query|must come first|has only one comment|would both be in|is not closed|fields starts with|` +
	`is longer than max_delay|is before the start|does not exist|no outputs to keep|is in both env and secrets|` +
	`is [0-9.]+ ?[a-zµA-Z]+; must be (between|a multiple)|is "[0-9]+d"; must be between|at most three decimals|first item is the program|nknown SQL type|invalid SQL type|` +
	`two checks are called|has no column|check .*: (it must be|there are)|not a regular expression|must be above 0%|must be at most 100%|` +
	`whose new rows exist only|several kinds|looks at the rows|two fields allow|does not count failing rows|has no bound|` +
	`has no asset|has the value .* twice|no rows to check|no output whose columns|duplicate column|` +
	`must be (a day or a local time|a day|an hour|a week|a month|a year), got|is not (a|an) (day|hour|week|month|year|period)|is not the first day of a week|not a divisor of one hour|invalid partition value|reserved prefix|` +
	`must be between 1m0s and 1h0m0s|unknown kind (of partitions|.* of dimension)|has no kind|which has no rows|leading zeros|can never run|` +
	`could be published|are published as|chooses no asset|names no (asset|place)|is about a folder|describes files in a folder|of publish overlap|this folder has other files|which is read by Servo|queries read the files of this folder|select: |invalid path|invalid name|` +
	`sla is empty|deadline needs exactly one|effect only together with|needs a time dimension|no period that ends|no channel has the name|two alert rules|is listed twice|is both|is not a URL|is not encrypted|link-local|has a password|has a fragment|belong together|without encryption|` +
	`is not a host|is not a mail address|is not in the folder|is read by Servo|secret reference|select chooses assets|no asset (matches|has)|channel .* has no kind|` +
	`cron: |has almost no effect|has no effect|never ticks|matches no asset|no selected asset|partitions: asset|is not after the start|is not a date or a time|partitions: invalid selection|years 1970 to 2199`)

func TestSchemaRejectsBrokenFiles(t *testing.T) {
	s := compile(t)
	rejected := 0
	for name, files := range projects(t) {
		if !strings.Contains(name, "/problems/") {
			continue
		}
		for file, problems := range problemsOf(t, files) {
			if files[file] == nil {
				continue
			}
			if s.validate(file, files[file].Data) != nil {
				rejected++
				continue
			}
			for _, p := range problems {
				require.Regexp(t, beyond, p.Message, "%s: the schema accepts %s", name, file)
			}
		}
	}
	require.Greater(t, rejected, 20)
}

// schemaNode is the part of the schema that the tests read.
type schemaNode struct {
	Ref         string                 `json:"$ref"`
	Description string                 `json:"description"`
	Default     any                    `json:"default"`
	Examples    []any                  `json:"examples"`
	Required    []string               `json:"required"`
	Properties  map[string]*schemaNode `json:"properties"`
	AnyOf       []*schemaNode          `json:"anyOf"`
	Definitions map[string]*schemaNode `json:"definitions"`
}

// schemaPlace is a field of the schema, with its file and its path.
type schemaPlace struct {
	file string
	path []string
	*schemaNode
}

func (p schemaPlace) String() string { return p.file + " " + strings.Join(p.path, ".") }

// schemaPlaces returns every field of the schema.
func schemaPlaces(t *testing.T) []schemaPlace {
	t.Helper()
	var root schemaNode
	require.NoError(t, json.Unmarshal(project.Schema(), &root))
	var places []schemaPlace
	var walk func(file string, at []string, n *schemaNode)
	walk = func(file string, at []string, n *schemaNode) {
		if name, ok := strings.CutPrefix(n.Ref, "#/definitions/"); ok {
			walk(file, at, root.Definitions[name])
		}
		for _, alternative := range n.AnyOf {
			walk(file, at, alternative)
		}
		for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
			child := n.Properties[name]
			p := schemaPlace{file, append(slices.Clone(at), name), child}
			places = append(places, p)
			walk(file, p.path, child)
		}
	}
	walk(project.ConfigFile, nil, root.Definitions["project"])
	walk("assets/a/command.yaml", nil, root.Definitions["command"])
	walk("assets/a/query.sql", nil, root.Definitions["query"])
	return places
}

// starts contains a valid start for each kind of partitions.
var starts = map[string]any{
	"every": "2000-01-01", "hourly": "2000-01-01", "daily": "2000-01-01", "weekly": "2000-01-03", "monthly": "2000-01", "yearly": 2000,
}

// document returns a file in which the field at a path has a value. The file also contains the required fields.
func document(file string, at []string, value any) []byte {
	fields := map[string]any{}
	if file == "assets/a/command.yaml" {
		fields["run"] = map[string]any{"command": []any{"x"}}
	}
	if file == project.ConfigFile && at[0] != "pools" {
		fields["pools"] = map[string]any{"charts": 1}
	}
	object := fields
	for i, name := range at {
		switch {
		case i == len(at)-1:
			object[name] = value
			continue
		case object[name] == nil:
			object[name] = map[string]any{}
		}
		object = object[name].(map[string]any)
		if name == "output" {
			object["format"] = "csv"
		}
		if start, ok := starts[name]; ok {
			object["start"] = start
			if name == "every" {
				object["period"] = "15m"
			}
		}
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		panic(err)
	}
	if path.Ext(file) == ".sql" {
		return []byte("/* servo\n" + string(text) + "*/\nSELECT 1")
	}
	return text
}

// project1 returns a project with the given file, and with the files that its other fields require.
func project1(file string, text []byte) fstest.MapFS {
	files := fstest.MapFS{
		project.ConfigFile:       {Data: []byte("pools: {charts: 1}\n")},
		"assets/raw/weather.sql": {Data: []byte("SELECT 1 AS x")},
		"scripts/chart.py":       {},
	}
	if files[file] = (&fstest.MapFile{Data: text}); file != project.ConfigFile {
		files[project.ConfigFile] = &fstest.MapFile{Data: []byte("pools: {charts: 1}\nvars: {currency: EUR}\npublish: {folder: published, select: '*'}\n")}
	}
	return files
}

// If a field is unknown, the error of Load lists the known fields. This test adds an unknown field to every mapping,
// and compares the listed fields with the schema.
func TestFieldsOfSchemaAreThoseOfLoad(t *testing.T) {
	inSchema := map[string][]string{}
	mappings := map[string]schemaPlace{}
	for _, p := range schemaPlaces(t) {
		parent := schemaPlace{file: p.file, path: p.path[:len(p.path)-1]}
		inSchema[parent.String()] = append(inSchema[parent.String()], p.path[len(p.path)-1])
		mappings[parent.String()] = parent
	}
	refused := map[string][]string{
		"assets/a/command.yaml ":        {"uses"},
		"assets/a/command.yaml output":  {"convert"},
		"assets/a/query.sql ":           {"env", "output", "run", "secrets", "vars"},
		"servo.yaml sources.extensions": append(slices.Clone(plan.Later), "excel"),
	}
	require.Len(t, mappings, 47)
	for id, m := range mappings {
		if len(m.path) > 0 && m.path[len(m.path)-1] == "partitions" {
			continue // here, an unknown name is a dimension, not a field
		}
		problems := problemsOf(t, project1(m.file, document(m.file, append(slices.Clone(m.path), "zzzzzzzzzzzz"), 1)))[m.file]
		require.Len(t, problems, 1, id)
		known, ok := strings.CutPrefix(problems[0].Suggestion, "known fields: ")
		require.True(t, ok, "%s: %v", id, problems)
		want := append(inSchema[id], refused[id]...)
		slices.Sort(want)
		require.Equal(t, want, strings.Split(known, ", "), id)
	}
}

// samples are values of all types, near and beyond the limits of some fields.
var samples = []any{
	nil, true, false, "", "x", "X", "all", "none", "files", "parquet", "csv", "all_done", "a b", "a/b", "/a", "a//b", "../a", ".a", "a/", "*",
	-1, 0, 1, 2, 100, 101, 1024, 1025, 36_500, 100_000, 100_001, 1_000_000, 1_000_001, 2147483647, 2147483648, -2147483648, -2147483649,
	0.0, 0.5, 1.5, -0.5, 100.5, "0", "+0", "-0", "00", "-0s", "+5s", "-5s", "5s", "5", "1.5h", ".5h", "1h30m", "1 h", "1µs", "1d", "01d", "-1d", "1.5d",
	"2025-01-01", "2025-13-01", "2025-1-1", "16MB", "16 MB", "16mb", "16000000B", "2GiB", "Europe/Paris", "UTC",
	"raw/weather", "pg_catalog/x", "Raw/weather", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 129) + "/b",
	[]any{},
	[]any{"x"},
	[]any{"raw/weather"},
	[]any{1},
	[]any{nil},
	[]any{""},
	[]any{"."},
	[]any{[]any{"x"}},
	[]any{"a/../b"},
	map[string]any{},
	map[string]any{"x": 1},
	map[string]any{"X": 1},
	map[string]any{"x": 0},
	map[string]any{"x": "y"},
	map[string]any{"x": nil},
	map[string]any{"A B": "x"},
	map[string]any{"SERVO_X": "y"},
	map[string]any{"X": true},
	map[string]any{"X": []any{}},
	map[string]any{"X": "file:a"},
	map[string]any{"X": "file:a/b"},
	map[string]any{"X": "env:PATH"},
	map[string]any{"X": "env:SERVO_X"},
	map[string]any{"X": "env:PATHS"},
	map[string]any{"X": "gcp:projects/p/secrets/s"},
	map[string]any{"X": "vault:x"},
	map[string]any{"command": []any{"x"}},
	map[string]any{"start": "2025-01-01"},
	map[string]any{"daily": map[string]any{"start": "2025-01-01"}},
	map[string]any{"versions": 1},
}

// TestSchemaAgreesWithLoad sets every field to every sample, and compares the verdicts of Load with those of the
// schema.
func TestSchemaAgreesWithLoad(t *testing.T) {
	s := compile(t)
	count := 0
	for _, p := range schemaPlaces(t) {
		values := samples
		for _, sample := range append(slices.Clone(p.Examples), p.Default) {
			if sample != nil {
				values = append(values, sample)
				problems := slices.DeleteFunc(problemsOf(t, project1(p.file, document(p.file, p.path, sample)))[p.file], func(p project.Problem) bool {
					return strings.HasPrefix(p.Message, "publish ") || // publish needs several fields
						strings.HasPrefix(p.Message, "no channel has the name") || strings.Contains(p.Message, " needs a time dimension") || strings.HasPrefix(p.Message, "deadline needs exactly one") || strings.Contains(p.Message, " cannot have a batch: ") ||
						strings.HasSuffix(p.Message, "so no query could read anything with it")
				})
				require.Empty(t, problems, "%s: %v is an example or the default", p, sample)
			}
		}
		for _, value := range values {
			count++
			text := document(p.file, p.path, value)
			problems := problemsOf(t, project1(p.file, text))[p.file]
			err := s.validate(p.file, text)
			switch {
			case len(problems) == 0:
				require.NoError(t, err, "%s: Load accepts %v", p, value)
			case err == nil:
				for _, problem := range problems {
					require.Regexp(t, beyond, problem.Message, "%s: the schema accepts %v", p, value)
				}
			}
		}
	}
	require.Greater(t, count, 5_000)
}

// TestDefaultsOfSchemaAreThoseOfLoad sets each field to its default, and checks that the project does not change. A
// zero value in the project means that another package applies its default: the tests of gc and fold check these
// defaults.
func TestDefaultsOfSchemaAreThoseOfLoad(t *testing.T) {
	load := func(file string, text []byte) *project.Project {
		p, err := project.LoadFS(t.Context(), project1(file, text), "/p", options)
		require.NoError(t, err, "%s", text)
		for i := range p.Assets {
			p.Assets[i].Query = plan.Source{}
		}
		return p
	}
	elsewhere := regexp.MustCompile(`heartbeat_timeout|max_concurrent_tasks|keep_logs|keep\.|^servo\.yaml data$|timezone|input_format`)
	count := 0
	for _, p := range schemaPlaces(t) {
		if p.Default == nil || elsewhere.MatchString(p.String()) {
			continue
		}
		count++
		empty := document(p.file, p.path, p.Default)
		if p.path[len(p.path)-1] == "starts" {
			continue // the default of starts is the zero value
		}
		if len(p.path) == 1 {
			empty = document(p.file, []string{"description"}, "")
		}
		if len(p.path) == 1 && p.file == project.ConfigFile {
			empty = document(p.file, []string{"defaults"}, map[string]any{})
		}
		if len(p.path) > 1 && p.path[len(p.path)-2] == "retries" {
			empty = document(p.file, p.path[:len(p.path)-1], map[string]any{})
		}
		require.Equal(t, load(p.file, empty), load(p.file, document(p.file, p.path, p.Default)), p)
	}
	require.Greater(t, count, 20)
}
