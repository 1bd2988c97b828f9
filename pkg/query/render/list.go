package render

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// Column is a column of a list whose rows have the type R.
type Column[R any] struct {
	Name string
	// Heading is the name of the column in tables. If it is empty, tables show Name.
	Heading string
	// Value returns the cell as a value for programs.
	Value func(R) any
	// Text returns the cell as text for people. If it is nil, tables show the result of Value.
	Text func(R) any
	// Machine means that tables do not show the column.
	Machine bool
	// Optional means that a narrow table omits the column before others.
	Optional bool
}

// List returns rows as a result to write. If the format is Table, the cells are texts for people; in other formats,
// they are values for programs.
func List[R any](format Format, columns []Column[R], rows []R) Result {
	var names []string
	var cells []func(R) any
	var optional []bool
	table := format == Table || format == ""
	for _, c := range columns {
		switch {
		case !table:
			cells = append(cells, c.Value)
		case c.Machine:
			continue
		case c.Text != nil:
			cells = append(cells, c.Text)
		default:
			cells = append(cells, c.Value)
		}
		name := c.Name
		if table {
			name = cmp.Or(c.Heading, name)
		}
		names, optional = append(names, name), append(optional, c.Optional)
	}
	all := make([][]any, len(rows))
	for i, row := range rows {
		all[i] = make([]any, len(cells))
		for j, cell := range cells {
			all[i][j] = cell(row)
		}
	}
	result := Of(names, all)
	result.Optional = optional
	return result
}

// Document writes one value as JSON or YAML, with the names and the order of its JSON fields.
func Document(w io.Writer, format Format, value any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if format == JSON {
		_, err := w.Write(buf.Bytes())
		return err
	}
	decoder := json.NewDecoder(&buf)
	decoder.UseNumber()
	node, err := decodeNode(decoder)
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	out, err := yaml.Marshal(node)
	if err == nil {
		_, err = w.Write(out)
	}
	return err
}

// decodeNode decodes the next JSON value. A YAML parser cannot decode it, because JSON may contain control characters.
func decodeNode(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode}
		if v == '{' {
			node.Kind = yaml.MappingNode
		}
		for decoder.More() { // in an object, the names and the values alternate
			part, err := decodeNode(decoder)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, part)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle
		}
		_, err := decoder.Token() // the closing bracket
		return node, err
	case json.Number:
		return yamlNode(Number(v)), nil
	}
	return yamlNode(token), nil
}
