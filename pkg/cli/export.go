package cli

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query"
)

func (a *app) exportCommand() *cobra.Command {
	var f assetFlags
	var file, asOf string
	cmd := &cobra.Command{
		Use:   "export [SELECTION…] --duckdb FILE",
		Short: "Write a DuckDB file with a view for each asset, for other tools",
		Long: "Write a DuckDB database with a view for each asset that has rows: namespace.name. Any DuckDB on this\n" +
			"machine can read it. The views read the outputs of one revision where they are stored. Export again to see\n" +
			"newer outputs, and before keep deletes those that were replaced.",
		Example: "  servo export --duckdb shop.duckdb\n" +
			"  servo export --duckdb gold.duckdb tag:gold --exclude 'raw/*'",
		Args: takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usagef("missing flag --duckdb FILE; usage: %s", cmd.UseLine())
			}
			_, chosen, err := a.listed(cmd.Context(), &f, args)
			if err != nil {
				return err
			}
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				return a.export(cmd.Context(), p, parts, chosen.Keys, file, asOf)
			})
		},
	}
	cmd.Flags().StringVar(&file, "duckdb", "", "the file to write; one that servo export wrote is replaced")
	cmd.Flags().StringVar(&asOf, "as-of", "", "export the outputs as of a revision or a time (RFC 3339)")
	cmd.Flags().StringArrayVar(&f.exclude, "exclude", nil, "leave out the assets of a selection (repeatable)")
	return cmd
}

func (a *app) export(ctx context.Context, p *project.Project, parts *embedded.Workspace, keys []ids.AssetKey, file, asOf string) error {
	if parts.Folder == nil {
		return usagef("export needs outputs on this machine: the state is in a bucket")
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	m, err := revision(ctx, parts, asOf)
	if err != nil {
		return err
	}
	places, err := newPlacer(parts)
	if err != nil {
		return err
	}
	files, err := tables(ctx, places, m)
	if err != nil {
		return err
	}
	dir := a.options(p).Dir
	source := query.Source{Tables: files, Outputs: dir, Checked: filecheck.Open(filepath.Join(dir, checkedFile)), Declared: a.declaredBy(parts.Store, p)}
	defer func() { _ = source.Checked.Save() }()
	number := int64(0)
	if m != nil {
		number = m.Revision
	}
	views, err := query.Export(ctx, source, number, a.Clock.Now(), file, func(asset string) bool {
		return slices.ContainsFunc(keys, func(k ids.AssetKey) bool { return k.String() == asset })
	})
	if err != nil {
		return err
	}
	var none []string
	for _, key := range keys {
		if !slices.Contains(views, key.String()) {
			none = append(none, key.String())
		}
	}
	if len(none) > 0 {
		a.warn("left out assets without rows: %s", strings.Join(none, ", "))
	}
	a.note("wrote %s with %s of revision %d", file, plural(len(views), "view"), number)
	return nil
}
