package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// brokenInput checks whether a damaged Parquet file of an input has caused the error of a query. If so, it returns a
// permanent failure that names the file. Otherwise it returns err. DuckDB's error about a damaged page does not name
// the file. The checksum of such a file is correct, because the file was already damaged when its task wrote it.
func (a *attempt) brokenInput(ctx context.Context, inputs []input, err error) error {
	if ctx.Err() != nil || !mayBeBroken(err) {
		return err
	}
	for i := range inputs {
		for _, p := range inputs[i].parts {
			for k, file := range p.marker.Files {
				if !isParquet(file.Name) || k >= len(p.paths) {
					continue // the query did not read this file: it read a merged file
				}
				if problem := a.readWhole(ctx, p.paths[k]); problem != nil {
					return permanent(CodeInvalidInput, "input file %s of %s cannot be read: %s: fix the asset that writes it, and run it again",
						p.marker.URI+file.Name, inputs[i].asset, strings.ReplaceAll(problem.Error(), p.paths[k], file.Name))
				}
			}
		}
	}
	return err
}

// mayBeBroken reports whether the content of a file can cause the error. It excludes errors of the query itself, of
// memory and of disks.
func mayBeBroken(err error) bool {
	if f, ok := errors.AsType[*failure](err); ok && f.code != CodeSQL {
		return false
	}
	e, ok := asQueryError(err, "")
	return ok && !e.final() && !slices.Contains([]string{kindMemory, kindConversion, "Interrupt", "Constraint"}, e.kind) &&
		!strings.Contains(e.message, "No space left on device")
}

// readWhole decodes every value of a Parquet file. It uses a new instance of DuckDB, because the query's instance may
// have become invalid.
func (a *attempt) readWhole(ctx context.Context, path string) error {
	d, err := a.openDuckDB(ctx)
	if err != nil {
		return nil //nolint:nilerr // without DuckDB, the file cannot be examined
	}
	_, err = d.exec(ctx, "SELECT bit_xor(hash(t)) FROM "+readParquet([]string{path})+" AS t")
	if closeErr := d.close(); closeErr != nil || ctx.Err() != nil || err == nil || !mayBeBroken(err) {
		return nil //nolint:nilerr // the error is not about the file
	}
	e, _ := asQueryError(err, "")
	return errors.New(firstLine(e.Error()))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
