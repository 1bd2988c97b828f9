package parquetfile

import (
	"reflect"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Arrow is the format written by Arrow's writer, for comparison.
type Arrow struct{ Format }

// Encode implements [table.Format].
func (f *Arrow) Encode(s *table.Schema, n int, row func(i int) reflect.Value) ([]byte, error) {
	return encodeLarge(f.layout(s), n, row)
}

// Small is the format without Arrow's writer. If a file needs Arrow's writer, Encode returns no bytes.
type Small struct{ Format }

// Encode implements [table.Format].
func (f *Small) Encode(s *table.Schema, n int, row func(i int) reflect.Value) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.release()
	return w.write(f.layout(s), n, row)
}
