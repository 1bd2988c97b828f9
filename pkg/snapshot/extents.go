package snapshot

import (
	"context"
	"reflect"
	"strconv"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// extent is the unit in which readers decode partition_status: a part of a file, or a whole file.
type extent struct {
	file  manifest.File
	parts table.Parts // nil: the extent is the whole file
	part  int
	min   manifest.Cell // a lower bound of the keys, not necessarily the key of a row
}

func wholeFile(f manifest.File) []extent { return []extent{{file: f, min: f.Min}} }

// name identifies the rows of an extent in a cache.
func (e extent) name() string {
	if e.parts == nil {
		return e.file.Key
	}
	return e.file.Key + "#" + strconv.Itoa(e.part)
}

// count returns the number of rows.
func (e extent) count() int {
	if e.parts == nil {
		return int(min(e.file.Rows, state.PageRows))
	}
	return e.parts.Rows(e.part)
}

// divide returns the parts of a file that may contain keys of an asset. It omits parts in which all keys are less than
// the parameter "from". If the file has no parts, divide returns the whole file.
func (h History) divide(ctx context.Context, f manifest.File, from manifest.Cell, asset string) ([]extent, error) {
	if !h.divided() {
		return wholeFile(f), nil
	}
	parts, err := h.open(ctx, f)
	if err != nil {
		return nil, err
	}
	var extents []extent
	for part := range parts.Len() {
		e := extent{file: f, parts: parts, part: part, min: f.Min}
		first, last, known := parts.Bounds(part, "asset_key")
		if known {
			if last < from.Asset || first > asset {
				continue
			}
			e.min = manifest.Cell{Asset: first}
		}
		if known && first == last { // all keys of the part belong to one asset
			least, greatest, has := parts.Bounds(part, "partition_key")
			if has && first == from.Asset && greatest < from.Partition {
				continue
			}
			if has {
				e.min.Partition = least
			}
		}
		extents = append(extents, e)
	}
	return extents, nil
}

// page returns the rows of an extent, which it caches.
func (h History) page(ctx context.Context, e extent) ([]*state.Partition, error) {
	if h.simulated() {
		return h.codec.readPage(ctx, h.store, e.file) // not cached: each read must report a damaged file
	}
	if rows, has := h.codec.pages.get(e.name()); has {
		return rows, nil
	}
	var rows []*state.Partition
	var err error
	if e.parts == nil {
		rows, err = h.codec.readPage(ctx, h.store, e.file)
	} else {
		rows, err = h.part(e)
	}
	if err == nil {
		h.codec.pages.put(e.name(), rows)
	}
	return rows, err
}

// part returns the rows of a part of a file.
func (h History) part(e extent) ([]*state.Partition, error) {
	list, err := partitionsDeclaration.DecodePart(e.parts, e.part, []table.Range{{From: 0, To: e.count()}})
	if err != nil {
		return nil, unreadable(e.file, err)
	}
	return list.([]*state.Partition), nil //nolint:errcheck // the table has this row type
}

// versions returns the rows of an extent, with only the columns of [versionColumns].
func (h History) versions(ctx context.Context, e extent) ([]*state.Partition, error) {
	if h.simulated() {
		return h.page(ctx, e)
	}
	for _, name := range []string{e.name() + narrow, e.name()} {
		if rows, has := h.codec.pages.get(name); has {
			return rows, nil
		}
	}
	rows, err := h.narrowed(ctx, e)
	if err == nil {
		h.codec.pages.put(e.name()+narrow, rows)
	}
	return rows, err
}

// narrow is a suffix of cache keys. It marks rows of which only [versionColumns] were decoded.
const narrow = "#versions"

// narrowed decodes the rows of an extent, with only the columns of [versionColumns].
func (h History) narrowed(ctx context.Context, e extent) ([]*state.Partition, error) {
	rows := make([]*state.Partition, 0, e.count())
	add := func() reflect.Value {
		rows = append(rows, &state.Partition{})
		return reflect.ValueOf(rows[len(rows)-1]).Elem()
	}
	var err error
	if e.parts != nil {
		err = e.parts.Decode(versionColumns, e.part, []table.Range{{From: 0, To: e.count()}}, add)
	} else {
		var data []byte
		if data, err = h.store.LoadFile(ctx, e.file); err != nil {
			return nil, err
		}
		err = h.codec.files.Decode(versionColumns, data, add)
	}
	if err != nil {
		return nil, unreadable(e.file, err)
	}
	return rows, nil
}
