package textrows_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/servo-orchestration/servo/pkg/textrows"
)

// read formats the rows of a text.
func read(text string, o textrows.Options) string {
	var b strings.Builder
	err := textrows.Read(strings.NewReader(text), o, func(names []string) { fmt.Fprintf(&b, "%q ", names) }, func(r *textrows.Row) error {
		b.WriteString(r.At + ":")
		for i, v := range r.Values {
			text := v.Text
			if v.Kind == textrows.Null {
				text = "∅"
			}
			b.WriteString(" " + r.Names[i] + "=" + text)
		}
		b.WriteString("; ")
		return nil
	})
	if err != nil {
		b.WriteString("! " + err.Error())
	}
	return strings.TrimSpace(b.String())
}

func TestReadCSV(t *testing.T) {
	for _, c := range []struct {
		text, want string
		o          textrows.Options
	}{
		{"a,b\n1,\n", `["a" "b"] line 2: a=1 b=∅;`, textrows.Options{}},
		{"\ufeffa\r\n\"x\r\ny\"\r\nz\r\n", `["a"] line 2: a=x` + "\r\n" + `y; line 4: a=z;`, textrows.Options{}},
		{"a,b\r\n\"\r\n\"\"\r\r\n\n\",x\r\n", `["a" "b"] line 2: a=` + "\r\n\"\r\r\n\n" + ` b=x;`, textrows.Options{}},
		{"a;b\n1;n/a\n", `["a" "b"] line 2: a=1 b=∅;`, textrows.Options{Delimiter: ';', Nulls: []string{"n/a"}}},
		{"1,2\n", `["column0" "column1"] line 1: column0=1 column1=2;`, textrows.Options{NoHeader: true}},
		{"", "! the file is empty: write at least a header", textrows.Options{}},
		{"a,b\n1,2\n3\n", `["a" "b"] line 2: a=1 b=2; ! line 3: expected 2 fields, as in the first line`, textrows.Options{}},
		{"a,b\n1,2,3\n", `["a" "b"] ! line 2: expected 2 fields, as in the first line`, textrows.Options{}},
		{"a\n\"x\n", `["a"] ! line 2: text follows the closing quote of a field, or a field has no closing quote: end the field with a quote, and write each quote inside it twice`, textrows.Options{}},
		{"a\nx\"y\n", `["a"] ! line 2: a quote inside a field: write the field in quotes and the quote twice`, textrows.Options{}},
		{"a,A\n", `! line 1: two columns are called "A"`, textrows.Options{}},
		{"a,\n", `! line 1: column 2 has no name: write a header, or set output.header: false`, textrows.Options{}},
		{"a\n\xe9\n", `["a"] ! line 2: field 1 is not UTF-8`, textrows.Options{}},
		{"# a\n1\n", `["# a"] line 2: # a=1;`, textrows.Options{}},
	} {
		c.o.Format = textrows.CSV
		if got := read(c.text, c.o); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
	if got := read("a\n\""+strings.Repeat("x", 17<<20), textrows.Options{Format: textrows.CSV}); !strings.Contains(got, "more than 16 MiB") {
		t.Errorf("a quote that is not closed: %.200s", got)
	}
}

// A line that is longer than a buffer is read in parts, which may end between "\r" and "\n".
func TestReadCSVKeepsLineBreaksOfLongLines(t *testing.T) {
	for n := 4080; n < 4110; n++ {
		field := strings.Repeat("x", n) + "\r\n" + strings.Repeat("y", 5000) + "\r\n"
		if got := read("a\r\n\""+field+"\"\r\nz\r\n", textrows.Options{Format: textrows.CSV}); got != `["a"] line 2: a=`+field+"; line 5: a=z;" {
			t.Fatalf("%d bytes: the field was changed", n)
		}
	}
}

func TestReadJSON(t *testing.T) {
	for _, c := range [][2]string{
		{`[{"a":1,"b":"x"},{"b":null,"c":{"d":[1]}}]`, `record 1: a=1 b=x; record 2: b=∅ c={"d":[1]};`},
		{`{"a":"\u00fc\n"} {"a":1.50}`, "record 1: a=ü\n; record 2: a=1.50;"},
		{`[]`, ``},
		{``, ``},
		{`[1]`, `! record 1: it is not a JSON object`},
		{`[{"a":1}`, `record 1: a=1; ! record 2:`},
		{`[{"a":1}] x`, `record 1: a=1; ! unexpected data after the array`},
		{`{"a":1,"a":2}`, `! record 1:`},
	} {
		if got := read(c[0], textrows.Options{Format: textrows.JSON}); got != c[1] && (!strings.HasSuffix(c[1], ":") || !strings.HasPrefix(got, c[1])) {
			t.Errorf("%s:\ngot  %s\nwant %s", c[0], got, c[1])
		}
	}
}

func TestReadLinesOfJSON(t *testing.T) {
	for _, c := range [][2]string{
		{"{\"a\":1}\n\n{\"a\":true}", "line 1: a=1; line 3: a=true;"},
		{"{\"a\":1}\n{\"a\":\n", "line 1: a=1; ! line 2:"},
		{"{\"a\":1} {}\n", "! line 1: unexpected data after the object"},
		{"[1]\n", "! line 1: it is not a JSON object"},
	} {
		if got := read(c[0], textrows.Options{Format: textrows.NDJSON}); got != c[1] && (!strings.HasSuffix(c[1], ":") || !strings.HasPrefix(got, c[1])) {
			t.Errorf("%q:\ngot  %s\nwant %s", c[0], got, c[1])
		}
	}
}

func TestTypeHoldsAllValues(t *testing.T) {
	for _, c := range []struct {
		kind   textrows.Kind
		values string
		want   string
	}{
		{textrows.Text, "", "VARCHAR"},
		{textrows.Text, "true FALSE", "BOOLEAN"},
		{textrows.Text, "0 -5 9223372036854775807", "BIGINT"},
		{textrows.Text, "1 9223372036854775808", "DECIMAL(38,0)"},
		{textrows.Text, "1 " + strings.Repeat("9", 39), "VARCHAR"},
		{textrows.Text, "00123 4", "VARCHAR"},
		{textrows.Text, "1 n/a", "VARCHAR"},
		{textrows.Text, "1 0.5 1e5 -0.30000000000000004", "DOUBLE"},
		{textrows.Text, "0.5 9007199254740993", "VARCHAR"},
		{textrows.Text, "0.12345678901234567890", "VARCHAR"},
		{textrows.Text, "1e999", "VARCHAR"},
		{textrows.Text, "NaN", "VARCHAR"},
		{textrows.Text, "1 true", "VARCHAR"},
		{textrows.Text, "2025-01-01 2024-02-29", "DATE"},
		{textrows.Text, "2025-02-29", "VARCHAR"},
		{textrows.Text, "2025-01-01T10:00:00 2025-01-01T10:00:00.123456", "TIMESTAMP"},
		{textrows.Text, "2025-01-01T10:00:00.1234567", "VARCHAR"},
		{textrows.Text, "2025-01-01T10:00:00,123", "VARCHAR"},
		{textrows.Text, "2025-01-01T10:00:00Z 2025-01-01T10:00:00+01:00", "TIMESTAMPTZ"},
		{textrows.Text, "2025-01-01T10:00:00Z 2025-01-01T10:00:00", "VARCHAR"},
		{textrows.String, "1 2", "VARCHAR"},
		{textrows.String, "2025-01-01", "DATE"},
		{textrows.Number, "1 2", "BIGINT"},
		{textrows.Number, "1 2.5", "DOUBLE"},
		{textrows.Nested, "[1]", "VARCHAR"},
	} {
		var found textrows.Type
		found.Add(textrows.Value{})
		for v := range strings.FieldsSeq(c.values) {
			found.Add(textrows.Value{Kind: c.kind, Text: v})
		}
		if got := found.Name(); got != c.want {
			t.Errorf("%s: %s, want %s", c.values, got, c.want)
		}
	}
	var mixed textrows.Type
	mixed.Add(textrows.Value{Kind: textrows.Number, Text: "1"})
	mixed.Add(textrows.Value{Kind: textrows.String, Text: "n/a"})
	if mixed.Name() != "VARCHAR" {
		t.Errorf("a number and a string: %s", mixed.Name())
	}
}
