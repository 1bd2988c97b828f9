package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// mergeReport is the result of servo admin merge.
type mergeReport struct {
	Assets []mergedAsset `json:"assets"`
}

// mergedAsset counts the outputs of one asset that were merged, and the merged files.
type mergedAsset struct {
	Asset string `json:"asset"`
	worker.Merges
}

func (a *app) mergeCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "merge [ASSET…]",
		Annotations: writesDocument,
		Short:       "Copy small outputs to merged files, which make reading many partitions faster",
		Long: "Copy the small outputs of at least 64 neighbouring partitions to merged files. Queries of runs then\n" +
			"read a merged file instead of many small ones, and get the same rows. Workers do the same after a query that\n" +
			"has read many small files, if these are at least 10 minutes old.\n\n" +
			"Merged files are copies: deleting them is always safe. `servo admin gc` deletes them with the outputs.\n" +
			"`merge: false` on an asset turns merging off.",
		Example: "  servo admin merge\n  servo admin merge raw/visits",
		Args:    takes("[ASSET…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var named []ids.AssetKey
			for _, arg := range args {
				key, err := ids.ParseAssetKey(arg)
				if err != nil {
					return usagef("%v", err)
				}
				named = append(named, key)
			}
			p, err := a.usableProject(cmd.Context(), func([]plan.Asset) ([]ids.AssetKey, error) { return named, nil })
			if err != nil {
				return err
			}
			return a.merge(cmd.Context(), p, named)
		},
	}
}

// merge merges small outputs of the named assets or, if none is named, of all assets.
func (a *app) merge(ctx context.Context, p *project.Project, named []ids.AssetKey) (err error) {
	var chosen []*plan.Asset
	var keys []string
	for i := range p.Assets {
		asset := &p.Assets[i]
		keys = append(keys, asset.Key.String())
		isNamed := slices.Contains(named, asset.Key)
		if isNamed && asset.NoMerge {
			return fmt.Errorf("%s has `merge: false` in %s: remove the setting to merge the files of the asset", asset.Key, asset.File)
		}
		if isNamed || len(named) == 0 && !asset.NoMerge && asset.Partitions != nil && asset.Work.HasFiles() {
			chosen = append(chosen, asset)
		}
	}
	for _, key := range named {
		if !slices.Contains(keys, key.String()) {
			return unknownAsset(key.String(), keys)
		}
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parts.Close()) }()
	snap, err := parts.Reader().Current(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "servo-merge-")
	if err != nil {
		return fmt.Errorf("merge files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := worker.Merger{
		Store: parts.Store, NewID: parts.IDs.New, Dir: dir, MemoryLimit: "512MB", Checked: filecheck.New(), Before: a.Clock.Now(), Limits: merged.Usual,
	}
	report := mergeReport{Assets: []mergedAsset{}}
	for _, asset := range chosen {
		done, err := mergeAsset(ctx, parts, snap, asset, &m)
		if err != nil {
			return err
		}
		if done.Files > 0 {
			report.Assets = append(report.Assets, mergedAsset{asset.Key.String(), done})
		}
	}
	return a.document(report, func() string { return mergeText(report) })
}

// mergeAsset merges the visible outputs of one asset, in the order in which tasks read them.
func mergeAsset(ctx context.Context, parts *embedded.Workspace, snap *snapshot.Snapshot, asset *plan.Asset, m *worker.Merger) (done worker.Merges, err error) {
	found, err := engine.PartitionMarkers(ctx, parts.Store, snap, asset.Key)
	if err != nil {
		return done, err
	}
	g := worker.Merging{Domain: parts.Domain, Asset: asset.Key, Columns: asset.PartitionColumns()}
	for _, f := range found {
		g.Parts = append(g.Parts, worker.MergingPart{PartitionKey: f.PartitionKey, Marker: f.Marker})
	}
	return m.Merge(ctx, g)
}

func mergeText(report mergeReport) string {
	var text strings.Builder
	for _, a := range report.Assets {
		fmt.Fprintf(&text, "%s: copied the outputs of %s to %s, %s\n", a.Asset, plural(a.Cells, "partition"), plural(a.Files, "merged file"), bytesText(a.Bytes))
	}
	if len(report.Assets) == 0 {
		text.WriteString("nothing to merge: no asset has 64 neighbouring small outputs that are not merged yet\n")
	}
	return text.String()
}
