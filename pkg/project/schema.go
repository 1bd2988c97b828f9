package project

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// SchemaFile is the file to which servo init writes the schema, so that editors find it.
const SchemaFile = "servo.schema.json"

// Schema returns the JSON Schema (draft 7) of servo.yaml and of asset files. Its definitions "project" and "assets"
// describe these files. The definition "query" describes the header of a SQL file, and the definition "tests"
// describes a file with unit tests. The schema is generated from the tables with which Load reads the files, so both
// have exactly the same fields and limits. The schema accepts every valid file. Load also checks conditions that a
// schema cannot express, for example that a pool exists.
func Schema() []byte {
	raw, err := json.Marshal(schema())
	if err != nil {
		panic("project: the schema: " + err.Error()) // cannot happen: a shape has only JSON types
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		panic("project: the schema: " + err.Error())
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// IsSchema reports whether a text is the schema of this version, regardless of its formatting.
func IsSchema(text []byte) bool {
	var given, want any
	return json.Unmarshal(text, &given) == nil && json.Unmarshal(Schema(), &want) == nil && reflect.DeepEqual(given, want)
}

// shape describes the valid values of a field or a file. It is a part of a JSON Schema.
type shape struct {
	Schema      string `json:"$schema,omitempty"`
	Ref         string `json:"$ref,omitempty"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Default is the value of an absent field. Nil: there is no default, or the description states it.
	Default  any   `json:"default,omitempty"`
	Examples []any `json:"examples,omitempty"`

	Type          any        `json:"type,omitempty"` // a name or a list of names
	Const         any        `json:"const,omitempty"`
	Enum          []string   `json:"enum,omitempty"`
	Pattern       string     `json:"pattern,omitempty"`
	PatternHelp   string     `json:"patternErrorMessage,omitempty"` // editors show it; not part of draft 7
	MinLength     int        `json:"minLength,omitempty"`
	Minimum       *int64     `json:"minimum,omitempty"`
	Maximum       *int64     `json:"maximum,omitempty"`
	Items         *shape     `json:"items,omitempty"`
	MinItems      int        `json:"minItems,omitempty"`
	MaxItems      int        `json:"maxItems,omitempty"`
	Properties    properties `json:"properties,omitempty"`
	Required      []string   `json:"required,omitempty"`
	Additional    any        `json:"additionalProperties,omitempty"` // false or a shape
	PropertyNames *shape     `json:"propertyNames,omitempty"`
	MinProperties int        `json:"minProperties,omitempty"`
	MaxProperties int        `json:"maxProperties,omitempty"`
	AllOf         []*shape   `json:"allOf,omitempty"`
	AnyOf         []*shape   `json:"anyOf,omitempty"`
	Not           *shape     `json:"not,omitempty"`
	If            *shape     `json:"if,omitempty"`
	Then          *shape     `json:"then,omitempty"`
	Else          *shape     `json:"else,omitempty"`
	Definitions   properties `json:"definitions,omitempty"`
}

// properties are the shapes of named values, in the order of the reference.
type properties []property

type property struct {
	name string
	*shape
}

// MarshalJSON returns an object in the order of the properties.
func (ps properties) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, p := range ps {
		if i > 0 {
			out.WriteByte(',')
		}
		value, err := json.Marshal(p.shape)
		if err != nil {
			return nil, fmt.Errorf("property %s: %w", p.name, err)
		}
		fmt.Fprintf(&out, "%q:%s", p.name, value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// field is one field of a mapping: its name, its shape, and a function that reads its value and stores it in a T.
type field[T any] struct {
	name  string
	shape shape
	read  func(f yamlFile, n *yaml.Node, to *T)
}

// table lists the fields of a mapping. It is the only list of these fields: Load uses it to read files, and the
// schema and the reference are generated from it.
type table[T any] []field[T]

// fields returns the functions that read the fields of a mapping and store their values in *to.
func (t table[T]) fields(f yamlFile, to *T) fields {
	known := make(fields, len(t))
	for i := range t {
		read := t[i].read
		known[t[i].name] = func(n *yaml.Node) { read(f, n, to) }
	}
	return known
}

// shape returns the shape of a mapping with exactly these fields.
func (t table[T]) shape(about shape, required ...string) shape {
	about.Type, about.Additional, about.Required = "object", false, required
	for i := range t {
		about.Properties = append(about.Properties, property{t[i].name, &t[i].shape})
	}
	return about
}

// whole returns a field whose value is a whole number between least and most.
func whole[T any, I int | int32](name string, about shape, least, most int64, at func(*T) *I) field[T] {
	about.Type, about.Minimum, about.Maximum = "integer", &least, &most
	return field[T]{name, about, func(f yamlFile, n *yaml.Node, to *T) {
		if i, ok := f.integer(n, name, least, most); ok {
			*at(to) = I(i)
		}
	}}
}

// decimal returns a field whose value is a decimal number between least and most. The value is stored in thousandths.
func decimal[T any](name string, about shape, least, most int64, at func(*T) *int32) field[T] {
	about.Type, about.Minimum, about.Maximum = "number", &least, &most
	return field[T]{name, about, func(f yamlFile, n *yaml.Node, to *T) {
		f.permille(n, name, float64(least), float64(most), at(to))
	}}
}

// choice returns a field whose value is one of several words.
func choice[T any](name string, about shape, words []string, at func(*T) *string) field[T] {
	about.Enum = words
	return field[T]{name, about, func(f yamlFile, n *yaml.Node, to *T) { f.oneOf(n, name, words, at(to)) }}
}

// listing returns a field whose value is a list of strings.
func listing[T any](name string, about shape, at func(*T) *[]string) field[T] {
	about.Type, about.Items = "array", &shape{Type: "string"}
	return field[T]{name, about, func(f yamlFile, n *yaml.Node, to *T) { *at(to) = f.texts(n, name) }}
}

// other returns a field with a function of its own for reading its value.
func other[T any](name string, about shape, read func(f yamlFile, n *yaml.Node, to *T)) field[T] {
	return field[T]{name, about, read}
}

// typed returns a copy of a shape that refers to the definition with the given name.
func typed(name string, about shape) shape {
	about.Ref = "#/definitions/" + name
	return about
}

// These patterns describe the values of several fields each. The patterns are valid in both RE2 and ECMAScript.
const (
	durationPattern = `^(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	agePattern      = `^[0-9]+d$|` + durationPattern
	dayPattern      = `^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$`
	keyPattern      = `^[a-z0-9_]{1,128}/[a-z0-9_]{1,128}$`
	folderPattern   = `^(\.|[^./*?\[\\][^/*?\[\\]*(/[^./*?\[\\][^/*?\[\\]*)*)/?$`
	domainPattern   = `^[a-z0-9-]{1,63}$`
	// workspacePattern accepts $USER, whose length is unknown.
	workspacePattern = `^([a-z0-9-]|\$USER){1,63}$`
)

// schema returns the JSON Schema of all project files.
func schema() shape {
	command := slices.Concat(assetFields, commandFields)
	empty := []string{"object", "null"} // null is the value of a file or a header with only comments
	project := configFields.shape(shape{Title: ConfigFile, Description: "The settings of a project. All fields are optional."})
	query := slices.Concat(assetFields, queryFields).shape(shape{
		Title:       "the header of a SQL file",
		Description: "The fields of a query, in the comment /* servo … */ at the start of its file. All are optional.",
	})
	project.Type, query.Type = empty, empty
	asset := command.shape(shape{Title: "a command", Description: "An asset that a command computes."}, "run")
	list := shape{Type: "array", Description: "The assets of this file. Each has a key.", Items: &shape{AllOf: []*shape{
		{Ref: "#/definitions/command"}, {Required: []string{"asset"}},
	}}}
	return shape{
		Schema: "http://json-schema.org/draft-07/schema#",
		Title:  "Files of a Servo project",
		Definitions: append(properties{
			{"project", &project},
			{"assets", &shape{
				Title:       "a YAML file below " + AssetsDir,
				Description: "One asset that a command computes, or a list of such assets under `assets`.",
				Type:        "object",
				If:          &shape{Required: []string{"assets"}},
				Then:        &shape{Properties: properties{{"assets", &list}}, Additional: false},
				Else:        &shape{Ref: "#/definitions/command"},
			}},
			{"command", &asset},
			{"query", &query},
			{"tests", testsShape()},
			{"schedules", schedulesDefinition()},
		}, sharedShapes()...),
	}
}

// sharedShapes are the definitions to which fields refer.
func sharedShapes() properties {
	text := func(pattern, about string, examples ...any) *shape {
		return &shape{Type: "string", Pattern: pattern, PatternHelp: about, Description: about, Examples: examples}
	}
	retries := retryFields.shape(shape{Description: "When and how often a failed attempt is retried. Absent fields keep their defaults."})
	keep := keepFields.shape(shape{Description: "A superseded version is kept while both conditions hold. Absent fields keep their defaults."})
	key := text(keyPattern, "An asset: namespace/name, of a-z, 0-9 and _.", "raw/weather")
	key.Not = &shape{Pattern: "^(" + strings.Join(reserved, "|") + ")/"}
	check := checkFields.shape(shape{Description: "One check: its kind, and the effect of a failure."})
	for _, name := range checkKinds() {
		check.AnyOf = append(check.AnyOf, &shape{Required: []string{name}})
	}
	return properties{
		{"key", key},
		{"name", text(namePattern.String(), "1 to 63 of a-z, 0-9, _ and -.")},
		{"duration", text(durationPattern, "Numbers with units: h, m, s, ms.", "30s", "1h30m")},
		{"age", text(agePattern, "Days, or numbers with units: d, h, m, s.", "30d", "36h")},
		{"day", text(dayPattern, "A day: year-month-day.", "2025-01-15")},
		{"size", text(sizePattern.String(), "A number of bytes with a unit: B, KB, MB, GB, TB, KiB, MiB, GiB or TiB; from 16MB to 1PB.", "512MB", "2GiB")},
		{"retries", &retries},
		{"check", &check},
		{"keep", &shape{
			Description: "Which superseded outputs are kept.",
			AnyOf:       []*shape{{Const: "all", Description: "Keep every version."}, &keep},
		}},
	}
}

// merged adds the fields in extra to known, and returns known. Added fields replace fields of the same name.
func (known fields) merged(extra fields) fields {
	maps.Copy(known, extra)
	return known
}
