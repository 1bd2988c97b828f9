package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/textrows"
)

// UnreadableOutputs lists the assets whose command made an unreadable output in a run. An output without files is
// unreadable. An output without a Parquet file is unreadable if a query, or a command with CSV inputs, reads its rows.
// It reads the commit markers of outputs with unknown columns.
func UnreadableOutputs(
	ctx context.Context, store blob.Store, snap *snapshot.Snapshot, run *state.Run, assets []plan.Asset,
) (found []string, err error) {
	readers := map[string][]string{}
	for i := range assets {
		if w := &assets[i].Work; w.SQL != "" || w.InputFormat == plan.FormatCSV {
			for _, dep := range assets[i].Deps {
				readers[dep.String()] = append(readers[dep.String()], assets[i].Key.String())
			}
		}
	}
	for i := range assets {
		key := assets[i].Key.String()
		if len(assets[i].Work.Command) == 0 || !assets[i].Work.HasFiles() {
			continue
		}
		rows, err := unknownSchemas(ctx, snap, run, key)
		if err != nil {
			return found, err
		}
		text, err := withoutParquet(ctx, store, rows, readers[key])
		if err != nil {
			return found, err
		}
		if text != "" {
			found = append(found, text)
		}
	}
	return found, nil
}

// maxMarkers is the maximum number of commit markers that are read for one asset.
const maxMarkers = 100

// withoutParquet describes those outputs of the given rows that have no Parquet file, or returns "". If readers is
// empty, it describes only outputs that have no files at all.
func withoutParquet(ctx context.Context, store blob.Store, rows []*state.Partition, readers []string) (string, error) {
	bad, first, left, advice := 0, "", "", ""
	if len(readers) == 0 { // an output with bytes has files
		rows = slices.DeleteFunc(rows, func(row *state.Partition) bool { return row.ByteSize > 0 })
	}
	for _, row := range rows[:min(len(rows), maxMarkers)] {
		files, err := markerFiles(ctx, store, row)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(files, func(name string) bool { return strings.HasSuffix(name, ".parquet") }) {
			continue // the columns are unknown because they differ between files
		}
		if len(readers) == 0 && len(files) > 0 {
			continue
		}
		if bad++; bad == 1 {
			first, left = row.TaskKey, "0 files"
			if len(textrows.FormatsOf(files)) > 0 {
				advice = ", or declare the output and the columns of its text files"
			}
			if len(files) > 0 {
				left = "it left only " + view.Some(files)
			}
		}
	}
	if bad == 0 {
		return "", nil
	}
	also := ""
	if bad > 1 {
		also = fmt.Sprintf(" (and %s like it)", view.Count(bad-1, "partition"))
	}
	if len(readers) == 0 {
		return first + also + ": 0 files: write files to SERVO_OUTPUT, or declare output: none", nil
	}
	return fmt.Sprintf("%s%s has no Parquet file, so %s cannot read its rows: %s; write files that end in .parquet to SERVO_OUTPUT%s",
		first, also, view.Some(readers), left, advice), nil
}

// unknownSchemas returns the partitions of an asset that a run materialized and whose columns are
// unknown. Either their output has no Parquet files, or the columns of its files differ.
func unknownSchemas(ctx context.Context, snap *snapshot.Snapshot, run *state.Run, asset string) (rows []*state.Partition, err error) {
	for row, err := range snap.Partitions(ctx, asset, "") {
		if err != nil {
			return nil, err
		}
		if row.RunID == run.RunID && row.SchemaHash == "" && row.OutputURI != "" {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// ReadMarker returns the marker that names an output, and the key of the marker. The marker is the commit marker or,
// for an output that was in quarantine and was approved, the quarantine marker.
func ReadMarker(ctx context.Context, store blob.Store, uri string) (*contract.CommitMarker, string, error) {
	return contract.FindMarker(uri, func(key string) ([]byte, error) {
		data, _, err := blob.Get(ctx, store, key, contract.MaxCommitMarkerBytes)
		return data, err
	}, func(err error) bool { return errors.Is(err, blob.ErrNotFound) })
}

// markerFiles returns the names of the files of an output.
func markerFiles(ctx context.Context, store blob.Store, row *state.Partition) (names []string, err error) {
	marker, _, err := ReadMarker(ctx, store, row.OutputURI)
	if err != nil {
		return nil, err
	}
	for _, f := range marker.Files {
		names = append(names, f.Name)
	}
	return names, nil
}
