package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) gcCommand() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "gc [ASSET…]",
		Short: "Delete outputs and logs that are no longer needed",
		Long: "Delete superseded versions of partitions, outputs that never became visible, files of executions that\n" +
			"failed or lost, old logs, and scratch folders of workers that died. Visible versions of partitions, and outputs\n" +
			"that live runs read or write, are never deleted.\n\n" +
			"servo.yaml sets what else to keep: defaults: {keep: {versions: 3, for: 30d}}, or keep: all, and\n" +
			"keep_logs: 90d. Assets can override keep. `servo dev` collects automatically, and so does `servo run`,\nfor up to a second after its run.",
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
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Parts) error {
				r, err := project.LoadRetention(cmd.Context(), p.Root)
				if err != nil {
					return a.problems(p.Root, err)
				}
				if len(r.Problems) > 0 {
					a.note("servo: %s in asset files. Outputs of these assets, and of assets that no other file declares, are kept: "+
						"run `servo validate` and fix the files", plural(len(r.Problems), "problem"))
				}
				report, err := parts.Collect(cmd.Context(), a.options(p).Dir, keepRule(r), opts)
				return errors.Join(a.document(report, func() string { return gcText(report) }), err)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "delete nothing, and report what would be deleted")
	return cmd
}

func gcText(r gc.Report) string {
	var text strings.Builder
	if len(r.Counts) > 0 {
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0) //nolint:mnd // spaces between columns
		fmt.Fprintln(table, "asset\treason\tversions\tfiles\tbytes")
		for _, c := range r.Counts {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\n", cmp.Or(c.Asset, "-"), c.Reason, c.Versions, c.Files, bytesText(c.Bytes))
		}
		_ = table.Flush() // into memory
	}
	verb := "deleted"
	if r.DryRun {
		verb = "would delete"
	}
	fmt.Fprintf(&text, "%s %s, %s, of %s\n", verb, plural(r.Files, "file"), bytesText(r.Bytes), plural(r.Listed, "object"))
	return text.String()
}
