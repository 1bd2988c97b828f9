package table

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
)

// AppendJSON appends rows to dst as a JSON array, for rows too few to be worth a file. Each
// row is an object with its key, row_seq, and the other columns that are not zero. As in a
// file, each key occurs once, in ascending order.
func (t *Table[R]) AppendJSON(dst []byte, rows []*R) ([]byte, error) {
	sorted, err := t.sorted(rows)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.name, err)
	}
	dst = append(dst, '[')
	for i, row := range sorted {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = t.appendRow(dst, reflect.ValueOf(row).Elem()); err != nil {
			return nil, fmt.Errorf("encode %s: %w", t.name, err)
		}
	}
	return append(dst, ']'), nil
}

func (t *Table[R]) appendRow(dst []byte, row reflect.Value) ([]byte, error) {
	separator := byte('{')
	for i := range t.columns {
		c := &t.columns[i]
		v := c.of(row)
		if v.IsZero() && !c.inJSON() {
			continue
		}
		dst = append(dst, separator, '"') // column names need no escapes
		dst = append(append(dst, c.Name...), '"', ':')
		separator = ','
		var err error
		switch c.Type {
		case Varchar:
			if dst, err = jsontext.AppendQuote(dst, v.String()); err != nil {
				return nil, fmt.Errorf("column %s: %.80q is not UTF-8", c.Name, v.String())
			}
		case Integer, Bigint:
			dst = strconv.AppendInt(dst, v.Int(), 10)
		case Timestamp:
			dst = appendTime(dst, event.Time(v.Int()))
		case Boolean:
			dst = strconv.AppendBool(dst, v.Bool())
		}
	}
	return append(dst, '}'), nil
}

// appendTime appends a time as RFC 3339 text, or as microseconds since 1970 if its year
// does not have four digits.
func appendTime(dst []byte, at event.Time) []byte {
	if year := at.Time().Year(); year < 0 || year > 9999 {
		return strconv.AppendInt(dst, int64(at), 10)
	}
	return append(at.AppendTo(append(dst, '"')), '"')
}

// inJSON reports whether JSON rows contain the column even if it is zero.
func (c *column) inJSON() bool { return c.required() && c.Type != Boolean }

// DecodeJSON returns the rows that AppendJSON of this or another build encoded. Like
// Decode, it ignores unknown columns.
func (t *Table[R]) DecodeJSON(data []byte) ([]*R, error) {
	rows, err := t.decodeJSON(jsontext.NewDecoder(bytes.NewReader(data)))
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.name, err)
	}
	for i := 1; i < len(rows); i++ {
		if t.Compare(rows[i-1], rows[i]) >= 0 {
			return nil, fmt.Errorf("decode %s: row %d (%s) is not in ascending order", t.name, i, t.Key(rows[i]))
		}
	}
	return rows, nil
}

func (t *Table[R]) decodeJSON(in *jsontext.Decoder) ([]*R, error) {
	if err := expect(in, '['); err != nil {
		return nil, err
	}
	var rows []*R
	for in.PeekKind() != ']' {
		row := new(R)
		if err := t.readRow(in, reflect.ValueOf(row).Elem()); err != nil {
			return nil, fmt.Errorf("row %d: %w", len(rows), err)
		}
		rows = append(rows, row)
	}
	if err := expect(in, ']'); err != nil {
		return nil, err
	}
	if _, err := in.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the rows")
	}
	return rows, nil
}

func (t *Table[R]) readRow(in *jsontext.Decoder, row reflect.Value) error {
	if err := expect(in, '{'); err != nil {
		return err
	}
	required := 0
	for in.PeekKind() != '}' {
		name, err := in.ReadToken()
		if err != nil {
			return err
		}
		c := t.column(name.String())
		if c == nil {
			if err := in.SkipValue(); err != nil {
				return err
			}
			continue
		}
		if c.inJSON() { // the decoder rejects duplicate names
			required++
		}
		if err := c.readJSON(in, c.of(row)); err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	if want := len(t.keys) + 1; required != want {
		return errors.New("a column of the key, or row_seq, is missing")
	}
	return expect(in, '}')
}

func (t *Table[R]) column(name string) *column {
	for i := range t.columns {
		if t.columns[i].Name == name {
			return &t.columns[i]
		}
	}
	return nil
}

func (c *column) readJSON(in *jsontext.Decoder, field reflect.Value) error {
	token, err := in.ReadToken()
	if err != nil {
		return err
	}
	want := jsontext.Kind('"')
	switch c.Type {
	case Integer, Bigint:
		want = '0'
	case Boolean:
		if kind := token.Kind(); kind != 't' && kind != 'f' {
			return fmt.Errorf("must be true or false, got %.80s", token)
		}
		field.SetBool(token.Bool())
		return nil
	case Timestamp:
		if token.Kind() == '0' {
			want = '0'
		}
	case Varchar:
	}
	if token.Kind() != want {
		return fmt.Errorf("must be %s, got %.80s", c.Type, token)
	}
	text := token.String()
	switch {
	case c.Type == Varchar:
		field.SetString(text)
	case c.Type == Timestamp && want == '"':
		var at event.Time
		if err := at.UnmarshalText([]byte(text)); err != nil {
			return err
		}
		field.SetInt(int64(at))
	default:
		n, err := strconv.ParseInt(text, 10, field.Type().Bits())
		if err != nil {
			return err
		}
		field.SetInt(n)
	}
	return nil
}

func expect(in *jsontext.Decoder, kind jsontext.Kind) error {
	token, err := in.ReadToken()
	if err != nil {
		return err
	}
	if token.Kind() != kind {
		return fmt.Errorf("expected %s, got %.80s", kind, token)
	}
	return nil
}
