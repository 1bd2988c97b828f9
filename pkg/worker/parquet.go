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

// footer reads how many rows a Parquet file has, and what its columns are: a
// line of name and type each.
func footer(f *os.File) (rows int64, schema string, err error) {
	defer func() {
		// The reader checks most of what it reads, but a footer made to confuse it
		// may still be one that it trips over.
		if r := recover(); r != nil {
			err = fmt.Errorf("its footer is damaged: %v", r)
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

// describe fills in what the footer of a Parquet file says.
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

// schemaHash is of the columns of an output's Parquet files: the same for
// outputs that can be read together. Without any Parquet file it is empty.
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
