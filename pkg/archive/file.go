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
)

// lines encodes and decodes files. Making it is work, and it holds no state.
var lines = sync.OnceValue(table.Of[table.Line])

// Encode is the file that holds entries, which are in ascending order of their ids.
func Encode(entries []Entry) ([]byte, error) {
	var rows []*table.Line
	for _, e := range entries {
		rows = append(rows, rowsOf(e)...)
	}
	return lines().Encode(rows)
}

// rowsOf are the rows of an entry: its lines where it is lines of JSON objects and
// nothing else, since people query them as such; else one row that holds the whole.
func rowsOf(e Entry) []*table.Line {
	text, isLines := strings.CutSuffix(string(e.Data), "\n")
	var rows []*table.Line
	for line := range strings.SplitSeq(text, "\n") {
		isLines = isLines && strings.HasPrefix(line, "{") && jsontext.Value(line).IsValid()
		if !isLines {
			rows = []*table.Line{{Entry: e.ID, Whole: base64.StdEncoding.EncodeToString(e.Data)}}
			break
		}
		rows = append(rows, &table.Line{Entry: e.ID, Line: int32(len(rows)), Text: line}) //nolint:gosec // an entry is bounded
	}
	rows[0].CRC32C = int64(blob.CRC32C(e.Data))
	return rows
}

// Decode gives the entries of a file, in ascending order of their ids, each held
// against its checksum.
func Decode(data []byte) ([]Entry, error) {
	rows, err := lines().Decode(data)
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

// entryOf is the entry that rows are of.
func entryOf(rows []*table.Line) (Entry, error) {
	e := Entry{ID: rows[0].Entry}
	if !ids.Valid(e.ID) {
		return e, fmt.Errorf("%.100q is not the name of an entry", e.ID)
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
				return e, fmt.Errorf("entry %s: it is neither lines nor one row with the whole", e.ID)
			}
			out.Write(whole)
		}
	}
	if e.Data = out.Bytes(); int64(blob.CRC32C(e.Data)) != rows[0].CRC32C {
		return e, fmt.Errorf("entry %s: its bytes do not match its checksum", e.ID)
	}
	return e, nil
}
