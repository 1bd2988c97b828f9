package cli

import (
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// column is a column of a list whose rows have the type R.
type column[R any] = render.Column[R]

// list writes rows in the requested format.
func list[R any](a *app, columns []column[R], rows []R) error {
	return a.render(render.List(a.format, columns, rows))
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
	case render.CSV:
		return usagef("this result is not a table: choose -o table, json or yaml")
	case render.JSON, render.YAML:
	}
	return render.Document(a.Stdout, a.format, value)
}

// cells returns the value of a cell that contains a list of texts.
func cells(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}
