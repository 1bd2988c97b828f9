package table

// Line is a row of a file of the archive: a line of an entry of the ledger, or the
// whole of an entry that is no lines of JSON. It is no row of a projection: nothing
// replaces it, and so it has no columns of [state.Meta] and is never merged. See
// docs/format/archive.md.
type Line struct {
	Entry string `col:"entry,key"` // ULID
	Line  int32  `col:"line,key"`  // from 0
	Text  string `col:"text,null"` // JSON, without the line ending
	Whole string `col:"whole,null"`
	// CRC32C is of the entry, in its first row.
	CRC32C int64 `col:"crc32c,null"`
}
