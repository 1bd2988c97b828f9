// Package publisher shows the visible outputs of assets at stable places: folders and DuckDB databases
// that other tools read without knowing Servo. This package is not a stable API.
//
// A published folder has a folder for each asset and, below it, a folder for each partition, named as in Hive:
//
//	published/clean/daily/date=2025-01-01/data.parquet
//
// By default the folder of a partition is a symbolic link to the output. A new output replaces the link
// with one rename, so a reader finds either the files of the earlier output or the files of the new
// one. Copies are replaced file by file.
//
// [Folder.Update] compares the folder with the visible outputs of a revision, and corrects the differences. If it
// stops at any point, the next call completes the work. The file [RecordName] in the folder is its record: it names
// every materialization that readers of the folder may find. The record is written before readers can find a new
// materialization, so that the collector does not delete that materialization. The record also proves that Servo owns
// the folder: a folder that has files but no record is never changed.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// Limits of a published asset.
const (
	MaxOutputs = 100_000 // partitions of an asset
	maxName    = 255     // bytes of the name of a folder
)

// Asset is an asset to publish, with its visible outputs.
type Asset struct {
	Key  string
	Name string // namespace/name at the published place
	// Copy means that the published folder has copies of the files instead of links.
	Copy bool
	// Dimensions are the names of the asset's dimensions, in the order of the folders.
	Dimensions []string
	// Has reports whether the asset, as declared now, has a partition. If it is nil, every materialized partition is
	// published.
	Has func(partition string) bool
	// Outputs are the visible outputs. Unread is the reason why they are not known. [Asset.Load] sets both.
	Outputs []Output
	Unread  error
}

// Output is the visible output of a partition.
type Output struct {
	Partition         string // empty for an unpartitioned asset
	MaterializationID string
	// URI is the object key of the output's folder. It ends in "/".
	URI string
}

// Load sets [Asset.Outputs] to the visible outputs of an asset in a snapshot. It skips outputs without
// files. If it returns an error, [Asset.Unread] is this error.
func (a *Asset) Load(ctx context.Context, snap *snapshot.Snapshot) error {
	a.Unread = a.load(ctx, snap)
	return a.Unread
}

// unreadIn returns the errors of all assets whose outputs are not known.
func unreadIn(assets []Asset) (err error) {
	for i := range assets {
		err = errors.Join(err, assets[i].Unread)
	}
	return err
}

func (a *Asset) load(ctx context.Context, snap *snapshot.Snapshot) error {
	a.Outputs = nil
	for row, err := range snap.Partitions(ctx, a.Key, "") {
		if err != nil {
			return fmt.Errorf("read the partitions of %s: %w", a.Key, err)
		}
		if row.OutputURI == "" || a.Has != nil && !a.Has(row.PartitionKey) {
			continue
		}
		if _, ok := folderOf(a.Dimensions, row.PartitionKey); !ok {
			continue // the asset now has other dimensions: readers of the asset do not see this partition
		}
		if len(a.Outputs) == MaxOutputs {
			return fmt.Errorf("asset %s has more than %d materialized partitions, the maximum for a published asset: set publish: false on the asset", a.Key, MaxOutputs)
		}
		a.Outputs = append(a.Outputs, Output{row.PartitionKey, row.MaterializationID, row.OutputURI})
	}
	return nil
}

// folderOf returns the folder of a partition, relative to the folder of its asset:
// date=2025-01-01/region=eu, or "" for an unpartitioned asset. It returns false if the dimensions of the key are not
// exactly those of the asset.
func folderOf(dimensions []string, key string) (folder string, ok bool) {
	partition, err := ids.ParsePartition(key)
	if err != nil || len(partition) != len(dimensions) {
		return "", false
	}
	names := make([]string, len(dimensions))
	for i, dimension := range dimensions {
		value, has := partition[dimension]
		if !has {
			return "", false
		}
		names[i] = dimension + "=" + escape(value)
	}
	return strings.Join(names, "/"), true
}

// escape escapes a dimension's value for the name of a folder. Readers of Hive partitions decode these escapes. If
// the value is in the list nulls, escape escapes its first character, because some readers interpret the plain text
// as NULL.
func escape(value string) string {
	nulls := []string{"null", "__hive_default_partition__"}
	isNull := slices.Contains(nulls, strings.ToLower(value))
	var b strings.Builder
	for i := range len(value) {
		c := value[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
		if plain && (i > 0 || !isNull) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
