package render_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

func sample() render.Result {
	at := time.Date(2025, 1, 15, 8, 30, 0, 120_000_000, time.FixedZone("", 3600))
	return render.Of([]string{"name", "n", "at"}, [][]any{
		{"raw/orders", int64(7), at},
		{"日本", int32(1234), nil},
		{"é", nil, at},
	})
}

func write(t *testing.T, result render.Result, opts render.Options) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, render.Write(&out, result, opts))
	return out.String()
}

func TestTableAlignsTextLeftNumbersRight(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.Join([]string{
		"name           n  at",
		"raw/orders     7  2025-01-15T07:30:00.12Z",
		"日本        1234  NULL",
		"é           NULL  2025-01-15T07:30:00.12Z",
		"",
	}, "\n"), write(t, sample(), render.Options{Null: "NULL"}))
}

func TestTableFitsTerminal(t *testing.T) {
	t.Parallel()
	out := write(t, sample(), render.Options{Width: 24})
	require.Equal(t, "name         n  at", strings.Split(out, "\n")[0])
	require.Contains(t, out, "raw/ord…     7  2025-01…")
}

func TestTableEscapesControlCharacters(t *testing.T) {
	t.Parallel()
	out := write(t, render.Of([]string{"e"}, [][]any{{"a\nb\t\x1b[31m"}}), render.Options{})
	require.Equal(t, "e\na\\nb\\t\ufffd[31m\n", out)
}

func TestTableWritesAllRows(t *testing.T) {
	t.Parallel()
	result := render.Result{Columns: []string{"n"}, Rows: func(yield func([]any, error) bool) {
		for i := range 2500 {
			if !yield([]any{i}, nil) {
				return
			}
		}
	}}
	out := write(t, result, render.Options{})
	require.Equal(t, 2501, strings.Count(out, "\n"))
	require.True(t, strings.HasSuffix(out, "\n2499\n"))
}

func TestJSONWritesObjectsInColumnOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, `[
  {"name":"raw/orders","n":7,"at":"2025-01-15T07:30:00.12Z"},
  {"name":"日本","n":1234,"at":null},
  {"name":"é","n":null,"at":"2025-01-15T07:30:00.12Z"}
]
`, write(t, sample(), render.Options{Format: render.JSON}))
	require.Equal(t, "[]\n", write(t, render.Of([]string{"a"}, nil), render.Options{Format: render.JSON}))
}

func TestCSVWritesNULLAsEmpty(t *testing.T) {
	t.Parallel()
	require.Equal(t, "name,n,at\nraw/orders,7,2025-01-15T07:30:00.12Z\n日本,1234,\né,,2025-01-15T07:30:00.12Z\n",
		write(t, sample(), render.Options{Format: render.CSV}))
}

// Most readers of CSV skip empty lines, and so would lose rows.
func TestCSVWritesNoEmptyLines(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a\n\"\"\nx\n\"\"\n", write(t, render.Of([]string{"a"}, [][]any{{nil}, {"x"}, {""}}), render.Options{Format: render.CSV}))
}

func TestYAMLKeepsTextExactly(t *testing.T) {
	t.Parallel()
	alphabet := []string{
		" ", "\n", "\t", "\r", "a", "1", ":", "-", "#", "'", "\"", "\\", "é", "\u0085", "\u2028", "|", ">", "{", "[", ",", "?", "!", "&", "*",
		"%", "@", "`", "~", "y", "no", "null", "0x1", ".5", "=", "<<", "2001-01-01", "\ufeff", "\x00", "\x7f", "😀", "1e3",
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		var text strings.Builder
		for range random.IntN(5) {
			text.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		want := []map[string]any{{"a": text.String(), "b": map[string]any{text.String(): []any{text.String()}}}}
		fields := render.Fields{{Name: text.String(), Value: []any{text.String()}}}
		var read []map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(write(t, render.Of([]string{"a", "b"}, [][]any{{text.String(), fields}}), render.Options{Format: render.YAML})), &read), "%q", text.String())
		require.Equal(t, want, read)
		var out strings.Builder
		require.NoError(t, render.Document(&out, render.YAML, want))
		clear(read)
		require.NoError(t, yaml.Unmarshal([]byte(out.String()), &read), "%q", text.String())
		require.Equal(t, want, read)
	}
}

func TestYAMLQuotesTextsOfYAML11(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"no", "ON", "y", "1:20", "-1:20.5", "<<", "="} {
		require.Equal(t, "- \""+text+"\": \""+text+"\"\n", write(t, render.Of([]string{text}, [][]any{{text}}), render.Options{Format: render.YAML}))
	}
}

func TestYAMLWritesListOfMappings(t *testing.T) {
	t.Parallel()
	require.Equal(t, "- a: \"1\"\n  b: 1\n  c: null\n  d: [1.50, x]\n  e:\n    k: true\n- a: \"\"\n  b: 2\n  c: 1.5\n  d: []\n  e: {}\n",
		write(t, render.Of([]string{"a", "b", "c", "d", "e"}, [][]any{
			{"1", 1, nil, []any{render.Number("1.50"), "x"}, render.Fields{{Name: "k", Value: true}}},
			{"", 2, 1.5, []any{}, render.Fields{}},
		}), render.Options{Format: render.YAML}))
	require.Equal(t, "[]\n", write(t, render.Of([]string{"a"}, nil), render.Options{Format: render.YAML}))
}

func TestEveryFormatWritesEveryCellType(t *testing.T) {
	t.Parallel()
	result := render.Of([]string{"list", "struct", "decimal", "nan", "bytes", "html"}, [][]any{{
		[]any{int64(1), nil, "b"},
		render.Fields{{Name: "b", Value: 1}, {Name: "a", Value: []any{true}}},
		render.Number("170141183460469231731687303715884105727.50"),
		math.NaN(),
		[]byte{0, 255},
		"<&>",
	}})
	out := write(t, result, render.Options{Format: render.JSON})
	require.True(t, json.Valid([]byte(out)))
	require.Contains(t, out, `{"list":[1,null,"b"],"struct":{"b":1,"a":[true]},"decimal":170141183460469231731687303715884105727.50,"nan":"NaN","bytes":"\\x00ff","html":"<&>"}`)
	require.Contains(t, write(t, result, render.Options{}), "[1, NULL, b]  {b: 1, a: [true]}  170141183460469231731687303715884105727.50  NaN  \\x00ff  <&>")
	require.Contains(t, write(t, result, render.Options{Format: render.CSV}), `"[1,null,""b""]","{""b"":1,""a"":[true]}",`)
}

func TestFloatsOfUsualSizeHaveNoExponent(t *testing.T) {
	t.Parallel()
	result := func() render.Result {
		return render.Of([]string{"a", "b", "c", "d", "e", "f"}, [][]any{{123456789012345.0, 1e6, 1e15, 0.000001, 1e-7, float32(12345678)}})
	}
	require.Equal(t, "a,b,c,d,e,f\n123456789012345,1000000,1e+15,0.000001,1e-07,12345678\n", write(t, result(), render.Options{Format: render.CSV}))
	require.Equal(t, "- a: 123456789012345.0\n  b: 1000000.0\n  c: 1e+15\n  d: 0.000001\n  e: 1e-07\n  f: 12345678.0\n",
		write(t, result(), render.Options{Format: render.YAML}))
}

func TestWriteNumbersDuplicateColumns(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a,a_2,b,a_3\n1,2,3,4\n",
		write(t, render.Of([]string{"a", "a", "b", "a"}, [][]any{{1, 2, 3, 4}}), render.Options{Format: render.CSV}))
}

func TestWriteReturnsErrorAfterRows(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, format := range []render.Format{render.Table, render.JSON, render.CSV, render.YAML} {
		var out strings.Builder
		err := render.Write(&out, render.Result{Columns: []string{"a"}, Rows: func(yield func([]any, error) bool) {
			if yield([]any{"first"}, nil) {
				yield(nil, broken)
			}
		}}, render.Options{Format: format})
		require.ErrorIs(t, err, broken, format)
		require.Contains(t, out.String(), "first", format)
	}
}

func TestParseFormatListsFormats(t *testing.T) {
	t.Parallel()
	_, err := render.ParseFormat("xml")
	require.EqualError(t, err, `unknown output format "xml": choose one of table, json, yaml, csv`)
	require.Error(t, render.Write(&strings.Builder{}, sample(), render.Options{Format: "xml"}))
}

func TestTableNeverTruncatesNumbers(t *testing.T) {
	t.Parallel()
	result := render.Of([]string{"text", "n", "m"}, [][]any{{strings.Repeat("x", 60), int64(123456789), render.Number("98765432101234567890")}})
	out := write(t, result, render.Options{Width: 40})
	require.Equal(t, "text             n                     m\nxxxxxx…  123456789  98765432101234567890\n", out)
}

func TestTableNeverTruncatesIDs(t *testing.T) {
	const id = "01M8EZNCEA77M9D45H4TNA0QRV"
	rows := [][]any{{id, "nightly", "SUCCEEDED", id}, {id, "a long name of a schedule", "FAILED", ""}}
	out := write(t, render.Of([]string{"run", "schedule", "state", "retry_of"}, rows), render.Options{Width: 70})
	require.Equal(t, `run                         schedule  …  retry_of
01M8EZNCEA77M9D45H4TNA0QRV  nightly   …  01M8EZNCEA77M9D45H4TNA0QRV
01M8EZNCEA77M9D45H4TNA0QRV  a long …  …
(3 of 4 columns shown; -o json shows all)
`, out)
}

func TestTableOmitsOptionalColumnsFirst(t *testing.T) {
	t.Parallel()
	columns := []render.Column[int]{
		{Name: "name", Value: func(int) any { return "clean/orders" }},
		{Name: "kind", Optional: true, Value: func(int) any { return "sql" }},
		{Name: "stale", Value: func(int) any { return 1 }},
		{Name: "last_made_at", Optional: true, Value: func(int) any { return "2025-01-15T06:00:00Z" }},
		{Name: "reads", Optional: true, Value: func(int) any { return "raw/orders" }},
	}
	rows := render.List(render.Table, columns, []int{1})
	for width, want := range map[int]string{
		80: "name          kind  stale  last_made_at          reads\nclean/orders  sql       1  2025-01-15T06:00:00Z  raw/orders\n",
		50: "name          kind  stale  last_made_at          …\nclean/orders  sql       1  2025-01-15T06:00:00Z  …\n(4 of 5 columns shown; -o json shows all)\n",
		40: "name          kind  stale  …\nclean/orders  sql       1  …\n(3 of 5 columns shown; -o json shows all)\n",
		25: "name          …  stale  …\nclean/orders  …      1  …\n(2 of 5 columns shown; -o json shows all)\n",
	} {
		require.Equal(t, want, write(t, rows, render.Options{Width: width}), width)
	}
}

func TestTableOmitsColumnsThatDoNotFit(t *testing.T) {
	t.Parallel()
	var names []string
	var row []any
	for i := range 40 {
		names = append(names, "c"+strings.Repeat("x", i%7))
		row = append(row, int64(i)*1_000_000)
	}
	for _, width := range []int{30, 60, 80, 120} {
		out := write(t, render.Of(names, [][]any{row, row}), render.Options{Width: width})
		lines := strings.Split(out, "\n")
		require.Len(t, lines, 5)
		require.Contains(t, lines[0], "…")
		require.Regexp(t, `^\(\d+ of 40 columns shown; -o json shows all\)$`, lines[3])
		for _, line := range lines[:3] {
			require.LessOrEqual(t, utf8.RuneCountInString(line), width)
			require.Greater(t, utf8.RuneCountInString(line), width-24, "as many columns as fit: %q", line)
		}
		require.True(t, strings.HasPrefix(lines[1], "0"), "the first column is shown: %q", lines[1])
		require.True(t, strings.HasSuffix(lines[1], "39000000"), "the last column is shown: %q", lines[1])
	}
}
