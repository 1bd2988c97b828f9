package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// partitionRow is a partition in the list.
type partitionRow struct{ view.Partition }

var partitionColumns = []column[partitionRow]{
	{Name: "partition", Value: func(p partitionRow) any { return p.Name() }},
	{Name: "partition_key", Machine: true, Value: func(p partitionRow) any { return p.Key }},
	{Name: "status", Value: func(p partitionRow) any { return p.Status }},
	{Name: "rows", Value: func(p partitionRow) any {
		if p.Row == nil {
			return nil
		}
		return p.Row.RowCount
	}},
	{Name: "bytes", Value: func(p partitionRow) any {
		if p.Row == nil {
			return nil
		}
		return p.Row.ByteSize
	}},
	{Name: "materialized_at", Value: func(p partitionRow) any {
		if p.Row == nil {
			return nil
		}
		return p.Row.MaterializedAt.Time().Format(time.RFC3339)
	}},
	{Name: "run_id", Value: func(p partitionRow) any {
		if p.Row == nil {
			return nil
		}
		return p.Row.RunID
	}},
}

func (a *app) partitionsCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "partitions ASSET",
		Short:   "Show which partitions of an asset are materialized and which are missing",
		Example: "  servo partitions clean/daily\n  servo partitions clean/daily --list -o csv",
		Args:    takes("ASSET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.usableProject(cmd.Context(), func(assets []plan.Asset) ([]ids.AssetKey, error) {
				asset, err := assetNamed(assets, args[0])
				if err != nil {
					return nil, err
				}
				return []ids.AssetKey{asset.Key}, nil
			})
			if err != nil {
				return err
			}
			asset, err := assetNamed(p.Assets, args[0])
			if err != nil {
				return err
			}
			if asset.Partitions == nil {
				return fmt.Errorf("asset %s has no partitions: `servo assets %s` shows its output", asset.Key, asset.Key)
			}
			s, err := a.current(cmd.Context(), p)
			if err != nil {
				return err
			}
			partitions, err := view.PartitionsOf(s, asset, plan.Calendar{Now: a.Clock.Now(), Zone: time.LoadLocation})
			if err != nil {
				return fmt.Errorf("list partitions of %s: %w", asset.Key, err)
			}
			if all || a.format != render.Table {
				rows := make([]partitionRow, len(partitions))
				for i := range partitions {
					rows[i] = partitionRow{partitions[i]}
				}
				return list(a, partitionColumns, rows)
			}
			_, err = fmt.Fprint(a.Stdout, a.partitionsText(asset, partitions))
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "list", false, "list the partitions one by one")
	return cmd
}

// assetNamed returns the asset with a key.
func assetNamed(assets []plan.Asset, name string) (*plan.Asset, error) {
	known := make([]string, len(assets))
	for i := range assets {
		if known[i] = assets[i].Key.String(); known[i] == name {
			return &assets[i], nil
		}
	}
	return nil, unknownAsset(name, known)
}

// partitionsText formats the partitions of an asset as ranges by status.
func (a *app) partitionsText(asset *plan.Asset, partitions []view.Partition) string {
	counts := map[string]int{}
	for i := range partitions {
		counts[partitions[i].Status]++
	}
	t := &sheet{style: a.style, width: 14}
	t.field("asset", "%s", a.style.bold(asset.Key.String()))
	t.known("partitions", asset.Partitions.Range())
	for _, status := range []string{view.PartitionMaterialized, view.PartitionMissing} {
		text := view.Grouped(int64(counts[status]))
		if ranges := view.PartitionRanges(asset, partitions, status); ranges != "" {
			text += "  " + ranges
		}
		t.field(status, "%s", text)
	}
	t.known("newest", view.Strip(asset, partitions))
	return t.String()
}
