// Package merged describes merged files: copies of many small outputs of one asset, which make reading faster. They
// are only an optimization: a reader without them reads the single files and returns the same rows. This package is
// not a stable API.
//
// A merged file is immutable. Its description names the exact output that each of its cells was copied from, so a
// reader can use the file for exactly the cells that the reader would read anyway. The index of the asset lists the
// merged files, and is the only object that is replaced. The index, the merged files and their descriptions are below
// one prefix, beside the outputs of the asset.
package merged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

const (
	// MaxCells is the maximum number of cells in a merged file.
	MaxCells = 1024
	// MaxBytes is the maximum sum of the sizes of the single files in a merged file.
	MaxBytes = 256 << 20
	// SmallBytes is the size below which an output is merged. For a larger output, opening the file costs little
	// compared with reading it.
	SmallBytes = 4 << 20

	// MaxFiles is the maximum number of merged files of an asset.
	MaxFiles = 20_000

	// CellColumn is the column of a merged file that holds the position of a row's cell in [File].Cells. KeyColumn
	// returns the column with the values of a partition column.
	CellColumn = "servo cell"

	version          = 1
	indexName        = "index.json"
	dataSuffix       = ".parquet"
	cellsSuffix      = ".json"
	maxIndexBytes    = 16 << 20
	maxDescription   = 8 << 20
	replaceTries     = 5
	staleDenominator = 10 // a file is replaced when more than one in ten of its cells is stale
)

// Limits decide which outputs are worth merging, and which merged files are worth reading.
type Limits struct {
	// MinCells is the minimum number of neighbouring cells for which a merged file is worth its cost. MaxCells is the
	// maximum number of cells in a merged file, at most [MaxCells].
	MinCells, MaxCells int
	// MinRun is the minimum length of a [Run]: a reader reads a sequence of neighbouring cells from a merged file only
	// if it has at least MinRun cells. Each sequence adds a part to the query, so many short sequences would cost more
	// than they save.
	MinRun int
}

// Usual are the limits outside of tests.
var Usual = Limits{MinCells: 64, MaxCells: MaxCells, MinRun: 16}

// KeyColumn returns the name of a column in a merged file. The column holds the values of the partition column Keys[i]
// of the [File].
func KeyColumn(i int) string { return fmt.Sprintf("servo key %d", i) }

// Reserved reports whether a column cannot be in a merged file, because its name is reserved: for the merged file's
// own columns, or for virtual columns of DuckDB that the worker needs to write the file.
func Reserved(column string) bool {
	name := strings.ToLower(column)
	return strings.HasPrefix(name, "servo ") || name == "file_index" || name == "file_row_number" || name == "filename"
}

// folder is the folder of the merged files, beside the folders of the partitions. No partition has a folder with this
// name, because the name of a partition's folder contains "-" or is "_".
const folder = "_merged/"

// Prefix returns the prefix of the merged files of an asset.
func Prefix(d ids.Domain, asset ids.AssetKey) string {
	return contract.AssetsPrefix(d) + asset.String() + "/" + folder
}

// AssetOf returns the prefix of the merged files among which the object with the given key is, and the asset to which
// this prefix belongs. It returns "" and "" if the object is not among the merged files of any asset.
func AssetOf(d ids.Domain, key string) (prefix, asset string) {
	const parts = 4 // namespace, name, folder, rest
	rest, ok := strings.CutPrefix(key, contract.AssetsPrefix(d))
	split := strings.SplitN(rest, "/", parts)
	if !ok || len(split) < parts || split[2]+"/" != folder {
		return "", ""
	}
	asset = split[0] + "/" + split[1]
	return contract.AssetsPrefix(d) + asset + "/" + folder, asset
}

// IndexKey returns the key of the index.
func IndexKey(prefix string) string { return prefix + indexName }

// DataKey returns the key of a merged file.
func DataKey(prefix, id string) string { return prefix + id + dataSuffix }

// CellsKey returns the key of the description of a merged file.
func CellsKey(prefix, id string) string { return prefix + id + cellsSuffix }

// IDOf returns the id of the merged file that an object below the prefix belongs to. It returns "" for the index, and
// for an object that Servo did not write.
func IDOf(prefix, key string) string {
	name := strings.TrimPrefix(key, prefix)
	id := strings.TrimSuffix(strings.TrimSuffix(name, dataSuffix), cellsSuffix)
	if len(name) == len(key) || len(id) == len(name) || !ids.Valid(id) {
		return ""
	}
	return id
}

// Index names the merged files of an asset.
type Index struct {
	Version int     `json:"version"`
	Files   []Entry `json:"files"`
}

// Entry is a merged file in the index.
type Entry struct {
	ID    string `json:"id"`
	Cells int    `json:"cells"`
	// First and Last are the lowest and the highest partition key.
	First string `json:"first"`
	Last  string `json:"last"`
	// Size and CRC32C are the size and the checksum of the file's description.
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`
	// Checked means that the collector checked the file when it was a day old, and that all outputs in the file existed
	// then. From then on, the collector deletes none of these outputs before it has deleted the file.
	Checked bool `json:"checked,omitempty"`
}

// File describes a merged file.
type File struct {
	// Size and CRC32C are those of the Parquet file.
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`
	// All outputs in the file have the same columns. Schema is the hash of these columns in the outputs' commit markers.
	// Columns are the columns, with the types that DuckDB reads.
	Schema  string   `json:"schema"`
	Columns []Column `json:"columns"`
	// Keys are the partition columns whose values the file contains.
	Keys  []space.Column `json:"keys,omitempty"`
	Cells []Cell         `json:"cells"`
	// Bytes is the sum of the sizes of the single files.
	Bytes int64 `json:"bytes"`
}

// Column is a column, with its type in SQL.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Cell identifies the output of one partition. Two outputs with the same Cell have the same bytes, because the folder
// of an output is written only once.
type Cell struct {
	Partition       string `json:"partition"`
	Materialization string `json:"materialization"`
	URI             string `json:"uri"`
	// Files is a checksum of the names, sizes and checksums of the files.
	Files uint32 `json:"files"`
}

// Candidate is an output that a reader reads, and that a merged file may contain.
type Candidate struct {
	Cell

	Schema string
	Bytes  int64
	Rows   int64
	// Fixed means that the output is old enough to be merged.
	Fixed bool
}

// CandidateOf returns the output that a marker names. It returns a zero value if no merged file may contain the
// output: it has no Parquet files, its columns are not known, or the name of a column is reserved.
func CandidateOf(partition string, m *contract.CommitMarker) Candidate {
	c := Candidate{Schema: m.SchemaHash, Cell: Cell{Partition: partition, Materialization: m.MaterializationID, URI: m.URI}}
	sum := crc32.New(castagnoli)
	for _, f := range m.Files {
		if strings.HasSuffix(f.Name, ".parquet") {
			fmt.Fprintf(sum, "%q %d %d\n", f.Name, f.Size, f.CRC32C)
			c.Bytes += f.Size
			c.Rows += f.Rows
		}
	}
	c.Files = sum.Sum32()
	if c.Bytes == 0 || c.Schema == "" || len(m.Columns) == 0 || slices.ContainsFunc(m.Columns, func(c contract.CommitMarkerColumn) bool { return Reserved(c.Name) }) {
		return Candidate{}
	}
	return c
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Load reads the index of an asset and its version for [Update]. If the index is absent or unreadable, Load returns
// an index without files; damaged reports that the index is unreadable.
func Load(ctx context.Context, store blob.Store, prefix string) (index Index, at int64, damaged bool, err error) {
	data, object, err := blob.Get(ctx, store, IndexKey(prefix), maxIndexBytes)
	var large *blob.TooLargeError
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return Index{}, 0, false, nil
	case errors.As(err, &large):
		object, err = store.Head(ctx, IndexKey(prefix))
		return Index{}, object.Version, true, err
	case err != nil:
		return Index{}, 0, false, fmt.Errorf("read the index of merged files: %w", err)
	}
	if json.Unmarshal(data, &index) != nil || index.Version != version || len(index.Files) > MaxFiles ||
		slices.ContainsFunc(index.Files, func(e Entry) bool { return !ids.Valid(e.ID) }) {
		return Index{}, object.Version, true, nil //nolint:nilerr // damaged reports the error
	}
	return index, object.Version, false, nil
}

// Update changes the index of an asset by calling change. If change returns false, Update writes nothing. If another
// process has changed the index, Update calls change again with the newest index.
func Update(ctx context.Context, store blob.Store, prefix string, change func(*Index) bool) error {
	var err error
	for range replaceTries {
		index, at, _, loadErr := Load(ctx, store, prefix)
		if loadErr != nil {
			return loadErr
		}
		index.Version = version
		if !change(&index) {
			return nil
		}
		data, encodeErr := json.Marshal(index)
		if encodeErr != nil {
			return fmt.Errorf("encode the index of merged files: %w", encodeErr)
		}
		if _, err = store.Replace(ctx, IndexKey(prefix), data, at); !errors.Is(err, blob.ErrMismatch) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the index of merged files: %w", err)
	}
	return nil
}

// Remove removes files from the index, and returns how many of them were in the index.
func (x *Index) Remove(gone ...string) int {
	before := len(x.Files)
	x.Files = slices.DeleteFunc(x.Files, func(e Entry) bool { return slices.Contains(gone, e.ID) })
	return before - len(x.Files)
}

// EntryOf returns the index entry of a merged file. The parameter description is the encoded form of f.
func EntryOf(id string, f *File, description []byte) Entry {
	e := Entry{ID: id, Cells: len(f.Cells), First: f.Cells[0].Partition, Last: f.Cells[0].Partition, Size: int64(len(description)), CRC32C: crc32.Checksum(description, castagnoli)}
	for _, c := range f.Cells {
		e.First, e.Last = min(e.First, c.Partition), max(e.Last, c.Partition)
	}
	return e
}

// ErrDamaged reports that the description of a merged file is absent, or does not match the index.
var ErrDamaged = errors.New("merged file is absent or damaged")

// Describe reads the description of a merged file. The error wraps [ErrDamaged] if the description is absent or
// damaged.
func Describe(ctx context.Context, store blob.Store, prefix string, e *Entry) (*File, error) {
	data, _, err := blob.Get(ctx, store, CellsKey(prefix, e.ID), maxDescription)
	var large *blob.TooLargeError
	if errors.Is(err, blob.ErrNotFound) || errors.As(err, &large) {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, e.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("read the description of merged file %s: %w", e.ID, err)
	}
	f := &File{}
	if int64(len(data)) != e.Size || crc32.Checksum(data, castagnoli) != e.CRC32C || json.Unmarshal(data, f) != nil || len(f.Cells) != e.Cells || len(f.Cells) > MaxCells {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, e.ID)
	}
	return f, nil
}
