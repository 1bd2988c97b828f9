package render

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// writeJSON writes an array of objects, one per line.
func writeJSON(w io.Writer, result Result) error {
	out := bufio.NewWriter(w)
	out.WriteByte('[') //nolint:errcheck // a bufio.Writer keeps its error for Flush
	fields := make(Fields, len(result.Columns))
	var line []byte
	first := true
	for row, err := range result.Rows {
		if err != nil {
			return flush(out, err)
		}
		for i, name := range result.Columns {
			fields[i] = Field{Name: name, Value: row[i]}
		}
		line = line[:0]
		if !first {
			line = append(line, ',')
		}
		first = false
		if line, err = appendObject(append(line, "\n  "...), fields); err != nil {
			return flush(out, err)
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	if !first {
		out.WriteByte('\n') //nolint:errcheck // a bufio.Writer keeps its error for Flush
	}
	out.WriteString("]\n") //nolint:errcheck // a bufio.Writer keeps its error for Flush
	return out.Flush()
}

// flush writes the buffered rows. If that succeeds, it returns err, the error that ended the rows.
func flush(out *bufio.Writer, err error) error {
	if flushErr := out.Flush(); flushErr != nil {
		return flushErr
	}
	return err
}

// writeCSV writes RFC 4180 with a header. NULL is an empty cell. If the result has only one column, an empty cell is
// written as two quotation marks: otherwise its line would be empty, and many readers skip empty lines.
func writeCSV(w io.Writer, result Result) error {
	out := csv.NewWriter(w)
	if err := out.Write(result.Columns); err != nil {
		return err
	}
	record := make([]string, len(result.Columns))
	for row, err := range result.Rows {
		if err != nil {
			out.Flush()
			return err
		}
		for i, cell := range row {
			record[i] = ""
			if cell != nil {
				record[i] = csvText(cell)
			}
		}
		if len(record) == 1 && record[0] == "" {
			out.Flush()
			if _, err := io.WriteString(w, "\"\"\n"); err != nil {
				return err
			}
			continue
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// csvText returns a cell as text for CSV. Lists and structs become JSON, so that programs can parse them.
func csvText(cell any) string {
	switch cell.(type) {
	case []any, Fields:
		if encoded, err := AppendJSON(nil, cell); err == nil {
			return string(encoded)
		}
	}
	return Text(cell)
}

// writeYAML writes a list of mappings.
func writeYAML(w io.Writer, result Result) error {
	some := false
	for row, err := range result.Rows {
		if err != nil {
			return err
		}
		some = true
		mapping := &yaml.Node{Kind: yaml.MappingNode}
		for i, name := range result.Columns {
			mapping.Content = append(mapping.Content, yamlText(name), yamlNode(row[i]))
		}
		encoded, err := yaml.Marshal(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{mapping}})
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		if _, err := w.Write(encoded); err != nil {
			return err
		}
	}
	if some {
		return nil
	}
	_, err := io.WriteString(w, "[]\n")
	return err
}

func yamlText(value string) *yaml.Node {
	node := &yaml.Node{}
	node.SetString(value)
	node.Style = styleOf(value)
	return node
}

// special matches texts that parsers of YAML 1.1 do not read as text, unless they are quoted: Booleans, numbers to the
// base 60, the key that merges mappings, and the default value.
var special = regexp.MustCompile(`^(?:(?i:y|yes|n|no|on|off)|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|<<|=)$`)

// styleOf returns the style in which every YAML parser reads a text as it is. A text of several lines is written as a
// block, unless it begins with a space, or contains other characters that some parsers read as line breaks.
func styleOf(value string) yaml.Style {
	first, _ := utf8.DecodeRuneInString(value)
	block := strings.Contains(value, "\n")
	if special.MatchString(value) || block && (unicode.IsSpace(first) || strings.ContainsAny(value, "\r\u0085\u2028\u2029")) {
		return yaml.DoubleQuotedStyle
	}
	return 0
}

// yamlFloat writes a number that YAML parsers read as a float.
func yamlFloat(v float64, bits int) string {
	text := floatText(v, bits)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

func yamlNode(cell any) *yaml.Node {
	switch v := cell.(type) {
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	case string:
		return yamlText(v)
	case float64:
		if plain(v) {
			return yamlNode(Number(yamlFloat(v, 64)))
		}
	case float32:
		if plain(v) {
			return yamlNode(Number(yamlFloat(float64(v), 32)))
		}
	case Number:
		tag := "!!int"
		if strings.ContainsAny(string(v), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: string(v)}
	case []any:
		list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, part := range v {
			list.Content = append(list.Content, yamlNode(part))
		}
		return list
	case Fields:
		mapping := &yaml.Node{Kind: yaml.MappingNode}
		for _, field := range v {
			mapping.Content = append(mapping.Content, yamlText(field.Name), yamlNode(field.Value))
		}
		return mapping
	}
	node := &yaml.Node{}
	if plain(cell) && node.Encode(cell) == nil {
		return node
	}
	return yamlText(Text(cell))
}
