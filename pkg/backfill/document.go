package backfill

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxBytes is the maximum size of a document.
const MaxBytes = 256 << 20

// documentVersion is the version of the format.
const documentVersion = 1

// document is the stored form of chunks. A chunk maps assets to partition keys. The position of a partition in its
// chunk is its index in the order of the task keys.
type document struct {
	Version int                   `json:"schema_version"`
	Chunks  []map[string][]string `json:"chunks"`
}

// Ref returns the object key of the document of a backfill. The object is compressed; sha is the hash of the
// uncompressed document.
func Ref(d ids.Domain, sha string) string { return Prefix(d) + sha + ".json.zst" }

// Prefix returns the prefix of the keys of a domain's documents.
func Prefix(d ids.Domain) string { return "backfills/" + d.Path() + "/" }

// Encode returns the chunks as a document, and the hexadecimal SHA-256 that names it.
func (c *Chunks) Encode() (data []byte, sha string, err error) {
	doc := document{Version: documentVersion, Chunks: make([]map[string][]string, len(c.Lists))}
	for i, list := range c.Lists {
		doc.Chunks[i] = map[string][]string{}
		for _, cell := range list {
			key := cell.Asset.String()
			doc.Chunks[i][key] = append(doc.Chunks[i][key], cell.Partition)
		}
	}
	if data, err = json.Marshal(doc); err != nil { // Marshal sorts the keys
		return nil, "", fmt.Errorf("encode the chunks of a backfill: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, "", fmt.Errorf("the list of partitions has %d bytes; at most %d are allowed: select fewer partitions", len(data), MaxBytes)
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:]), nil
}

// Sizes returns the number of partitions of each chunk.
func (c *Chunks) Sizes() []int32 {
	sizes := make([]int32, len(c.Lists))
	for i, list := range c.Lists {
		sizes[i] = int32(len(list)) //nolint:gosec // at most event.MaxChunkCells
	}
	return sizes
}

// Total returns the number of partitions.
func (c *Chunks) Total() int {
	total := 0
	for _, list := range c.Lists {
		total += len(list)
	}
	return total
}

// Document is a decoded document. [Document.Chunk] decodes the cells of a chunk when it is called.
type Document struct{ chunks []map[string][]string }

// Decode decodes a document and verifies it against its hash.
func Decode(data []byte, sha string) (*Document, error) {
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != sha {
		return nil, fmt.Errorf("the list of partitions of the backfill is damaged: its content does not have the hash %s", sha)
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("decode the chunks of a backfill: %w", err)
	}
	if doc.Version != documentVersion || len(doc.Chunks) > event.MaxChunks {
		return nil, fmt.Errorf("decode the chunks of a backfill: version %d with %d chunks is not supported", doc.Version, len(doc.Chunks))
	}
	return &Document{doc.Chunks}, nil
}

// Chunk returns the cells of a chunk in the order of their positions.
func (d *Document) Chunk(n int32) ([]Cell, error) {
	if n < 0 || int(n) >= len(d.chunks) {
		return nil, fmt.Errorf("the backfill has no chunk %d: it has %d", n, len(d.chunks))
	}
	var cells []Cell
	for name, keys := range d.chunks[n] {
		asset, err := ids.ParseAssetKey(name)
		if err != nil {
			return nil, fmt.Errorf("chunk %d: %w", n, err)
		}
		for _, key := range keys {
			partition, err := ids.ParsePartition(key)
			if err != nil {
				return nil, fmt.Errorf("chunk %d: asset %s: %w", n, name, err)
			}
			cells = append(cells, Cell{asset, key, ids.TaskKey(asset, partition)})
		}
	}
	sortCells(cells)
	if len(slices.CompactFunc(slices.Clone(cells), func(a, b Cell) bool { return a.Task == b.Task })) < len(cells) {
		return nil, fmt.Errorf("chunk %d has a partition twice", n)
	}
	return cells, nil
}

// Each calls f with the partition keys of each asset in each chunk, until f returns false. The order is not defined.
func (d *Document) Each(f func(chunk int32, asset string, partitions []string) bool) {
	for i, assets := range d.chunks {
		for name, keys := range assets {
			if !f(int32(i), name, keys) { //nolint:gosec // at most event.MaxChunks
				return
			}
		}
	}
}

// Find returns the number of the chunk that contains a partition, and the position of the partition in the chunk. It
// returns -1 for both if no chunk contains the partition.
func (d *Document) Find(asset ids.AssetKey, partition string) (chunk int32, position int) {
	for i, assets := range d.chunks {
		if !slices.Contains(assets[asset.String()], partition) {
			continue
		}
		cells, err := d.Chunk(int32(i)) //nolint:gosec // at most event.MaxChunks
		if err != nil {
			return -1, -1
		}
		return int32(i), slices.IndexFunc(cells, func(c Cell) bool { return c.Asset == asset && c.Partition == partition }) //nolint:gosec // as above
	}
	return -1, -1
}
