package cli

import (
	"github.com/spf13/cobra"

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

// document writes one value as text, JSON or YAML. A command that changes something before it calls document must be
// marked with [documented], so that it rejects -o csv before the change.
func (a *app) document(value any, text func() string) error {
	switch a.format {
	case render.Table:
		_, err := a.Stdout.Write([]byte(text()))
		return err
	case render.CSV:
		return errNotTable
	case render.JSON, render.YAML:
	}
	return render.Document(a.Stdout, a.format, value)
}

// errNotTable is the error of a command whose result has no rows for -o csv.
var errNotTable = usagef("this result is not a table: choose -o table, json or yaml")

// documentAnnotation is set on commands whose result is one value.
const documentAnnotation = "servo/document"

// documented marks a command whose result is one value. Such a command rejects -o csv before it does anything.
func documented(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{documentAnnotation: ""}
	return cmd
}

// checkFormat returns an error if a command cannot write its result in the requested format.
func (a *app) checkFormat(cmd *cobra.Command) error {
	if _, ok := cmd.Annotations[documentAnnotation]; ok && a.format == render.CSV {
		return errNotTable
	}
	return nil
}

// cells returns the value of a cell that contains a list of texts.
func cells(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}
