package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

// forgetFlags are the flags of servo assets forget.
type forgetFlags struct {
	reason   string
	dry, yes bool
}

func (a *app) forgetCommand() *cobra.Command {
	var f forgetFlags
	cmd := &cobra.Command{
		Use:         "forget ASSET…",
		Annotations: writesDocument,
		Short:       "Forget assets that have left the project, and let their outputs be deleted",
		Long: "Hide all outputs of assets that the project and the deployed release no longer declare. Readers do not find\n" +
			"them from now on. Files are deleted later: `servo admin gc` collects them when `defaults.keep.for` of\n" +
			"servo.yaml has passed, unless a pinned revision shows them. Runs, their tasks and their plans stay in\n" +
			"history. This cannot be undone. To keep the outputs readable, first pin a revision that shows them.\n\n" +
			"If an asset comes back later, it starts without outputs.",
		Example: "  servo assets forget clean/daily --dry-run\n  servo assets forget clean/daily --reason 'replaced by clean/hourly' --yes",
		Args:    takes("ASSET…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var keys []ids.AssetKey
			for _, arg := range args {
				key, err := ids.ParseAssetKey(arg)
				if err != nil {
					return usagef("%v", err)
				}
				keys = append(keys, key)
			}
			if f.reason == "" && !f.dry {
				return usagef("missing flag --reason: add a reason, for people who look for the outputs later")
			}
			return a.forget(cmd.Context(), keys, f)
		},
	}
	cmd.Flags().StringVar(&f.reason, "reason", "", "the reason, shown to people")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "print what would be hidden and deleted, without changing anything")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "forget without asking")
	return cmd
}

// forgetResult is the output of servo assets forget.
type forgetResult struct {
	DryRun bool                    `json:"dry_run"`
	Assets []engine.ForgottenAsset `json:"assets"`
	// DeletedFrom is the earliest time at which the collector deletes the outputs. Nil: they are never deleted, because
	// the project sets keep: all.
	DeletedFrom *time.Time `json:"deleted_from"`
}

// forget hides the outputs of assets.
func (a *app) forget(ctx context.Context, keys []ids.AssetKey, f forgetFlags) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	keep, err := a.forgettable(ctx, settings, keys)
	if err != nil {
		return err
	}
	result := forgetResult{DryRun: f.dry}
	if !keep.All {
		at := a.Clock.Now().Add(gc.Keep{For: keep.For}.WithDefaults().For).UTC().Truncate(time.Second)
		result.DeletedFrom = &at
	}
	return a.do(ctx, settings, func(ctx context.Context, s *session) error {
		release, deployed, err := s.Deployed(ctx)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if slices.Contains(deployed, key) {
				return fmt.Errorf("forget %s: the deployed release %.12s declares it: deploy the project without it first", key, release)
			}
		}
		r := engine.ForgetRequest{Assets: keys, Release: release, Reason: f.reason, DryRun: true}
		if result.Assets, err = s.Forget(ctx, r); err != nil {
			return asUsage(err)
		}
		if !f.dry {
			if err := a.confirmForgetting(&result, f.yes); err != nil {
				return err
			}
			r.DryRun = false
			if result.Assets, err = s.Forget(ctx, r); err != nil {
				return err
			}
		}
		return a.document(result, result.text)
	})
}

// forgettable returns the retention rule for outputs of assets that the project does not declare. It returns an error
// if the project declares one of the assets, or if a file with problems may declare one of them.
func (a *app) forgettable(ctx context.Context, p *project.Project, keys []ids.AssetKey) (plan.Keep, error) {
	r, err := project.LoadRetention(ctx, p.Root, a.projectOptions())
	if err != nil {
		return plan.Keep{}, a.problems(p.Root, err)
	}
	if len(r.Problems) > 0 {
		return plan.Keep{}, fmt.Errorf("forget assets: %s in asset files, which may declare any asset: run `servo validate` and fix the files",
			plural(len(r.Problems), "problem"))
	}
	for _, key := range keys {
		if slices.Contains(r.Assets(), key.String()) {
			return plan.Keep{}, fmt.Errorf("forget %s: the project declares it: remove its file, and deploy the project", key)
		}
	}
	return r.Default, nil
}

// confirmForgetting asks the user to confirm that the assets are forgotten.
func (a *app) confirmForgetting(r *forgetResult, yes bool) error {
	if yes {
		return nil
	}
	if _, terminal := a.width(a.Stdin); !terminal {
		return errors.New("forget assets: must be confirmed: check the result with --dry-run, then confirm with --yes")
	}
	fmt.Fprintf(a.Stderr, "%sForget %s? [yes/no] ", r.text(), plural(len(r.Assets), "asset"))
	answer, err := bufio.NewReader(a.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("forget assets: not confirmed, so nothing has changed: answer yes, or use --yes")
	}
	return nil
}

func (r *forgetResult) text() string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0) //nolint:mnd // spaces between columns
	fmt.Fprintln(table, "asset\tpartitions\trows\tbytes\tnewest output")
	for _, x := range r.Assets {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", x.Asset, x.Partitions, x.Rows, bytesText(x.Bytes), x.NewestAt.Time().Format(time.RFC3339))
	}
	_ = table.Flush() // writing to memory cannot fail
	verb := "are hidden"
	if r.DryRun {
		verb = "would be hidden"
	}
	if r.DeletedFrom == nil {
		fmt.Fprintf(&text, "these outputs %s, and no file is deleted, because defaults.keep is all\n", verb)
	} else {
		fmt.Fprintf(&text, "these outputs %s; from %s on, `servo admin gc` deletes their files\n", verb, r.DeletedFrom.Format(time.RFC3339))
	}
	return text.String()
}
