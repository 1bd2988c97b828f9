package cli

import (
	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// column is a column of a list whose rows have the type R.
type column[R any] = render.Column[R]

// list writes rows in the requested format. The command must be annotated with [writesRows].
func list[R any](a *app, columns []column[R], rows []R) error {
	return a.render(render.List(a.format, columns, rows))
}

// render writes a result in the requested format.
func (a *app) render(result render.Result) error {
	width, _ := a.width(a.Stdout)
	return render.Write(a.Stdout, result, render.Options{Format: a.format, Width: width})
}

// document writes one value as text, JSON or YAML. The command must be annotated with [writesDocument], so that it
// rejects -o csv before it changes anything, or with [writesRows] if it has other results that are rows.
func (a *app) document(value any, text func() string) error {
	switch a.format {
	case render.Table:
		_, err := a.Stdout.Write([]byte(a.completed(text())))
		return err
	case render.CSV:
		return errNotTable
	case render.JSON, render.YAML:
	}
	return render.Document(a.Stdout, a.format, value)
}

// errNotTable is the error of a command whose result has no rows for -o csv.
var errNotTable = usagef("this result is not a table: choose -o table, json or yaml")

// formatsAnnotation is set on commands that write a result. Its value says in which formats.
const formatsAnnotation = "servo/formats"

// These are the annotations of commands that write a result.
var (
	writesRows     = map[string]string{formatsAnnotation: "rows"}     // in all formats
	writesDocument = map[string]string{formatsAnnotation: "document"} // in all formats except csv
)

// checkFormat returns an error if a command cannot write its result in the requested format. A command without
// annotations writes at most text for people, so it accepts only the default format.
func (a *app) checkFormat(cmd *cobra.Command) error {
	switch formats := cmd.Annotations[formatsAnnotation]; {
	case a.format == render.Table, formats == writesRows[formatsAnnotation]:
		return nil
	case formats == writesDocument[formatsAnnotation]:
		if a.format == render.CSV {
			return errNotTable
		}
		return nil
	}
	return usagef("`%s` writes no result as %s: remove -o %s", cmd.CommandPath(), a.format, a.format)
}

// cells returns the value of a cell that contains a list of texts.
func cells(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}
