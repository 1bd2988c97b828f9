package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/file"
)

// footer returns the number of rows of a Parquet file, and its columns as lines of path and types.
func footer(f *os.File) (rows int64, schema string, err error) {
	defer func() {
		// The reader validates most of its input, but may panic on a crafted footer.
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged footer: %v", r)
		}
	}()
	reader, err := file.NewParquetReader(f)
	if err != nil {
		return 0, "", err
	}
	var b strings.Builder
	columns := reader.MetaData().Schema
	for i := range columns.NumColumns() {
		c := columns.Column(i)
		fmt.Fprintf(&b, "%q %s %s\n", c.Path(), c.PhysicalType(), c.LogicalType())
	}
	return reader.NumRows(), b.String(), nil
}

// describe sets rows and schema from the footer of a Parquet file.
func (f *outputFile) describe() error {
	if !isParquet(f.name) {
		return nil
	}
	opened, err := f.open()
	if err != nil {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("read output: %w", err))
	}
	defer opened.Close()
	if f.rows, f.schema, err = footer(opened); err != nil {
		return fail(CodeInvalidOutput, CategoryUser, fmt.Errorf("output file %s is not a Parquet file: %w", f.name, err))
	}
	return nil
}

// schemaHash returns a hash of the columns of the output's Parquet files. Outputs with the same
// hash can be read together. It is empty if there are no Parquet files.
func schemaHash(made []outputFile) string {
	var schemas []string
	for _, f := range made {
		if isParquet(f.name) {
			schemas = append(schemas, f.schema)
		}
	}
	if len(schemas) == 0 {
		return ""
	}
	slices.Sort(schemas)
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(schemas), "\n")))
	return hex.EncodeToString(sum[:])
}
