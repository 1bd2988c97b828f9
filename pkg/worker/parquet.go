package worker

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet/file"
	parquet "github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// footer returns the number of rows of a Parquet file, and its columns in two forms: lines is a text with the path
// and the types of one column in each line, and names are the columns for the commit marker.
func footer(f *os.File) (rows int64, lines string, names []contract.CommitMarkerColumn, err error) {
	defer func() {
		// The reader validates most of its input, but may panic on a crafted footer.
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged footer: %v", r)
		}
	}()
	reader, err := file.NewParquetReader(f)
	if err != nil {
		return 0, "", nil, err
	}
	var b strings.Builder
	columns := reader.MetaData().Schema
	for i := range columns.NumColumns() {
		c := columns.Column(i)
		fmt.Fprintf(&b, "%q %s %s\n", c.Path(), c.PhysicalType(), c.LogicalType())
		names = append(names, contract.CommitMarkerColumn{Name: c.Path(), Type: columnType(c)})
	}
	return reader.NumRows(), b.String(), names, nil
}

// columnTypes are the SQL names of the Parquet types that have no parameters, by physical and logical type.
var columnTypes = map[string]string{
	"BOOLEAN None": "BOOLEAN", "INT32 None": "INTEGER", "INT64 None": "BIGINT", "FLOAT None": "FLOAT", "DOUBLE None": "DOUBLE",
	"BYTE_ARRAY None": "BLOB", "BYTE_ARRAY String": "VARCHAR", "INT32 Date": "DATE",
}

// columnType returns the SQL name of a Parquet type. If SQL has no such type, it returns Parquet's own name.
func columnType(c *parquet.Column) string {
	physical := c.PhysicalType().String()
	switch t := c.LogicalType().(type) {
	case parquet.DecimalLogicalType:
		return fmt.Sprintf("DECIMAL(%d,%d)", t.Precision(), t.Scale())
	case parquet.TimestampLogicalType:
		return zoned("TIMESTAMP", t.IsAdjustedToUTC())
	case parquet.TimeLogicalType:
		return zoned("TIME", t.IsAdjustedToUTC())
	case parquet.IntLogicalType:
		name := map[int8]string{8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}[t.BitWidth()]
		if !t.IsSigned() {
			name = "U" + name
		}
		return name
	case parquet.NoLogicalType, nil:
		return cmp.Or(columnTypes[physical+" None"], physical)
	default:
		return cmp.Or(columnTypes[physical+" "+t.String()], strings.ToUpper(t.String()))
	}
}

func zoned(name string, utc bool) string {
	if utc {
		return name + " WITH TIME ZONE"
	}
	return name
}

// columnsOf returns the columns of the output's Parquet files. It returns none if the columns of the files differ, or
// if there are too many columns for a marker.
func columnsOf(made []outputFile) (columns []contract.CommitMarkerColumn) {
	lines := ""
	for _, f := range made {
		switch {
		case !isParquet(f.name):
		case lines != "" && f.schema != lines:
			return nil
		default:
			lines, columns = f.schema, f.columns
		}
	}
	text := 0
	for _, c := range columns {
		text += len(c.Name) + len(c.Type)
	}
	if len(columns) > contract.MaxColumns || text > contract.MaxColumnsText || slices.ContainsFunc(columns, func(c contract.CommitMarkerColumn) bool {
		return max(len(c.Name), len(c.Type)) > contract.MaxColumnBytes || !utf8.ValidString(c.Name+c.Type)
	}) {
		return nil
	}
	return columns
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
	if f.rows, f.schema, f.columns, err = footer(opened); err != nil {
		return fail(CodeInvalidOutput, CategoryUser, fmt.Errorf("output file %s is not a Parquet file: %w", f.name, err))
	}
	return nil
}

// schemaHash returns a hash of the columns of the output's Parquet files. If outputs have the same hash, a query can
// read them as one table. The hash is empty if there are no Parquet files.
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
