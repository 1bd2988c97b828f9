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

// JSON is a [Format] for rows that are too few for a Parquet file: a JSON array. Each row is an object with its key,
// row_seq, and the other columns whose values are not zero.
type JSON struct{}

// jsonBytes is the initial size, in bytes, of the buffer for each row.
const jsonBytes = 512

// Encode implements [Format].
func (JSON) Encode(s *Schema, n int, row func(i int) reflect.Value) ([]byte, error) {
	dst := append(make([]byte, 0, n*jsonBytes), '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = s.appendRow(dst, row(i)); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func (s *Schema) appendRow(dst []byte, row reflect.Value) ([]byte, error) {
	separator := byte('{')
	for i := range s.Columns {
		c := &s.Columns[i]
		v := c.Of(row)
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
func (c *Column) inJSON() bool { return c.Required() && c.Type != Boolean }

// Decode implements [Format]. It ignores unknown columns.
func (JSON) Decode(s *Schema, data []byte, add func() reflect.Value) error {
	in := jsontext.NewDecoder(bytes.NewReader(data))
	if err := expect(in, '['); err != nil {
		return err
	}
	for n := 0; in.PeekKind() != ']'; n++ {
		if err := s.readRow(in, add()); err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
	}
	if err := expect(in, ']'); err != nil {
		return err
	}
	if _, err := in.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the rows")
	}
	return nil
}

func (s *Schema) readRow(in *jsontext.Decoder, row reflect.Value) error {
	if err := expect(in, '{'); err != nil {
		return err
	}
	required := 0
	for in.PeekKind() != '}' {
		name, err := in.ReadToken()
		if err != nil {
			return err
		}
		c := s.Column(name.String())
		if c == nil {
			if err := in.SkipValue(); err != nil {
				return err
			}
			continue
		}
		if c.inJSON() { // counted once: the decoder rejects duplicate names
			required++
		}
		if err := c.readJSON(in, c.Of(row)); err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	if want := len(s.keys) + 1; required != want {
		return errors.New("a column of the key, or row_seq, is missing")
	}
	return expect(in, '}')
}

func (c *Column) readJSON(in *jsontext.Decoder, field reflect.Value) error {
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
