package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
)

// exportFlags are the flags of servo export.
type exportFlags struct {
	file, folder, asOf string
	copies             bool
}

func (a *app) exportCommand() *cobra.Command {
	var f assetFlags
	var e exportFlags
	cmd := &cobra.Command{
		Use:   "export [SELECTION…] --duckdb FILE|--folder DIR",
		Short: "Write a DuckDB file or a folder with the outputs of assets, for other tools",
		Long: "Write a DuckDB database with a view for each asset that has rows: namespace.name. Any DuckDB on this\n" +
			"machine can read it. Or write a folder with subfolders for assets and partitions, named as in Hive:\n" +
			"clean/daily/date=2025-01-01/data.parquet. It has links to the outputs or, with --copy, copies.\n\n" +
			"Views and links refer to the stored outputs of one revision. Export again to see newer outputs. Also export again\n" +
			"before `keep` deletes superseded outputs to which views and links still refer. With `publish` in servo.yaml,\n" +
			"servo keeps a file or a folder up to date.",
		Example: "  servo export --duckdb shop.duckdb\n" +
			"  servo export --duckdb gold.duckdb tag:gold --exclude 'raw/*'\n" +
			"  servo export --folder handover --copy 'report/*'",
		Args: takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case e.file == "" && e.folder == "":
				return usagef("missing flag --duckdb FILE or --folder DIR; usage: %s", cmd.UseLine())
			case e.folder == "" && e.copies:
				return usagef("--copy needs a folder: add --folder DIR")
			}
			_, chosen, err := a.listed(cmd.Context(), &f, args)
			if err != nil {
				return err
			}
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				return a.export(cmd.Context(), p, parts, chosen.Keys, e)
			})
		},
	}
	cmd.Flags().StringVar(&e.file, "duckdb", "", "the file to write; an existing file is replaced only if servo export wrote it")
	cmd.Flags().StringVar(&e.folder, "folder", "", "the folder to write; an existing folder is updated only if servo export wrote it")
	cmd.Flags().BoolVar(&e.copies, "copy", false, "copy the files into the folder instead of linking them")
	cmd.Flags().StringVar(&e.asOf, "as-of", "", "export the outputs as of a revision or a time (RFC 3339)")
	cmd.Flags().StringArrayVar(&f.exclude, "exclude", nil, "leave out the assets of a selection (repeatable)")
	return cmd
}

func (a *app) export(ctx context.Context, p *project.Project, parts *embedded.Workspace, keys []ids.AssetKey, e exportFlags) error {
	if parts.Folder == nil {
		return usagef("export needs outputs on this machine: the state is in a bucket")
	}
	snap, err := snapshotAt(ctx, parts, e.asOf)
	if err != nil {
		return err
	}
	assets, columns, err := a.exported(ctx, parts, snap, keys, e.copies)
	if err != nil {
		return err
	}
	if e.folder != "" {
		if err := a.exportFolder(ctx, p, assets, snap.Revision, e.folder); err != nil {
			return err
		}
	}
	if e.file != "" {
		return a.exportCatalog(ctx, p, assets, columns, snap.Revision, e.file)
	}
	return nil
}

// snapshotAt returns the state as of a revision or a time. If asOf is empty, it returns the newest state.
func snapshotAt(ctx context.Context, parts *embedded.Workspace, asOf string) (*snapshot.Snapshot, error) {
	m, err := revision(ctx, parts, asOf)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return parts.Reader().Current(ctx)
	}
	s, err := snapshot.Load(ctx, parts.Codec, parts.Manifests, m)
	if err != nil {
		return nil, err
	}
	return &snapshot.Snapshot{Revision: m.Revision, State: s, History: snapshot.HistoryOf(parts.Codec, parts.Manifests, m)}, nil
}

// exported returns the named assets with their visible outputs, and the partition columns of these assets. It leaves
// out assets without outputs, and assets that are not in the deployed release of the snapshot.
func (a *app) exported(
	ctx context.Context, parts *embedded.Workspace, snap *snapshot.Snapshot, keys []ids.AssetKey, copies bool,
) (assets []publisher.Asset, columns map[string][]space.Column, err error) {
	sha := snap.State.Release()
	if sha == "" {
		return nil, nil, fmt.Errorf("none of the assets has an output with rows: run them first")
	}
	_, code, err := engine.ReadRelease(ctx, parts.Store, parts.Domain, sha)
	if err != nil {
		return nil, nil, err
	}
	calendar := view.Calendar(snap.State, a.Clock.Now())
	var none []string
	for _, key := range keys {
		i, found := slices.BinarySearchFunc(code.Assets, key, func(asset plan.Asset, key ids.AssetKey) int { return plan.CompareKeys(asset.Key, key) })
		if !found {
			none = append(none, key.String())
			continue
		}
		asset, err := publishedAs(&code.Assets[i], calendar, key.String(), copies)
		if err == nil {
			err = asset.Load(ctx, snap)
		}
		if err != nil {
			return nil, nil, err
		}
		if len(asset.Outputs) == 0 {
			none = append(none, key.String())
			continue
		}
		assets = append(assets, asset)
	}
	if len(none) > 0 {
		a.warn("skipped assets without outputs: %s", strings.Join(none, ", "))
	}
	return assets, columnsOf(code.Assets), nil
}

func (a *app) exportFolder(ctx context.Context, p *project.Project, assets []publisher.Asset, number int64, name string) error {
	if len(assets) == 0 {
		return fmt.Errorf("none of the assets has an output: run them first")
	}
	dir := a.options(p).Dir
	folder := publisher.Folder{Path: a.abs(name), Name: name, Store: dir}
	folder.Owner = a.ownerOf(p, dir, folder.Path, publisher.KindExport)
	if _, err := folder.Update(ctx, assets, number, event.At(a.Clock.Now())); err != nil {
		return err
	}
	outputs := 0
	for i := range assets {
		outputs += len(assets[i].Outputs)
	}
	a.note("wrote %s with %s of %s of revision %d", folder.Path, plural(outputs, "output"), plural(len(assets), "asset"), number)
	return nil
}

// notPublished returns an error if a DuckDB file is a published place, or was one.
func notPublished(p *project.Project, dir, file string) error {
	record := publisher.RecordOf(file)
	if _, err := publisher.ReadRecord(record); err != nil {
		return nil //nolint:nilerr // there is no record
	}
	places, err := publisher.ReadStatus(dir, p.Domain.String())
	if err == nil && slices.ContainsFunc(places, func(s publisher.Status) bool { return s.Record == record }) {
		return fmt.Errorf("%s is kept up to date because of publish in %s: choose another file", file, project.ConfigFile)
	}
	return fmt.Errorf("%s was published, but not by the current %s: choose another file, or delete this one and the folder %s",
		file, project.ConfigFile, publisher.LinksOf(file))
}

func (a *app) exportCatalog(
	ctx context.Context, p *project.Project, assets []publisher.Asset, columns map[string][]space.Column, number int64, name string,
) error {
	file, dir := a.abs(name), a.options(p).Dir
	if err := notPublished(p, dir, file); err != nil {
		return err
	}
	checked := filecheck.Open(filepath.Join(dir, checkedFile))
	defer func() { _ = checked.Save() }() // an error does not matter, because the file is only a cache
	views, err := query.Export(ctx, query.Catalog{
		Outputs: dir, Assets: exportedAs(assets, columns), Checked: checked, Revision: number, At: a.Clock.Now(),
	}, file)
	if err != nil {
		return err
	}
	var none []string
	for i := range assets {
		if !slices.Contains(views, assets[i].Key) {
			none = append(none, assets[i].Key)
		}
	}
	if len(none) > 0 {
		a.warn("skipped assets without rows: %s", strings.Join(none, ", "))
	}
	a.note("wrote %s with %s of revision %d", file, plural(len(views), "view"), number)
	return nil
}
