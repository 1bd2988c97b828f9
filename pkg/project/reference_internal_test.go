package project

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

const referenceFile = "../../docs/reference/settings.md"

// TestReferenceIsCurrent compares docs/reference/settings.md with the schema. It also loads the
// examples of the page.
func TestReferenceIsCurrent(t *testing.T) {
	page := settingsPage(t)
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(referenceFile, []byte(page), 0o600))
	}
	committed, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	require.Equal(t, page, string(committed), "run make reference")
}

// settingsPage returns the reference page of all project files.
func settingsPage(t *testing.T) string {
	t.Helper()
	definitions := map[string]*shape{}
	for _, d := range schema().Definitions {
		definitions[d.name] = d.shape
	}
	config, command, query := definitions["project"], definitions["command"], definitions["query"]
	files := fstest.MapFS{
		ConfigFile:                 {Data: exampleOf(t, config)},
		"assets/raw/weather.sql":   {Data: []byte("SELECT 1 AS x")},
		"assets/report/chart.yaml": {Data: exampleOf(t, command)},
		"assets/report/rain.sql": {Data: []byte("/* servo\n" + string(exampleOf(t, query)) + "*/\n" +
			"SELECT city, sum(rain) AS rain FROM raw.weather GROUP BY city\n")},
	}
	files["scripts/chart.py"] = &fstest.MapFile{}
	parsed := func(_ context.Context, queries []string) ([]Parsed, error) { return make([]Parsed, len(queries)), nil }
	_, err := LoadFS(t.Context(), files, "/p", Options{ParseSQL: parsed})
	require.NoError(t, err, "the examples of the reference")

	replace := []string{
		"{types}", typesTable(definitions),
		"{project}", fieldsTable(config, nil),
		"{workers}", fieldsTable(propertyOf(config, "workers"), nil),
		"{asset}", fieldsTable(query, nil),
		"{command}", fieldsTable(command, query),
		"{deps}", fieldsTable(propertyOf(query, "deps").Items.AnyOf[1], nil),
		"{run}", fieldsTable(propertyOf(command, "run"), nil),
		"{daily}", fieldsTable(propertyOf(propertyOf(command, "partitions"), "daily"), nil),
		"{retries}", fieldsTable(definitions["retries"], nil),
		"{keep}", fieldsTable(definitions["keep"].AnyOf[1], nil),
		"{check}", fieldsTable(definitions["check"], nil),
		"{quarantine}", fieldsTable(propertyOf(query, "quarantine"), nil),
		"{publish}", fieldsTable(propertyOf(config, "publish"), nil),
		"{sources}", fieldsTable(propertyOf(config, "sources"), nil),
		"{extensions}", fieldsTable(propertyOf(propertyOf(config, "sources"), "extensions"), nil),
		"{httpfs}", fieldsTable(propertyOf(propertyOf(propertyOf(config, "sources"), "extensions"), "httpfs"), nil),
		"{httpfs secret}", fieldsTable(externalSecretOf(config), nil),
		"{sqlite}", fieldsTable(propertyOf(propertyOf(propertyOf(config, "sources"), "extensions"), "sqlite"), nil),
		"{pricing}", fieldsTable(propertyOf(config, "pricing"), nil),
		"{batch}", fieldsTable(propertyOf(query, "batch").AnyOf[2], nil),
		"{publish asset}", fieldsTable(propertyOf(query, "publish").AnyOf[1], nil),
		"{resources}", fieldsTable(propertyOf(query, "resources"), nil),
		"{column}", fieldsTable(propertyOf(command, "columns").Additional.(shape).AnyOf[1], nil),
		"{kinds}", kindsTables(definitions["check"]),
		"{tests}", fieldsTable(propertyOf(definitions["tests"], "tests").Items, nil),
		"{expect}", fieldsTable(propertyOf(propertyOf(definitions["tests"], "tests").Items, "expect"), nil),
		"{schedule}", fieldsTable(scheduleShape(), nil),
		"{tick}", fieldsTable(propertyOf(scheduleShape(), "run"), nil),
		"{dst}", fieldsTable(propertyOf(scheduleShape(), "dst"), nil),
		"{catch_up}", fieldsTable(propertyOf(scheduleShape(), "catch_up"), nil),
		"{channels}", fieldsTable(channelOf(config), nil),
		"{webhook}", fieldsTable(propertyOf(channelOf(config), "webhook"), nil),
		"{slack}", fieldsTable(propertyOf(channelOf(config), "slack"), nil),
		"{smtp}", fieldsTable(propertyOf(channelOf(config), "smtp"), nil),
		"{pubsub}", fieldsTable(propertyOf(channelOf(config), "pubsub"), nil),
		"{file}", fieldsTable(propertyOf(channelOf(config), "file"), nil),
		"{alerts}", fieldsTable(propertyOf(config, "alerts").Items, nil),
		"{deadline}", fieldsTable(propertyOf(query, "deadline"), nil),
		"{freshness}", fieldsTable(propertyOf(query, "freshness"), nil),
		"{sla}", fieldsTable(propertyOf(query, "sla"), nil),
		"{schedule sla}", fieldsTable(propertyOf(scheduleShape(), "sla"), nil),
		"{defaults}", namesOf(propertyOf(config, "defaults")),
	}
	for name, file := range files {
		replace = append(replace, "{"+name+"}", strings.TrimSpace(string(file.Data)))
	}
	return strings.NewReplacer(replace...).Replace(settingsTemplate)
}

// externalSecretOf returns the shape of a secret of httpfs.
func externalSecretOf(config *shape) *shape {
	httpfs := propertyOf(propertyOf(propertyOf(config, "sources"), "extensions"), "httpfs")
	each, ok := propertyOf(httpfs, "secrets").Additional.(*shape)
	if !ok {
		panic("a secret has no shape")
	}
	return each
}

// channelOf returns the shape of a channel.
func channelOf(config *shape) *shape {
	each, ok := propertyOf(config, "channels").Additional.(*shape)
	if !ok {
		panic("a channel has no shape")
	}
	return each
}

// kindsTables returns a table of fields for each kind of check whose value is a mapping.
func kindsTables(check *shape) string {
	var out []string
	for _, p := range check.Properties {
		if len(p.Properties) == 0 {
			continue
		}
		out = append(out, "`"+p.name+"`: "+strings.TrimSuffix(p.Description, ".")+".\n\n"+fieldsTable(p.shape, nil))
		for _, inner := range p.Properties {
			if len(inner.Properties) > 0 {
				out = append(out, "`"+inner.name+"`: "+strings.TrimSuffix(inner.Description, ".")+".\n\n"+fieldsTable(inner.shape, nil))
			}
		}
	}
	return strings.Join(out, "\n\n")
}

func propertyIndex(s *shape, name string) int {
	return slices.IndexFunc(s.Properties, func(p property) bool { return p.name == name })
}

func propertyOf(s *shape, name string) *shape { return s.Properties[propertyIndex(s, name)].shape }

// scheduleShape returns the shape of one schedule.
func scheduleShape() *shape {
	each, ok := schedulesDefinition().Additional.(*shape)
	if !ok {
		panic("a schedule has no shape")
	}
	return each
}

func namesOf(s *shape) string {
	var names []string
	for _, p := range s.Properties {
		names = append(names, "`"+p.name+"`")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// fieldsTable returns a table of the fields of a mapping. It omits fields that also exist in except.
func fieldsTable(s, except *shape) string {
	var rows strings.Builder
	rows.WriteString("| field | value | default | |\n| --- | --- | --- | --- |\n")
	for _, p := range s.Properties {
		if except != nil && slices.ContainsFunc(except.Properties, func(e property) bool { return e.name == p.name }) {
			continue
		}
		about, otherwise, _ := strings.Cut(p.Description, " Default: ")
		if before, only := strings.CutPrefix(p.Description, "Default: "); only {
			about, otherwise = "", before
		}
		otherwise, more, _ := strings.Cut(strings.TrimSuffix(otherwise, "."), ". ")
		if more != "" {
			about += " " + more + "."
		}
		switch {
		case p.Default != nil:
			otherwise = "`" + flow(p.Default) + "`"
		case slices.Contains(s.Required, p.name):
			otherwise = "required"
		}
		value := valueOf(p.shape)
		switch {
		case p.name == "sla" && propertyIndex(p.shape, "task") < 0:
			value = "[mapping](#sla-of-a-schedule)"
		case p.name == "alerts":
			value = "[list of mappings](#alerts)"
		case p.name == "channels":
			value = "[mapping](#channels)"
		case p.name == "schedules":
			value = "[mapping](#schedules)"
		case p.name == "run" && propertyIndex(p.shape, "upstream") >= 0:
			value = "[mapping](#run-of-a-schedule)"
		case p.name == "partitions" && s.Description == "The assets and partitions that a tick runs.":
			value = "mapping"
		case p.name == "checks":
			value = "[list of checks](#checks)"
		case p.name == "columns" && p.Type == "object":
			value = "[mapping](#columns)"
		case p.name == "deps":
			value = "list of keys, or of [mappings](#deps)"
		case p.name == "map":
			value += ", or a mapping"
		case p.name == "values":
			value = "list"
		case len(p.Properties) > 0 && s.Description == "One check: its kind, and the effect of a failure.", p.name == "against_previous":
			value = "mapping"
		case len(p.Properties) > 0:
			value = "[mapping](#" + p.name + ")"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s |\n", p.name, value, otherwise, strings.TrimSuffix(withLinks(about), "."))
	}
	return strings.TrimSpace(rows.String())
}

// withLinks turns certain words into links to the sections that explain them.
func withLinks(about string) string {
	for words, link := range map[string]string{
		"superseded outputs are kept": "assets.md#what-is-kept", "its upstream tasks ended": "assets.md#trigger-rules",
		"are not retried": "assets.md#retries", "files queries may read": "assets.md#files-that-queries-read",
		"by reference": "../worker-contract.md#secrets", "conditions that the output must satisfy": "checks.md",
	} {
		about = strings.Replace(about, words, "["+words+"]("+link+")", 1)
	}
	return about
}

// valueOf describes the values of a field.
func valueOf(s *shape) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		if name == "retries" || name == "keep" {
			return "[" + name + "](#" + name + ")"
		}
		return name
	}
	switch {
	case len(s.Enum) > 0:
		return "`" + strings.Join(s.Enum, "`, `") + "`"
	case len(s.AnyOf) > 0 && strings.HasSuffix(s.AnyOf[len(s.AnyOf)-1].Pattern, "%$"):
		return valueOf(s.AnyOf[0]) + ", or a percentage"
	case len(s.AnyOf) > 0:
		return valueOf(s.AnyOf[0])
	}
	switch s.Type {
	case "integer":
		if s.Maximum == nil {
			return "whole number from " + grouped(*s.Minimum)
		}
		if *s.Minimum < -1_000_000 {
			return "whole number of 32 bits"
		}
		return fmt.Sprintf("whole number, %s to %s", grouped(*s.Minimum), grouped(*s.Maximum))
	case "number":
		return fmt.Sprintf("number, %d to %d", *s.Minimum, *s.Maximum)
	case "array":
		if s.Items.Type == "object" {
			return "list of mappings"
		}
		return "list of strings"
	case "object":
		return "mapping"
	case "boolean":
		return "`true`, `false`"
	}
	if kinds, ok := s.Type.([]string); ok {
		return strings.Join(kinds, " or ")
	}
	return "string"
}

// grouped formats a number with a comma at each thousand.
func grouped(i int64) string {
	text := fmt.Sprint(i)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func typesTable(definitions map[string]*shape) string {
	var rows strings.Builder
	rows.WriteString("| value | |\n| --- | --- |\n")
	for _, name := range []string{"name", "key", "duration", "age", "day", "size"} {
		d := definitions[name]
		examples := ""
		for i, e := range d.Examples {
			examples += map[bool]string{true: "; for example ", false: ", "}[i == 0] + "`" + e.(string) + "`"
		}
		fmt.Fprintf(&rows, "| %s | %s%s |\n", name, strings.TrimSuffix(d.Description, "."), examples)
	}
	return strings.TrimSpace(rows.String())
}

// flow writes a value on one line of YAML.
func flow(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		panic(err)
	}
	plain(&n)
	text, err = yaml.Marshal(&n)
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(text))
}

// plain removes quotes that JSON needs, but YAML does not.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, child := range n.Content {
		plain(child)
	}
}

// exampleOf returns a file that contains every field with an example or a default.
func exampleOf(t *testing.T, s *shape) []byte {
	t.Helper()
	var out strings.Builder
	for _, p := range s.Properties {
		value := p.Default
		if len(p.Examples) > 0 {
			value = p.Examples[0]
		}
		if value != nil && (s.Title != "a command" || !slices.Contains([]string{"keep", "columns", "checks", "publish"}, p.name)) { // a command with `output: none` has no files to keep, check or publish
			fmt.Fprintf(&out, "%s: %s\n", p.name, flow(value))
		}
	}
	return []byte(out.String())
}
