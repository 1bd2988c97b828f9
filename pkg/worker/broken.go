package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// brokenInput returns the error of a query, or one that names the input file that DuckDB cannot read, if that is the
// reason. Such a file is what its task committed, and its task wrote it wrong: a bad page in a Parquet file, for
// example, which DuckDB reports without the file's name.
func (a *attempt) brokenInput(ctx context.Context, inputs []input, err error) error {
	if ctx.Err() != nil || !mayBeBroken(err) {
		return err
	}
	for i := range inputs {
		for _, p := range inputs[i].parts {
			for k, file := range p.marker.Files {
				if !isParquet(file.Name) {
					continue
				}
				if problem := a.readWhole(ctx, p.paths[k]); problem != nil {
					return refuse(CodeInvalidInput, "input file %s of %s cannot be read: %s: correct the asset that writes it, and run that again",
						p.marker.URI+file.Name, inputs[i].asset, strings.ReplaceAll(problem.Error(), p.paths[k], file.Name))
				}
			}
		}
	}
	return err
}

// mayBeBroken reports whether an error of DuckDB can come from a file's content. Errors of the query itself, of memory
// and of disks cannot.
func mayBeBroken(err error) bool {
	if f, ok := errors.AsType[*failure](err); ok && f.code != CodeSQL {
		return false
	}
	e, ok := asQueryError(err, "")
	return ok && !e.final() && !slices.Contains([]string{kindMemory, kindConversion, "Interrupt", "Constraint"}, e.kind) &&
		!strings.Contains(e.message, "No space left on device")
}

// readWhole decodes every value of a Parquet file, in an instance of its own: the query's may be invalid by now.
func (a *attempt) readWhole(ctx context.Context, path string) error {
	d, err := a.w.openDuckDB(ctx, a.dir)
	if err != nil {
		return nil //nolint:nilerr // nothing is known of the file
	}
	_, err = d.exec(ctx, "SELECT bit_xor(hash(t)) FROM "+readParquet([]string{path})+" AS t")
	if closeErr := d.close(); closeErr != nil || ctx.Err() != nil || err == nil || !mayBeBroken(err) {
		return nil //nolint:nilerr // the error says nothing of the file
	}
	e, _ := asQueryError(err, "")
	return errors.New(firstLine(e.Error()))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
