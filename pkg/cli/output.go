package cli

import (
	"bytes"
	"encoding/json"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// column is a column of a listing of R.
type column[R any] struct {
	name string
	// value returns the cell for programs.
	value func(R) any
	// text returns the cell for people. Nil: the same as value.
	text func(R) any
	// machine columns do not appear in tables.
	machine bool
}

// list writes rows in the requested format.
func list[R any](a *app, columns []column[R], rows []R) error {
	table := a.format == render.Table
	var names []string
	var cells []func(R) any
	for _, c := range columns {
		if table && c.machine {
			continue
		}
		names = append(names, c.name)
		if table && c.text != nil {
			cells = append(cells, c.text)
		} else {
			cells = append(cells, c.value)
		}
	}
	all := make([][]any, len(rows))
	for i, row := range rows {
		all[i] = make([]any, len(cells))
		for j, cell := range cells {
			all[i][j] = cell(row)
		}
	}
	return a.render(render.Of(names, all))
}

// render writes a result in the requested format.
func (a *app) render(result render.Result) error {
	width, _ := a.width(a.Stdout)
	return render.Write(a.Stdout, result, render.Options{Format: a.format, Width: width})
}

// document writes one value as text, JSON or YAML.
func (a *app) document(value any, text func() string) error {
	switch a.format {
	case render.Table:
		_, err := a.Stdout.Write([]byte(text()))
		return err
	case render.JSON, render.YAML:
	case render.CSV:
		return usagef("this result is not a table: choose -o table, json or yaml")
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if a.format == render.JSON {
		_, err := a.Stdout.Write(buf.Bytes())
		return err
	}
	var node yaml.Node // JSON is YAML, and keeps the order and the names of the fields
	if err := yaml.Unmarshal(buf.Bytes(), &node); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	block(&node)
	out, err := yaml.Marshal(&node)
	if err == nil {
		_, err = a.Stdout.Write(out)
	}
	return err
}

// block removes the braces and quotes of JSON from a YAML document.
func block(n *yaml.Node) {
	n.Style = 0
	if (n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode) && len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	for _, child := range n.Content {
		block(child)
	}
}
