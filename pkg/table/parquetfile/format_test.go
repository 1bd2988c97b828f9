package parquetfile_test

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

var format = &parquetfile.Format{}

func TestEncodeDecodeRoundTrip(t *testing.T) {
	t.Parallel()
	for _, d := range state.Declarations() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				rows := tabletest.DrawList(t, d)
				data, err := d.Encode(format, rows)
				require.NoError(t, err)
				read, err := d.Decode(format, data)
				require.NoError(t, err)
				want, err := d.Encode(table.JSON{}, rows)
				require.NoError(t, err)
				got, err := d.Encode(table.JSON{}, read)
				require.NoError(t, err)
				require.Equal(t, string(want), string(got), "every column is stored")
				again, err := d.Encode(format, read)
				require.NoError(t, err)
				require.Equal(t, data, again, "the order of the rows must not change the bytes")
			})
		})
	}
}

func TestEncodeRejectsDuplicateKeys(t *testing.T) {
	t.Parallel()
	_, err := table.Of[state.RunKey]("run_keys").Encode(format, []*state.RunKey{{RunKey: "nightly"}, {RunKey: "nightly"}})
	require.ErrorContains(t, err, "encode run_keys: two rows have the key run_key=nightly")
}

func TestEncodeRejectsInvalidUTF8(t *testing.T) {
	t.Parallel()
	_, err := table.Of[state.RunKey]("run_keys").Encode(format, []*state.RunKey{{RunKey: "a\xff"}})
	require.ErrorContains(t, err, "column run_key")
}

func TestEncodeDoesNotReorderInput(t *testing.T) {
	t.Parallel()
	rows := []*state.RunKey{{RunKey: "b"}, {RunKey: "a"}}
	_, err := table.Of[state.RunKey]("run_keys").Encode(format, rows)
	require.NoError(t, err)
	require.Equal(t, "b", rows[0].RunKey)
}

func TestEncodeOfFewRowsIsSmall(t *testing.T) {
	t.Parallel()
	data, err := table.Of[state.Task]("tasks").Encode(format, tabletest.SampleTasks(50))
	require.NoError(t, err)
	require.Less(t, len(data), 10<<10) // a row has about 50 columns
}

func TestDecodeReadsManyRowGroups(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.Task]("tasks")
	rows := tabletest.SampleTasks(20_000)
	data, err := tab.Encode(format, rows)
	require.NoError(t, err)
	reader, err := file.NewParquetReader(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, 10, reader.NumRowGroups())
	read, err := tab.Decode(format, data)
	require.NoError(t, err)
	require.Empty(t, slices.Collect(tab.Diff(rows, read)))
}

// limitFile describes a file of the table "limits" that a build with other columns has written.
type limitFile struct {
	root   string
	fields schema.FieldList
	values []any
}

func (f limitFile) with(node schema.Node, values any) limitFile {
	f.fields = append(slices.Clip(f.fields), node)
	f.values = append(slices.Clip(f.values), values)
	return f
}

func (f limitFile) bytes(t *testing.T, options ...parquet.WriterProperty) []byte {
	t.Helper()
	var out bytes.Buffer
	root, err := schema.NewGroupNode(f.root, parquet.Repetitions.Required, f.fields, -1)
	require.NoError(t, err)
	options = append([]parquet.WriterProperty{parquet.WithCompression(compress.Codecs.Zstd), parquet.WithRootName(f.root)}, options...)
	w := file.NewParquetWriter(&out, root, file.WithWriterProps(parquet.NewWriterProperties(options...)))
	group, err := w.AppendRowGroupChecked()
	require.NoError(t, err)
	for _, values := range f.values {
		column, err := group.NextColumn()
		require.NoError(t, err)
		var levels []int16
		if column.Descr().MaxDefinitionLevel() > 0 {
			levels = []int16{1}
			if reflect.ValueOf(values).Len() == 0 {
				levels = []int16{0}
			}
		}
		switch column := column.(type) {
		case *file.ByteArrayColumnChunkWriter:
			_, err = column.WriteBatch(values.([]parquet.ByteArray), levels, nil)
		case *file.Int64ColumnChunkWriter:
			_, err = column.WriteBatch(values.([]int64), levels, nil)
		case *file.Int32ColumnChunkWriter:
			_, err = column.WriteBatch(values.([]int32), levels, nil)
		case *file.BooleanColumnChunkWriter:
			_, err = column.WriteBatch(values.([]bool), levels, nil)
		}
		require.NoError(t, err)
		require.NoError(t, column.Close())
	}
	require.NoError(t, group.Close())
	require.NoError(t, w.Close())
	return out.Bytes()
}

func text(name string) schema.Node {
	return schema.Must(schema.NewPrimitiveNodeLogical(name, parquet.Repetitions.Required, schema.StringLogicalType{}, parquet.Types.ByteArray, -1, -1))
}

func optionalText(name string) schema.Node {
	return schema.Must(schema.NewPrimitiveNodeLogical(name, parquet.Repetitions.Optional, schema.StringLogicalType{}, parquet.Types.ByteArray, -1, -1))
}

// oldestLimits returns a file without optional columns. It has all required columns except "name".
func oldestLimits() limitFile {
	return limitFile{root: "limits"}.
		with(schema.NewInt64Node("row_seq", parquet.Repetitions.Required, -1), []int64{7}).
		with(schema.NewBooleanNode("deleted", parquet.Repetitions.Required, -1), []bool{false}).
		with(text("scope"), []parquet.ByteArray{[]byte("pool")})
}

func TestDecodeSetsMissingColumnsToZero(t *testing.T) {
	t.Parallel()
	data := oldestLimits().with(text("name"), []parquet.ByteArray{[]byte("gpu")}).bytes(t)
	rows, err := table.Of[state.Limit]("limits").Decode(format, data)
	require.NoError(t, err)
	require.Equal(t, []*state.Limit{{Scope: "pool", Name: "gpu", Meta: state.Meta{Seq: 7}}}, rows)
}

func TestDecodeIgnoresUnknownColumns(t *testing.T) {
	t.Parallel()
	data := oldestLimits().
		with(text("name"), []parquet.ByteArray{[]byte("gpu")}).
		with(schema.NewInt32Node("burst", parquet.Repetitions.Required, -1), []int32{3}).bytes(t)
	rows, err := table.Of[state.Limit]("limits").Decode(format, data)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

func TestDecodeRejectsInvalidFiles(t *testing.T) {
	t.Parallel()
	name := []parquet.ByteArray{[]byte("gpu")}
	attempts, err := table.Of[state.Attempt]("attempts").Encode(format, nil)
	require.NoError(t, err)
	for what, c := range map[string]struct {
		data []byte
		err  string
	}{
		"missing key column":  {oldestLimits().bytes(t), "decode limits: column name: missing"},
		"wrong column type":   {oldestLimits().with(schema.NewInt32Node("name", parquet.Repetitions.Required, -1), []int32{1}).bytes(t), "column name: must be VARCHAR, got INT32"},
		"NULL in the key":     {oldestLimits().with(optionalText("name"), []parquet.ByteArray{}).bytes(t), "column name: row 0: must not be NULL"},
		"duplicate column":    {oldestLimits().with(text("name"), name).with(text("name"), name).bytes(t), "column name: duplicate"},
		"unknown compression": {oldestLimits().with(text("name"), name).bytes(t, parquet.WithCompression(compress.Codecs.Gzip)), "not zstd"},
		"another table":       {attempts, "the file belongs to table attempts"},
		"empty file":          {nil, "decode limits: parquet"},
		"not Parquet":         {bytes.Repeat([]byte("PAR1"), 9), "decode limits: "},
		"not UTF-8":           {oldestLimits().with(text("name"), []parquet.ByteArray{[]byte("\xff")}).bytes(t), "is not UTF-8"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rows, err := table.Of[state.Limit]("limits").Decode(format, c.data)
			require.ErrorContains(t, err, c.err)
			require.Nil(t, rows)
		})
	}
}

func TestDecodeRejectsTruncatedFile(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.Limit]("limits")
	data, err := tab.Encode(format, []*state.Limit{{Scope: "workspace", Slots: 4, Meta: state.Meta{Seq: 1}}})
	require.NoError(t, err)
	for size := range data {
		_, err := tab.Decode(format, data[:size])
		require.Error(t, err, "%d of %d bytes", size, len(data))
	}
}
