package table

import (
	"fmt"
	"reflect"
)

// Format encodes the rows of any table as the bytes of a file, and decodes them.
type Format interface {
	// Encode encodes n rows with distinct keys in ascending order. The function row returns each row as a struct.
	Encode(s *Schema, n int, row func(i int) reflect.Value) ([]byte, error)
	// Decode calls add for each row of a file and sets the fields of the struct that add
	// returns.
	Decode(s *Schema, data []byte, add func() reflect.Value) error
}

// Encode returns rows as a file, sorted by primary key. It does not modify rows. The bytes do not depend on the order
// of rows. Encode rejects duplicate keys and text that is not UTF-8.
func (t *Table[R]) Encode(f Format, rows []*R) ([]byte, error) {
	sorted, err := t.sorted(rows)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.Name, err)
	}
	data, err := f.Encode(&t.Schema, len(sorted), func(i int) reflect.Value { return reflect.ValueOf(sorted[i]).Elem() })
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.Name, err)
	}
	return data, nil
}

// Decode returns the rows of a file that this or another build encoded, in ascending order
// of their keys. It validates the format, but not the checksum, which callers compare with the manifest.
func (t *Table[R]) Decode(f Format, data []byte) ([]*R, error) {
	var rows []*R
	err := f.Decode(&t.Schema, data, func() reflect.Value {
		row := new(R)
		rows = append(rows, row)
		return reflect.ValueOf(row).Elem()
	})
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.Name, err)
	}
	return rows, t.checkOrder(rows)
}

// DecodePart returns those rows of a part that lie within the given ranges, in ascending order of their keys.
func (t *Table[R]) DecodePart(p Parts, part int, within []Range) ([]*R, error) {
	n := 0
	for _, r := range within {
		n += r.To - r.From
	}
	rows, slab := make([]*R, 0, n), make([]R, n)
	err := p.Decode(&t.Schema, part, within, func() reflect.Value {
		rows = append(rows, &slab[len(rows)])
		return reflect.ValueOf(rows[len(rows)-1]).Elem()
	})
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.Name, err)
	}
	return rows, t.checkOrder(rows)
}

// checkOrder returns an error unless the rows are in ascending order of their keys.
func (t *Table[R]) checkOrder(rows []*R) error {
	for i := 1; i < len(rows); i++ {
		if t.Compare(rows[i-1], rows[i]) >= 0 {
			return fmt.Errorf("decode %s: row %d (%s) is not in ascending order", t.Name, i, t.Key(rows[i]))
		}
	}
	return nil
}
