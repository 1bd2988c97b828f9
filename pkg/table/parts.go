package table

import "reflect"

// Divided is a [Format] whose files have parts that can be decoded one by one.
type Divided interface {
	Format
	// Open reads the index of a file's parts. The result refers to data, which must not be modified.
	Open(data []byte) (Parts, error)
}

// Divide returns f as a [Divided]. If the files of f have no parts, it returns false.
func Divide(f Format) (Divided, bool) {
	d, ok := f.(Divided)
	return d, ok
}

// Parts are the parts of a file: consecutive rows in ascending order of their keys. They are safe for
// concurrent use.
type Parts interface {
	// Len returns the number of parts.
	Len() int
	// Rows returns the number of rows of a part.
	Rows(part int) int
	// Bounds returns the least and the greatest value of a text column in a part, if the file records them.
	Bounds(part int, column string) (least, greatest string, known bool)
	// Decode calls the function add for each of the part's rows within the given ranges, and sets the fields of the
	// struct that add returns. The ranges must be in order and must not overlap. The parameter s may lack columns of
	// the file.
	Decode(s *Schema, part int, within []Range, add func() reflect.Value) error
}

// Range is a range of rows of a part: the rows From to To-1.
type Range struct{ From, To int }
