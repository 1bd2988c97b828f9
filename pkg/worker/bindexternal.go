package worker

import (
	"context"
	"strings"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// external reports an error if a query names data outside of Servo that it must not read. Binding never reads such
// data: if a query uses extensions, its columns are read from a stored output, as for a command. The result done means
// that the query need not be bound.
func (b *binder) external(ctx context.Context, asset *plan.Asset, query *resolvedQuery) (done bool, err error) {
	if found := deniedURL(query, &asset.Work); found != nil {
		b.deny(asset, query, found)
		return true, nil
	}
	if len(asset.Work.External) == 0 {
		return false, nil
	}
	b.isExternal[asset.Key] = true
	if found := deniedFunction(query.written, knownFunctions); found != nil {
		b.deny(asset, query, found)
	}
	version, platform, err := b.own.build(ctx)
	if err != nil {
		return true, err
	}
	for i := range asset.Work.External {
		e := &asset.Work.External[i]
		if _, err := extensionFile(e, b.Root, version, platform); err != nil {
			message, action := cutLast(err.Error(), ": ")
			b.result.Missing = append(b.result.Missing, BindProblem{
				File: asset.File, Line: asset.Query.Line, Column: asset.Query.Column, Message: message, Suggestion: action,
			})
		}
	}
	return true, b.describeOutput(ctx, asset, false)
}

// knownFunctions lists functions of extensions that no query may name. Binding needs the list, because it loads no
// extensions. A worker loads the extensions, and finds all such functions without the list.
var knownFunctions = []string{"sqlite_attach", "sqlite_query", "sqlite_scan"}

func (b *binder) deny(asset *plan.Asset, query *resolvedQuery, found *denied) {
	line, column, _ := locate(query.written, max(found.at, 0), asset.Query)
	b.result.Problems = append(b.result.Problems, BindProblem{
		File: asset.File, Line: line, Column: column, Message: found.message, Suggestion: found.action,
	})
}

// cutLast slices a text around the last separator. If there is no separator, the first result is the whole text, and
// the second one is empty.
func cutLast(text, separator string) (before, after string) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i+len(separator):]
}
