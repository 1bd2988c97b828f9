package archive

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

// row is a row of an archive file: one line of a ledger entry, or a whole entry that is not NDJSON. Unlike a row of a
// projection, it is never replaced or merged, and it lacks the columns of [table.Meta]. See docs/format/archive.md.
type row struct {
	Entry string `col:"entry,key"`  // ULID
	Line  int32  `col:"line,key"`   // the number of the line from 0
	Text  string `col:"text,null"`  // JSON, without the line ending
	Whole string `col:"whole,null"` // the entry in base64, if it is not NDJSON
	// CRC32C is the checksum of the entry. It is set in the entry's first row.
	CRC32C int64 `col:"crc32c,null"`
}

// lines returns the [table.Table] that describes the columns of an archive file. Creating it is slow, so it is
// created only once.
var lines = sync.OnceValue(func() *table.Table[row] { return table.Of[row]("ledger_archive") })

var format parquetfile.Format

// Encode returns a file with the entries, which must be in ascending order of their ids.
func Encode(entries []Entry) ([]byte, error) {
	var rows []*row
	for _, e := range entries {
		rows = append(rows, rowsOf(e)...)
	}
	return lines().Encode(&format, rows)
}

// rowsOf returns the rows of an entry. If the entry consists only of lines with JSON objects, it has one row per
// line, so that queries can use the lines as JSON. Otherwise one row contains the whole entry.
func rowsOf(e Entry) []*row {
	text, isLines := strings.CutSuffix(string(e.Data), "\n")
	var rows []*row
	for line := range strings.SplitSeq(text, "\n") {
		isLines = isLines && strings.HasPrefix(line, "{") && jsontext.Value(line).IsValid()
		if !isLines {
			rows = []*row{{Entry: e.ID, Whole: base64.StdEncoding.EncodeToString(e.Data)}}
			break
		}
		rows = append(rows, &row{Entry: e.ID, Line: int32(len(rows)), Text: line}) //nolint:gosec // the size of an entry is limited
	}
	rows[0].CRC32C = int64(blob.CRC32C(e.Data))
	return rows
}

// Decode returns the entries of a file in ascending order of their ids, and verifies the
// checksum of each.
func Decode(data []byte) ([]Entry, error) {
	rows, err := lines().Decode(&format, data)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Entry == rows[0].Entry {
			n++
		}
		e, err := entryOf(rows[:n])
		if err != nil {
			return nil, err
		}
		entries, rows = append(entries, e), rows[n:]
	}
	return entries, nil
}

// entryOf returns the entry with these rows.
func entryOf(rows []*row) (Entry, error) {
	e := Entry{ID: rows[0].Entry}
	if !ids.Valid(e.ID) {
		return e, fmt.Errorf("%.100q is not an entry id", e.ID)
	}
	size := 0
	for _, row := range rows {
		size += len(row.Text) + 1
	}
	var out bytes.Buffer
	out.Grow(size)
	for i, row := range rows {
		switch {
		case int(row.Line) != i:
			return e, fmt.Errorf("entry %s: line %d is missing", e.ID, i)
		case row.Text != "":
			out.WriteString(row.Text)
			out.WriteByte('\n')
		default:
			whole, err := base64.StdEncoding.DecodeString(row.Whole)
			if err != nil || len(rows) > 1 {
				return e, fmt.Errorf("entry %s: row %d has neither text nor a valid whole entry", e.ID, i)
			}
			out.Write(whole)
		}
	}
	if e.Data = out.Bytes(); int64(blob.CRC32C(e.Data)) != rows[0].CRC32C {
		return e, fmt.Errorf("entry %s: its content does not match its checksum", e.ID)
	}
	return e, nil
}
