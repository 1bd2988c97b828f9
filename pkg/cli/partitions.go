package cli

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
)

// partitionRow is a partition in the list.
type partitionRow struct{ view.Partition }

// materializedAt returns the time of the output of a partition, or 0.
func (p partitionRow) materializedAt() event.Time {
	if p.Row == nil {
		return 0
	}
	return p.Row.MaterializedAt
}

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
	{
		Name: "materialized_at", Value: func(p partitionRow) any { return moment(p.materializedAt()) },
		Text: func(p partitionRow) any { return stamp(p.materializedAt()) },
	},
	{Name: "run_id", Value: func(p partitionRow) any {
		if p.Row == nil {
			return nil
		}
		return p.Row.RunID
	}},
}

func (a *app) partitionsCommand() *cobra.Command {
	var f partitionFlags
	cmd := &cobra.Command{
		Use:         "partitions ASSET",
		Annotations: writesRows,
		Short:       "Show which partitions of an asset are fresh, stale, missing and failed; change key sets",
		Example:     "  servo partitions clean/daily\n  servo partitions clean/daily --list -o csv\n  servo partitions clean/daily --limit 1000",
		Args:        takes("ASSET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.definedProject(cmd.Context(), func(assets []plan.Asset) ([]ids.AssetKey, error) {
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
			return a.withSnapshot(cmd.Context(), p, func(snap *snapshot.Snapshot) error {
				return a.showPartitions(cmd.Context(), snap, p.Assets, asset, &f)
			})
		},
	}
	cmd.Flags().BoolVar(&f.list, "list", false, "list the partitions one by one")
	cmd.Flags().StringVar(&f.after, "after", "", "list the partitions after `KEY`, the partition or partition_key of the last listed partition")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "list at most `N` partitions; 0: all")
	cmd.AddCommand(a.addKeysCommand(), a.removeKeysCommand(), a.keySetsCommand(), a.markCommand())
	return cmd
}

// partitionFlags are the flags of servo partitions.
type partitionFlags struct {
	list  bool
	after string
	limit int
}

// showPartitions prints the partitions of an asset.
func (a *app) showPartitions(
	ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, asset *plan.Asset, f *partitionFlags,
) (err error) {
	if f.limit < 0 {
		return usagef("--limit %d: write a number of partitions, or 0 for all", f.limit)
	}
	after, err := afterKey(asset, f.after)
	if err != nil {
		return err
	}
	calendar := view.Calendar(snap.State, a.Clock.Now())
	asRows := f.list || after != "" || f.limit > 0 || a.format != render.Table
	var partitions []view.Partition
	paged := after != "" || f.limit > 0
	if paged {
		limit := f.limit
		if limit == 0 {
			limit = math.MaxInt
		}
		partitions, err = view.PartitionPage(snap.Partitions(ctx, asset.Key.String(), after), asset, calendar, after, limit)
	} else {
		partitions, err = view.PartitionsOf(snap.Partitions(ctx, asset.Key.String(), ""), asset, calendar, asRows)
	}
	if err != nil {
		return fmt.Errorf("list partitions of %s: %w", asset.Key, err)
	}
	if err := a.addStatuses(ctx, snap, assets, asset.Key, partitions, paged); err != nil {
		return err
	}
	if !asRows {
		_, err = fmt.Fprint(a.Stdout, a.partitionsText(asset, partitions))
		return err
	}
	rows := make([]partitionRow, len(partitions))
	for i := range partitions {
		rows[i] = partitionRow{partitions[i]}
	}
	return list(a, partitionColumns, rows)
}

// afterKey returns the partition key that --after names: the key itself, or the readable form in the column partition.
// afterKey rejects every other text: such a text would list from the beginning, so a loop over pages would never end.
func afterKey(asset *plan.Asset, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	p, err := ids.ParsePartition(text)
	if err != nil {
		_, p, err = ids.ParseTaskKey(asset.Key.String() + "[" + text + "]")
	}
	if err == nil {
		_, err = asset.Partitions.Parse(p.Key())
	}
	if err != nil {
		return "", usagef("--after %s is no partition of %s: write the partition or the partition_key of the last listed partition", text, asset.Key)
	}
	return p.Key(), nil
}

// addStatuses sets which partitions are fresh, stale or failed. For a page, it reads only the rows of the page's
// partitions and of the inputs of these partitions. For a whole list, it reads all rows at once.
func (a *app) addStatuses(
	ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, asset ids.AssetKey, partitions []view.Partition, page bool,
) error {
	e, err := engine.Staleness(ctx, snap, assets, a.Clock.Now())
	if err != nil {
		return err
	}
	failed, err := a.failedOf(ctx, snap, assets, asset)
	if err != nil {
		return err
	}
	if !page {
		if err := e.Load(asset); err != nil {
			return err
		}
	}
	keys := make([]string, len(partitions))
	for i := range partitions {
		keys[i] = partitions[i].Key
	}
	statuses, err := e.Statuses(asset, keys)
	if err != nil {
		return err
	}
	for i := range partitions {
		status := staleness.Missing
		if partitions[i].Status != view.PartitionMissing {
			status = statuses[i]
		}
		partitions[i].Status = string(failed.Status(partitions[i].Key, status))
	}
	return nil
}

// failedOf returns the failed partitions of an asset.
func (a *app) failedOf(ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, key ids.AssetKey) (engine.Failed, error) {
	at := slices.IndexFunc(assets, func(asset plan.Asset) bool { return asset.Key == key })
	if at < 0 {
		return nil, nil
	}
	found, err := engine.Failures(ctx, snap, map[string]*plan.Asset{key.String(): &assets[at]}, view.Calendar(snap.State, a.Clock.Now()))
	if err != nil {
		return nil, fmt.Errorf("find the failed partitions of %s: %w", key, err)
	}
	return engine.FailedOf(found, key), nil
}

// assetNamed returns the asset that a selection names, by its key or only by its name.
func assetNamed(assets []plan.Asset, name string) (*plan.Asset, error) {
	choice, err := (&assetFlags{}).parse([]string{name})
	if err != nil {
		return nil, err
	}
	chosen, err := choice.resolve(assets)
	switch {
	case err != nil:
		return nil, err
	case len(chosen.Keys) != 1:
		return nil, usagef("%s selects %s: name one asset", name, plural(len(chosen.Keys), "asset"))
	}
	at := slices.IndexFunc(assets, func(a plan.Asset) bool { return a.Key == chosen.Keys[0] })
	return &assets[at], nil
}

// partitionsText formats the partitions of an asset as ranges by status.
func (a *app) partitionsText(asset *plan.Asset, partitions []view.Partition) string {
	counts := map[string]int{}
	for i := range partitions {
		counts[partitions[i].Status]++
	}
	t := &sheet{style: a.style, width: 14}
	t.field("asset", "%s", a.style.bold(asset.Key.String()))
	t.line("partitions", asset.Partitions.Range())
	for _, status := range []string{string(staleness.Fresh), string(staleness.Stale), view.PartitionMissing, view.PartitionFailed} {
		text := view.Grouped(int64(counts[status]))
		if ranges := view.PartitionRanges(asset, partitions, status); ranges != "" {
			text += "  " + ranges
		}
		t.field(status, "%s", text)
	}
	t.line("newest", view.Strip(asset, partitions))
	return t.String()
}
