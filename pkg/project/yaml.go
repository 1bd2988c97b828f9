package project

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// These limits apply to a YAML text after its aliases are expanded.
const (
	maxYAMLDepth = 32
	maxYAMLNodes = 200_000
)

// yamlFile reads one YAML text.
type yamlFile struct {
	*loader
	name string
}

func (f yamlFile) place(n *yaml.Node) place {
	return place{file: f.name, line: n.Line, column: n.Column, word: n.Value}
}

func (f yamlFile) fail(n *yaml.Node, suggestion, format string, args ...any) {
	f.report(f.place(n), suggestion, format, args...)
}

// These patterns find the line number in an error of the YAML library. The errors of the library's parser count lines
// from 0, those of its scanner from 1.
var (
	yamlLine   = regexp.MustCompile(`^line (\d+): `)
	yamlParser = regexp.MustCompile(`^did not find expected (<|node content|'-' indicator|key|',' or)`)
)

// parse reads the only document of a text. It returns nil if the text is empty. It also returns nil if the text has a
// problem, which it reports.
func (f yamlFile) parse(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, more yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if !errors.Is(err, io.EOF) {
			f.syntax(err)
		}
		return nil
	}
	if err := decoder.Decode(&more); err == nil {
		f.fail(&more, "put each in its own file", "the file has more than one document")
		return nil
	} else if !errors.Is(err, io.EOF) {
		f.syntax(err)
		return nil
	}
	if len(document.Content) != 1 {
		return nil
	}
	nodes := 0
	if !f.withinLimits(document.Content[0], 0, &nodes) {
		return nil
	}
	return resolve(document.Content[0])
}

func (f yamlFile) syntax(err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	at := place{file: f.name}
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		at.line, _ = strconv.Atoi(m[1]) // digits
		message = message[len(m[0]):]
		if yamlParser.MatchString(message) {
			at.line++
		}
	}
	f.report(at, "", "not YAML: %s", message)
}

// withinLimits reports values that are nested too deeply, and small texts whose expanded aliases are huge.
func (f yamlFile) withinLimits(n *yaml.Node, depth int, nodes *int) bool {
	*nodes++
	if depth > maxYAMLDepth {
		f.fail(n, "", "values are nested deeper than %d", maxYAMLDepth)
		return false
	}
	if *nodes > maxYAMLNodes {
		f.fail(n, "", "the file has more than %d values, counting expanded aliases", maxYAMLNodes)
		return false
	}
	if n.Kind == yaml.AliasNode {
		return f.withinLimits(n.Alias, depth+1, nodes)
	}
	for _, child := range n.Content {
		if !f.withinLimits(child, depth+1, nodes) {
			return false
		}
	}
	return true
}

// resolve returns the target of an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// fields maps the known fields of a mapping to functions that read their values.
type fields map[string]func(*yaml.Node)

// mapping reads the fields of a mapping.
func (f yamlFile) mapping(n *yaml.Node, what string, known fields) {
	if n.Kind != yaml.MappingNode {
		f.fail(n, "", "%s must be a mapping, got %s", what, kindOf(n))
		return
	}
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := resolve(n.Content[i]), resolve(n.Content[i+1])
		if before, ok := first[name.Value]; ok {
			f.fail(name, "", "duplicate field %s: first on line %d", name.Value, before.Line)
			continue
		}
		first[name.Value] = name
		read, ok := known[name.Value]
		switch {
		case !ok:
			f.unknownField(name, what, known)
		case isNull(value):
			f.fail(name, "add a value, or remove the field", "the field %s has no value", name.Value)
		default:
			read(value)
		}
	}
}

func (f yamlFile) unknownField(name *yaml.Node, what string, known fields) {
	names := slices.Sorted(maps.Keys(known))
	suggestion := didYouMean(plan.Suggest(name.Value, names))
	switch {
	case what == runOfSchedule && name.Value == "vars":
		f.fail(name, "set the variable for the environment in servo.yaml, or select an asset that reads another variable", "a schedule cannot set variables yet")
		return
	case name.ShortTag() == "!!merge":
		suggestion = "merge keys are not supported: write the fields out"
	case suggestion == "":
		suggestion = "known fields: " + strings.Join(names, ", ")
	}
	f.fail(name, suggestion, "unknown field %[2]s in %[1]s", what, quoteShort(name.Value))
}

// each reads the items of a list.
func (f yamlFile) each(n *yaml.Node, what string, read func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		f.fail(n, "", "%s must be a list, got %s", what, kindOf(n))
		return
	}
	for _, item := range n.Content {
		read(resolve(item))
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf describes a value for messages.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	switch n.ShortTag() {
	case "!!null":
		return "empty"
	case "!!bool":
		return n.Value
	case "!!int", "!!float":
		return n.Value
	case "!!timestamp":
		return "the date " + n.Value
	default:
		return "the string " + quoteShort(n.Value)
	}
}

// quoteShort quotes a word from an untrusted file. It truncates the word to fit on a line.
func quoteShort(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", s)
}
