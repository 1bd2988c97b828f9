package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// UnreadableOutputs lists the command assets whose output of a run has no Parquet file although other
// assets read its rows: queries, and commands with CSV inputs. It reads the commit
// markers of outputs with unknown columns.
func UnreadableOutputs(ctx context.Context, store blob.Store, s *state.State, run *state.Run, assets []plan.Asset) (found []string, err error) {
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
		if len(assets[i].Work.Command) == 0 || !assets[i].Work.HasFiles() || len(readers[key]) == 0 {
			continue
		}
		text, err := withoutParquet(ctx, store, unknownSchemas(s, run, key), readers[key])
		if err != nil {
			return found, err
		}
		if text != "" {
			found = append(found, text)
		}
	}
	return found, nil
}

// maxMarkers is the most commit markers of one asset that are read.
const maxMarkers = 100

// withoutParquet describes the outputs among rows that have no Parquet file, or returns "".
func withoutParquet(ctx context.Context, store blob.Store, rows []*state.Partition, readers []string) (string, error) {
	bad, first, left := 0, "", ""
	for _, row := range rows[:min(len(rows), maxMarkers)] {
		files, err := markerFiles(ctx, store, row)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(files, func(name string) bool { return strings.HasSuffix(name, ".parquet") }) {
			continue // the columns of its files differ
		}
		if bad++; bad == 1 {
			first, left = row.TaskKey, "it left no files"
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
	return fmt.Sprintf("%s%s has no Parquet file, so %s cannot read its rows: %s; write files that end in .parquet to SERVO_OUTPUT",
		first, also, view.Some(readers), left), nil
}

// unknownSchemas returns the partitions of an asset that a run materialized and whose columns are
// unknown: their output has no Parquet files, or files that differ.
func unknownSchemas(s *state.State, run *state.Run, asset string) (rows []*state.Partition) {
	s.Partitions.Ascend(state.Key2{A: asset}, func(row *state.Partition) bool {
		if row.AssetKey == asset && row.RunID == run.RunID && row.SchemaHash == "" && row.OutputURI != "" {
			rows = append(rows, row)
		}
		return row.AssetKey == asset
	})
	return rows
}

// markerFiles returns the names of the files of an output.
func markerFiles(ctx context.Context, store blob.Store, row *state.Partition) (names []string, err error) {
	data, _, err := blob.Get(ctx, store, contract.CommitMarkerKeyOf(row.OutputURI), contract.MaxCommitMarkerBytes)
	if err != nil {
		return nil, err
	}
	marker, err := contract.DecodeCommitMarker(data)
	if err != nil {
		return nil, err
	}
	for _, f := range marker.Files {
		names = append(names, f.Name)
	}
	return names, nil
}
