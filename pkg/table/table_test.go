package table_test

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

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestEncodeDecodeRoundTrip(t *testing.T) {
	t.Parallel()
	roundTrip(t, table.Of[state.Run]())
	roundTrip(t, table.Of[state.Task]())
	roundTrip(t, table.Of[state.Dep]())
	roundTrip(t, table.Of[state.Timer]())
	roundTrip(t, table.Of[state.Dispatch]())
	roundTrip(t, table.Of[state.Attempt]())
	roundTrip(t, table.Of[state.Heartbeat]())
	roundTrip(t, table.Of[state.RunKey]())
	roundTrip(t, table.Of[state.RunKeyConflict]())
	roundTrip(t, table.Of[state.Limit]())
	roundTrip(t, table.Of[state.Partition]())
	roundTrip(t, table.Of[state.Entry]())
}

func roundTrip[R table.Row](t *testing.T, tab *table.Table[R]) {
	t.Helper()
	t.Run(tab.Name(), func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(0, 12).Draw(t, "rows")
			var rows []*R
			for range n {
				rows = append(rows, drawRow[R](t, "row"))
			}
			rows = unique(tab, rows)
			data, err := tab.Encode(rows)
			require.NoError(t, err)
			read, err := tab.Decode(data)
			require.NoError(t, err)
			require.True(t, slices.IsSortedFunc(read, tab.Compare))
			require.Empty(t, slices.Collect(tab.Diff(rows, read)))

			again, err := tab.Encode(slices.SortedFunc(slices.Values(rows), func(a, b *R) int { return tab.Compare(b, a) }))
			require.NoError(t, err)
			require.Equal(t, data, again, "the order of the rows must not change the bytes")
		})
	})
}

func TestColumnsAreKeyFirstAndMetaLast(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, d := range table.All() {
		require.False(t, names[d.Name], d.Name)
		names[d.Name] = true
		keys := d.Keys()
		require.NotEmpty(t, keys)
		for i, c := range d.Columns {
			require.Regexp(t, `^[a-z][a-z_]*$`, c.Name)
			require.Equal(t, i < len(keys), c.Key, "%s.%s", d.Name, c.Name)
			require.False(t, c.Key && c.Nullable, "%s.%s", d.Name, c.Name)
		}
		last := d.Columns[len(d.Columns)-5:]
		require.Equal(t, "tenant_id workspace_id row_version row_seq deleted",
			last[0].Name+" "+last[1].Name+" "+last[2].Name+" "+last[3].Name+" "+last[4].Name)
	}
	require.Len(t, names, 12)
}

func TestEncodeRejectsDuplicateKeys(t *testing.T) {
	t.Parallel()
	_, err := table.Of[state.RunKey]().Encode([]*state.RunKey{{RunKey: "nightly"}, {RunKey: "nightly"}})
	require.ErrorContains(t, err, "encode run_keys: two rows have the key run_key=nightly")
}

func TestEncodeRejectsInvalidUTF8(t *testing.T) {
	t.Parallel()
	_, err := table.Of[state.RunKey]().Encode([]*state.RunKey{{RunKey: "a\xff"}})
	require.ErrorContains(t, err, "column run_key")
}

func TestEncodeDoesNotReorderInput(t *testing.T) {
	t.Parallel()
	rows := []*state.RunKey{{RunKey: "b"}, {RunKey: "a"}}
	_, err := table.Of[state.RunKey]().Encode(rows)
	require.NoError(t, err)
	require.Equal(t, "b", rows[0].RunKey)
}

func TestEncodeOfFewRowsIsSmall(t *testing.T) {
	t.Parallel()
	data, err := table.Of[state.Task]().Encode(sampleTasks(50))
	require.NoError(t, err)
	require.Less(t, len(data), 9<<10)
}

func TestDecodeReadsManyRowGroups(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.Task]()
	rows := sampleTasks(130_000)
	data, err := tab.Encode(rows)
	require.NoError(t, err)
	reader, err := file.NewParquetReader(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, 2, reader.NumRowGroups())
	read, err := tab.Decode(data)
	require.NoError(t, err)
	require.Empty(t, slices.Collect(tab.Diff(rows, read)))
}

// limitFile builds a file of table limits like another build.
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

// oldestLimits returns a file with only the required columns, except name.
func oldestLimits() limitFile {
	return limitFile{root: "limits"}.
		with(schema.NewInt64Node("row_seq", parquet.Repetitions.Required, -1), []int64{7}).
		with(schema.NewBooleanNode("deleted", parquet.Repetitions.Required, -1), []bool{false}).
		with(text("scope"), []parquet.ByteArray{[]byte("pool")})
}

func TestDecodeSetsMissingColumnsToZero(t *testing.T) {
	t.Parallel()
	data := oldestLimits().with(text("name"), []parquet.ByteArray{[]byte("gpu")}).bytes(t)
	rows, err := table.Of[state.Limit]().Decode(data)
	require.NoError(t, err)
	require.Equal(t, []*state.Limit{{Scope: "pool", Name: "gpu", Meta: state.Meta{Seq: 7}}}, rows)
}

func TestDecodeIgnoresUnknownColumns(t *testing.T) {
	t.Parallel()
	data := oldestLimits().
		with(text("name"), []parquet.ByteArray{[]byte("gpu")}).
		with(schema.NewInt32Node("burst", parquet.Repetitions.Required, -1), []int32{3}).bytes(t)
	rows, err := table.Of[state.Limit]().Decode(data)
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

func TestDecodeRejectsInvalidFiles(t *testing.T) {
	t.Parallel()
	name := []parquet.ByteArray{[]byte("gpu")}
	attempts, err := table.Of[state.Attempt]().Encode(nil)
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
			rows, err := table.Of[state.Limit]().Decode(c.data)
			require.ErrorContains(t, err, c.err)
			require.Nil(t, rows)
		})
	}
}

func TestDecodeRejectsTruncatedFile(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.Limit]()
	data, err := tab.Encode([]*state.Limit{{Scope: "workspace", Slots: 4, Meta: state.Meta{Seq: 1}}})
	require.NoError(t, err)
	for size := range data {
		_, err := tab.Decode(data[:size])
		require.Error(t, err, "%d of %d bytes", size, len(data))
	}
}

func TestCanonicalHasEveryColumn(t *testing.T) {
	t.Parallel()
	row := &state.Dep{
		RunID: "r", Upstream: "a", Downstream: "b\n", SatisfiedAt: 0,
		Meta: state.Meta{Tenant: "acme", Workspace: "prod", Version: "v", Seq: 3},
	}
	require.Equal(t, `{"run_id":"r","upstream_task_key":"a","downstream_task_key":"b\n","satisfied":false,"resolution":null,`+
		`"satisfied_at":null,"satisfying_attempt":0,"tenant_id":"acme","workspace_id":"prod","row_version":"v","row_seq":3,"deleted":false}`,
		table.Of[state.Dep]().Canonical(row))
}

func TestDiffNamesRowsAndColumns(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.RunKey]()
	want := []*state.RunKey{{RunKey: "b", RunID: "1"}, {RunKey: "a"}, {RunKey: "c", RunID: "3"}}
	got := []*state.RunKey{{RunKey: "b", RunID: "2", ExpiresAt: 1_000_000}, {RunKey: "c", RunID: "3"}, {RunKey: "d"}}
	lines := slices.Collect(tab.Diff(want, got))
	require.Len(t, lines, 3)
	require.Contains(t, lines[0], "run_keys run_key=a: missing, want {")
	require.Equal(t, `run_keys run_key=b: run_id is "2", want "1"; expires_at is "1970-01-01T00:00:01.000000Z", want ""`, lines[1])
	require.Contains(t, lines[2], "run_keys run_key=d: unexpected, got {")
}
