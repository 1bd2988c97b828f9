package partcolumn_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/space"
)

var day = []space.Column{{Name: "date", Type: "DATE"}}

// part returns a partition with one file. The parameter text is its partition key, such as date=2025-01-15.
func part(text, schema string, columns ...string) partcolumn.Part {
	name, value, _ := strings.Cut(text, "=")
	key := ids.Partition{name: value}.Key()
	return partcolumn.Part{Key: key, Files: []string{"/o/" + value + ".parquet"}, Columns: columns, Schema: schema}
}

func read(t *testing.T, folder string, columns []space.Column, parts ...partcolumn.Part) *partcolumn.View {
	t.Helper()
	v, err := partcolumn.Read(parts, columns, folder)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestReadOnePartitionUsesConstants(t *testing.T) {
	v := read(t, "/l", day, part(`date=2025-01-15`, "s", "x"), partcolumn.Part{Key: `{"date":"2025-01-16"}`})
	want := `SELECT *, CAST('2025-01-15' AS DATE) AS "date" FROM read_parquet(['/o/2025-01-15.parquet'], union_by_name = true, hive_partitioning = false)`
	if v.SQL != want || len(v.Links)+len(v.Overlaps) != 0 {
		t.Errorf("got %+v, want %s", v, want)
	}
}

func TestReadLinksPartitionsWithOneSchema(t *testing.T) {
	v := read(t, "/l", day, part(`date=2025-01-15`, "s", "x"), part(`date=2025-01-16`, "s", "x"))
	want := "SELECT * FROM read_parquet(['/l/date=%32025%2D01%2D15/2025-01-15.parquet', '/l/date=%32025%2D01%2D16/2025-01-16.parquet'], " +
		"union_by_name = false, hive_partitioning = true, hive_types = {'date': DATE})"
	if v.SQL != want || len(v.Links) != 2 || v.Links[1] != (partcolumn.Link{Path: "/l/date=%32025%2D01%2D16", Target: "/o"}) {
		t.Errorf("got %+v, want %s", v, want)
	}
}

// A file may contain the dimension as a column whose values differ from the partition key. So DuckDB must not use the
// key to skip such a file.
func TestReadNeverLinksFilesWithTheColumn(t *testing.T) {
	v := read(t, "/l", day, part("date=2025-01-15", "a", "DATE", "x"), part("date=2025-01-16", "b", "x"), part("date=2025-01-17", "b", "x"))
	if len(v.Links) != 2 || len(v.Overlaps) != 1 {
		t.Fatalf("got %d links and %d overlaps, want 2 and 1: %+v", len(v.Links), len(v.Overlaps), v)
	}
	own, keyed, _ := strings.Cut(v.SQL, "\nUNION ALL BY NAME\n")
	if own != "SELECT * FROM "+partcolumn.ReadParquet([]string{"/o/2025-01-15.parquet"}) || strings.Contains(keyed, "2025-01-15") {
		t.Errorf("the file with a column of its own is read by its key: %s", v.SQL)
	}
	if v.Overlaps[0].Query != `SELECT "date" FROM (`+own+`)` {
		t.Errorf("overlap: %s", v.Overlaps[0].Query)
	}
	if v = read(t, "/l", day, part("date=2025-01-15", "a", "date"), part("date=2025-01-16", "b", "Date")); len(v.Links)+len(v.Overlaps) != 0 ||
		strings.Contains(v.SQL, "UNION") || !strings.Contains(v.SQL, "hive_partitioning = false") {
		t.Errorf("files that all have the column: %+v", v)
	}
}

func TestReadComparesSchemas(t *testing.T) {
	for _, schemas := range [][2]string{{"a", "b"}, {"", ""}, {"a", ""}} {
		v := read(t, "/l", day, part("date=2025-01-15", schemas[0], "x"), part("date=2025-01-16", schemas[1], "x", "y"))
		if !strings.Contains(v.SQL, "union_by_name = true") {
			t.Errorf("schemas %q: %s", schemas, v.SQL)
		}
	}
}

func TestReadEscapesValues(t *testing.T) {
	columns := []space.Column{{Name: "r", Type: "VARCHAR"}}
	long := strings.Repeat("ü", 128)
	special := part("r=a'b/../=c", "s", "x")
	special.Files = []string{"/o/x.parquet"}
	v := read(t, "/l", columns, part("r=NULL", "s", "x"), special, part("r="+long, "s", "x"))
	if got := v.Links[0].Path; got != "/l/r=%4EULL" {
		t.Errorf("NULL: %s", got)
	}
	if got := v.Links[1].Path; got != "/l/r=%61%27b%2F%2E%2E%2F%3Dc" {
		t.Errorf("special characters: %s", got)
	}
	if len(v.Links) != 2 || !strings.Contains(v.SQL, "CAST('"+long+"' AS VARCHAR) AS \"r\"") {
		t.Errorf("a name that is too long for a folder: %s", v.SQL)
	}
	v = read(t, "/tenant=a", columns, part("r=a'b", "s", "x"), part("r=c", "s", "x"))
	if len(v.Links) != 0 || strings.Count(v.SQL, "UNION ALL BY NAME") != 1 || !strings.Contains(v.SQL, "CAST('a''b' AS VARCHAR)") {
		t.Errorf("a folder that DuckDB reads as a column: %+v", v)
	}
}

func TestReadLinksFilesOfSeveralFolders(t *testing.T) {
	parts := []partcolumn.Part{part("date=2025-01-15", "s", "x"), part("date=2025-01-16", "s", "x")}
	parts[0].Files = []string{"/o/a/x.parquet", "/o/b/x.parquet"}
	parts[1].Files = []string{"/o/c/[x]*.parquet"}
	v := read(t, "/l", day, parts...)
	want := []partcolumn.Link{
		{Path: "/l/date=%32025%2D01%2D15/0.parquet", Target: "/o/a/x.parquet"},
		{Path: "/l/date=%32025%2D01%2D15/1.parquet", Target: "/o/b/x.parquet"},
		{Path: "/l/date=%32025%2D01%2D16/0.parquet", Target: "/o/c/[x]*.parquet"},
	}
	if !slices.Equal(v.Links, want) {
		t.Errorf("got %+v, want %+v", v.Links, want)
	}
}

func TestReadSeparatesDimensions(t *testing.T) {
	columns := []space.Column{{Name: "date", Type: "DATE"}, {Name: "r", Type: "VARCHAR"}}
	at := func(date, r string, names ...string) partcolumn.Part {
		return partcolumn.Part{Key: ids.Partition{"date": date, "r": r}.Key(), Files: []string{"/o"}, Columns: names, Schema: "s"}
	}
	v := read(t, "/l", columns, at("2025-01", "a", "r"), at("2025-02", "b", "r"), at("2025-02", "c"), at("2025-03", "c"))
	for _, want := range []string{
		"hive_types = {'date': DATE})", "hive_types = {'date': DATE, 'r': VARCHAR})",
		"'/l/1/date=%32025%2D02%2D01/o'", "'/l/date=%32025%2D02%2D01/r=%63/o'",
	} {
		if !strings.Contains(v.SQL, want) {
			t.Errorf("%s lacks %s", v.SQL, want)
		}
	}
	if len(v.Overlaps) != 1 || v.Overlaps[0].Name != "r" {
		t.Errorf("overlaps: %+v", v.Overlaps)
	}
}

func TestReadRejectsOtherDimensions(t *testing.T) {
	if _, err := partcolumn.Read([]partcolumn.Part{part("hour=1", "s", "x")}, day, "/l"); err == nil {
		t.Error("a key without the dimension is accepted")
	}
	if _, err := partcolumn.Read([]partcolumn.Part{{Key: `{"date":"2025-01-01"}`}}, day, "/l"); err == nil {
		t.Error("no files are accepted")
	}
}

func TestNamesDoubtsNestedColumns(t *testing.T) {
	for paths, want := range map[string]bool{"x y": true, "date x": true, "x.a x.b": true, "date.a x": false, "Date.list.element": false, "": false} {
		if _, known := partcolumn.Names(strings.Fields(paths), day); known != want {
			t.Errorf("%q: known is %t, want %t", paths, known, want)
		}
	}
}
