// Package textrows reads rows from CSV and JSON, and infers column types that represent all of their values exactly.
// It is pure: it reads from an [io.Reader] and stores nothing. This package is not a stable API.
//
// The package is stricter than most readers, because the text is the only schema of a task that writes text. The
// following are errors, which name the line or the record: a line with a different number of fields, a stray quote, a
// column name that occurs twice, and text that is not UTF-8.
package textrows

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Formats.
const (
	CSV    = "csv"
	JSON   = "json"
	NDJSON = "ndjson"
)

// endings contains the file name endings of each format, without those of compression.
var endings = map[string][]string{CSV: {".csv", ".tsv"}, JSON: {".json"}, NDJSON: {".ndjson", ".jsonl"}}

// Endings returns the file name endings of a format, without those of compression.
func Endings(format string) []string { return endings[format] }

// FormatOf returns the format of a file according to the ending of its name. It returns "" if no format has this
// ending.
func FormatOf(name string) string {
	plain, gz := strings.CutSuffix(name, ".gz")
	if !gz {
		plain = strings.TrimSuffix(name, ".zst")
	}
	for format, list := range endings {
		if slices.Contains(list, path.Ext(plain)) {
			return format
		}
	}
	return ""
}

// FormatsOf returns the formats of files according to the endings of their names, sorted and without duplicates.
func FormatsOf(names []string) (found []string) {
	for _, name := range names {
		if format := FormatOf(name); format != "" && !slices.Contains(found, format) {
			found = append(found, format)
		}
	}
	slices.Sort(found)
	return found
}

// maxRecord is the maximum size of a line of CSV or of a JSON object, in bytes.
const maxRecord = 16 << 20

// Options describe how a file is written.
type Options struct {
	Format string
	// Delimiter separates fields of CSV. 0 means a comma.
	Delimiter rune
	// NoHeader means that the first line of CSV is a row. The columns are then named column0, column1, ….
	NoHeader bool
	// Nulls are texts in CSV that mean NULL, in addition to the empty text.
	Nulls []string
}

// Kind is the form in which a value is written.
type Kind int

// The kinds of values. Text is a field of CSV, and String a string of JSON.
const (
	Null Kind = iota
	Text
	String
	Number
	Bool
	Nested
)

// Value is one value of a row, as text.
type Value struct {
	Kind Kind
	Text string
}

// Row is one row. Names may differ between rows of JSON.
type Row struct {
	// At is the place of the row in its file: "line 12" or "record 3".
	At     string
	Names  []string
	Values []Value
}

// Read calls emit with each row of a file. The row is valid only until emit returns. For CSV, Read first calls header
// with the names of the columns.
func Read(r io.Reader, o Options, header func(names []string), emit func(*Row) error) error {
	switch o.Format {
	case CSV:
		return readCSV(r, o, header, emit)
	case JSON:
		return readJSON(r, emit)
	case NDJSON:
		return readLines(r, emit)
	}
	return fmt.Errorf("unknown format %q", o.Format)
}

// meter limits how many bytes are read for one record.
type meter struct {
	from io.Reader
	left int
}

var errTooLong = fmt.Errorf("the record has more than %d MiB, or a quote is not closed", maxRecord>>20)

func (m *meter) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errTooLong
	}
	n, err := m.from.Read(p)
	m.left -= n
	return n, err
}

func readCSV(from io.Reader, o Options, header func([]string), emit func(*Row) error) error {
	m := &meter{from: from, left: maxRecord}
	buffered := bufio.NewReader(m)
	if mark, err := buffered.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		_, _ = buffered.Discard(len(byteOrderMark))
	}
	r := csv.NewReader(&lineBreaks{from: buffered})
	r.ReuseRecord, r.Comma = true, ','
	if o.Delimiter != 0 {
		r.Comma = o.Delimiter
	}
	row := &Row{}
	for first := true; ; first = false {
		m.left = maxRecord
		fields, err := r.Read()
		switch {
		case errors.Is(err, io.EOF) && first:
			return errors.New("the file is empty: write at least a header")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return csvError(err, row.Names)
		}
		line, _ := r.FieldPos(0)
		row.At = "line " + strconv.Itoa(line)
		for i, field := range fields {
			if !utf8.ValidString(field) {
				return fmt.Errorf("%s: field %d is not UTF-8", row.At, i+1)
			}
		}
		if first {
			if row.Names, err = names(fields, o.NoHeader); err != nil {
				return fmt.Errorf("%s: %w", row.At, err)
			}
			row.Values = make([]Value, len(fields))
			header(row.Names)
			if !o.NoHeader {
				continue
			}
		}
		for i, field := range fields {
			row.Values[i] = Value{Text, field}
			if field == "" || slices.Contains(o.Nulls, field) {
				row.Values[i] = Value{}
			}
		}
		if err := emit(row); err != nil {
			return err
		}
	}
}

// lineBreaks keeps the line breaks in quoted fields. A [csv.Reader] replaces each "\r\n" by "\n", so lineBreaks
// doubles the "\r" of each "\r\n" inside quotes. In valid CSV, a position is inside quotes if the number of quotes
// before it is odd.
type lineBreaks struct {
	from    *bufio.Reader
	pending []byte
	last    byte // the last byte that was read
	quoted  bool
}

func (l *lineBreaks) Read(p []byte) (int, error) {
	if len(l.pending) == 0 {
		part, err := l.from.ReadSlice('\n') // a part of the line, if it is longer than the buffer
		if len(part) == 0 {
			return 0, err
		}
		l.add(part)
	}
	n := copy(p, l.pending)
	l.pending = l.pending[n:]
	return n, nil
}

// add appends a part of a line to the pending bytes.
func (l *lineBreaks) add(part []byte) {
	l.quoted = l.quoted != (bytes.Count(part, []byte{'"'})%2 == 1)
	end := len(part) - 1
	if end > 0 {
		l.last = part[end-1]
	}
	l.pending = append(l.pending[:0], part[:end]...)
	if l.quoted && part[end] == '\n' && l.last == '\r' {
		l.pending = append(l.pending, '\r')
	}
	l.pending = append(l.pending, part[end])
	l.last = part[end]
}

const byteOrderMark = "\ufeff"

// csvError returns an error of the CSV reader in a form that users understand.
func csvError(err error, names []string) error {
	var at *csv.ParseError
	switch {
	case errors.Is(err, errTooLong):
		return errTooLong
	case !errors.As(err, &at):
		return err
	case errors.Is(err, csv.ErrFieldCount):
		return fmt.Errorf("line %d: expected %d fields, as in the first line", at.StartLine, len(names))
	case errors.Is(err, csv.ErrBareQuote):
		return fmt.Errorf(`line %d: a quote inside a field: write the field in quotes and the quote twice`, at.Line)
	case errors.Is(err, csv.ErrQuote):
		return fmt.Errorf(`line %d: text follows the closing quote of a field, or a field has no closing quote: end the field with a quote, and write each quote inside it twice`, at.StartLine)
	}
	return fmt.Errorf("line %d: %w", at.Line, at.Err)
}

// names returns the names of the columns of a CSV file. If the parameter none is true, the file has no header, and
// the columns are column0, column1 and so on.
func names(fields []string, none bool) ([]string, error) {
	found := make([]string, len(fields))
	seen := map[string]bool{}
	for i, field := range fields {
		if none {
			field = "column" + strconv.Itoa(i)
		}
		lower := strings.ToLower(field)
		switch {
		case field == "":
			return nil, fmt.Errorf("column %d has no name: write a header, or set output.header: false", i+1)
		case seen[lower]:
			return nil, fmt.Errorf("two columns are called %q", field)
		}
		seen[lower] = true
		found[i] = strings.Clone(field)
	}
	return found, nil
}

// readLines reads one JSON object from each line.
func readLines(from io.Reader, emit func(*Row) error) error {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, maxRecord)
	row := &Row{}
	for line := 1; scanner.Scan(); line++ {
		text := strings.TrimSpace(strings.TrimPrefix(scanner.Text(), byteOrderMark))
		if text == "" {
			continue
		}
		row.At = "line " + strconv.Itoa(line)
		if err := row.parse(jsontext.Value(text)); err != nil {
			return err
		}
		if err := emit(row); err != nil {
			return err
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return errTooLong
	}
	return scanner.Err()
}

// readJSON reads an array of objects, or objects one after the other.
func readJSON(from io.Reader, emit func(*Row) error) error {
	m := &meter{from: from, left: maxRecord}
	d := jsontext.NewDecoder(m)
	row, depth := &Row{}, 0
	if d.PeekKind() == '[' {
		_, _ = d.ReadToken()
		depth = 1
	}
	for record := 1; ; record++ {
		m.left = maxRecord
		if depth == 1 && d.PeekKind() == ']' {
			_, _ = d.ReadToken()
			if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
				return errors.New("unexpected data after the array")
			}
			return nil
		}
		value, err := d.ReadValue()
		switch {
		case errors.Is(err, errTooLong):
			return errTooLong
		case errors.Is(err, io.EOF) && depth == 0 && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("record %d: %w", record, err)
		}
		row.At = "record " + strconv.Itoa(record)
		if err := row.parse(value); err != nil {
			return err
		}
		if err := emit(row); err != nil {
			return err
		}
	}
}

// parse sets the names and values from a JSON object.
func (r *Row) parse(object jsontext.Value) error {
	r.Names, r.Values = r.Names[:0], r.Values[:0]
	d := jsontext.NewDecoder(strings.NewReader(string(object)))
	if d.PeekKind() != '{' {
		if _, err := d.ReadValue(); err != nil {
			return fmt.Errorf("%s: %w", r.At, err)
		}
		return fmt.Errorf("%s: it is not a JSON object", r.At)
	}
	_, _ = d.ReadToken()
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return fmt.Errorf("%s: %w", r.At, err)
		}
		r.Names = append(r.Names, name.String())
		value, err := d.ReadValue()
		if err != nil {
			return fmt.Errorf("%s: %w", r.At, err)
		}
		v, err := valueOf(value)
		if err != nil {
			return fmt.Errorf("%s: %w", r.At, err)
		}
		r.Values = append(r.Values, v)
	}
	if _, err := d.ReadToken(); err != nil {
		return fmt.Errorf("%s: %w", r.At, err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: unexpected data after the object", r.At)
	}
	return nil
}

func valueOf(v jsontext.Value) (Value, error) {
	switch v.Kind() {
	case 'n':
		return Value{}, nil
	case 't', 'f':
		return Value{Bool, string(v)}, nil
	case '0':
		return Value{Number, string(v)}, nil
	case '"':
		text, err := jsontext.AppendUnquote(nil, v)
		return Value{String, string(text)}, err
	default:
		return Value{Nested, string(v)}, nil
	}
}
