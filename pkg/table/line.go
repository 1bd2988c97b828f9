package table

// Line is a row of an archive file: one line of a ledger entry, or a whole entry that is
// not NDJSON. Unlike rows of projections, it is never replaced or merged, and has no
// columns of [state.Meta]. See docs/format/archive.md.
type Line struct {
	Entry string `col:"entry,key"`  // ULID
	Line  int32  `col:"line,key"`   // from 0
	Text  string `col:"text,null"`  // JSON, without the line ending
	Whole string `col:"whole,null"` // the entry, if it is not NDJSON
	// CRC32C is the checksum of the entry. It is set in the entry's first row.
	CRC32C int64 `col:"crc32c,null"`
}
