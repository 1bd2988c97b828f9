package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) gcCommand() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:         "gc [ASSET…]",
		Annotations: writesDocument,
		Short:       "Delete outputs and logs that are no longer needed",
		Long: "Delete superseded versions of partitions, outputs that never became visible, files of executions that\n" +
			"did not commit, old logs, and scratch folders of workers that died. Visible versions of partitions,\n" +
			"and outputs that live runs read or write, are never deleted.\n\n" +
			"servo.yaml sets what else to keep. The defaults are `defaults: {keep: {versions: 3, for: 30d}}` and\n" +
			"`keep_logs: 90d`; `keep: all` keeps everything. A superseded version is kept for an hour in any case. After\n" +
			"that, it is kept while it is one of the newest 3 versions of its partition and was superseded less than 30\n" +
			"days ago. Assets can override keep. `servo dev` collects automatically, and so does `servo run`, for up to a\n" +
			"second after its run.",
		Example: "  servo admin gc --dry-run\n  servo admin gc clean/daily",
		Args:    takes("[ASSET…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := gc.Options{DryRun: dry}
			for _, arg := range args {
				key, err := ids.ParseAssetKey(arg)
				if err != nil {
					return usagef("%v", err)
				}
				opts.Assets = append(opts.Assets, key)
			}
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				r, err := project.LoadRetention(cmd.Context(), p.Root, a.projectOptions())
				if err != nil {
					return a.problems(p.Root, err)
				}
				if len(r.Problems) > 0 {
					a.note("servo: %s in asset files. Outputs of the assets in these files, and of assets that no other file declares, are kept: "+
						"run `servo validate` and fix the files", plural(len(r.Problems), "problem"))
				}
				if err := checkAssetsExist(cmd.Context(), parts, r, opts.Assets); err != nil {
					return err
				}
				report, err := parts.Collect(cmd.Context(), a.options(p).Dir, keepRule(r), opts)
				return errors.Join(a.document(report, func() string { return gcText(report, event.At(a.Clock.Now())) }), err)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "list what would be deleted, without deleting it")
	return cmd
}

// checkAssetsExist returns an error if the project does not declare an asset, and the asset has no outputs. If files of
// the project have problems, it returns no error, because these files may declare the asset.
func checkAssetsExist(ctx context.Context, parts *embedded.Workspace, r *project.Retention, assets []ids.AssetKey) error {
	for _, key := range assets {
		if slices.Contains(r.Assets(), key.String()) || len(r.Problems) > 0 {
			continue
		}
		stored := false
		for _, err := range parts.Store.List(ctx, blob.ListOptions{Prefix: contract.AssetsPrefix(parts.Domain) + key.String() + "/"}) {
			if err != nil {
				return err
			}
			stored = true
			break
		}
		if !stored {
			return unknownAsset(key.String(), r.Assets())
		}
	}
	return nil
}

// maxItems is the maximum number of versions and logs that the table of a dry run lists.
const maxItems = 200

// itemsText lists what a dry run would delete.
func itemsText(text *strings.Builder, items []gc.Item, now event.Time) {
	if len(items) == 0 {
		return
	}
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0) //nolint:mnd // spaces between columns
	fmt.Fprintln(table, "asset\tpartition\treason\tversion or run\tage\tbytes")
	for i, item := range items {
		if i == maxItems {
			break
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(item.Asset, "-"), cmp.Or(item.Partition, "-"), item.Reason, item.Version,
			view.Span(now.Sub(item.StoredAt)), bytesText(item.Bytes))
	}
	_ = table.Flush() // writing to memory cannot fail
	if more := len(items) - maxItems; more > 0 {
		fmt.Fprintf(text, "… and %d more; list them with -o json\n", more)
	}
	text.WriteString("\n")
}

func gcText(r gc.Report, now event.Time) string {
	var text strings.Builder
	itemsText(&text, r.Items, now)
	if len(r.Counts) > 0 {
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0) //nolint:mnd // spaces between columns
		fmt.Fprintln(table, "asset\treason\tversions\tfiles\tbytes")
		for _, c := range r.Counts {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\n", cmp.Or(c.Asset, "-"), c.Reason, c.Versions, c.Files, bytesText(c.Bytes))
		}
		_ = table.Flush() // writing to memory cannot fail
	}
	verb := "deleted"
	if r.DryRun {
		verb = "would delete"
	}
	fmt.Fprintf(&text, "%s %s, %s, of %s\n", verb, plural(r.Files, "file"), bytesText(r.Bytes), plural(r.Listed, "object"))
	return text.String()
}
