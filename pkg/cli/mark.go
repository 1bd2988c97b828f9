package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// markFlags are the flags of servo partitions mark.
type markFlags struct {
	partitions            []string
	stale, fresh, missing bool
	reason                string
}

func (a *app) markCommand() *cobra.Command {
	var f markFlags
	cmd := &cobra.Command{
		Use:         "mark ASSET",
		Annotations: writesDocument,
		Short:       "Mark outputs as stale, fresh or missing",
		Long: "Mark the outputs of partitions as stale (a run with --stale materializes them again), as fresh (they are\n" +
			"up to date with everything that exists now), or as missing (no reader finds them any more). A mark ends when\n" +
			"the partition is materialized again. The outputs do not change.",
		Example: "  servo partitions mark raw/prices -p 2025-01-15 --missing --reason 'wrong currency'\n" +
			"  servo partitions mark clean/daily -p 2025-01 --stale --reason 'the API has corrected the month'",
		Args: takes("ASSET"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.mark(cmd.Context(), args[0], &f) },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.partitions, "partition", "p", nil, "partitions to mark: date=2025-01-15, 2025-01, stale or all (repeatable)")
	flags.BoolVar(&f.stale, event.MarkStale, false, "the outputs must be materialized again")
	flags.BoolVar(&f.fresh, event.MarkFresh, false, "the outputs are up to date with everything that exists now")
	flags.BoolVar(&f.missing, event.MarkMissing, false, "the outputs are wrong: hide them from readers")
	flags.StringVar(&f.reason, "reason", "", "the reason for the mark, shown by servo explain")
	return cmd
}

// mark returns the mark that the flags choose.
func (f *markFlags) mark() (string, error) {
	chosen := ""
	for mark, set := range map[string]bool{event.MarkStale: f.stale, event.MarkFresh: f.fresh, event.MarkMissing: f.missing} {
		if set && chosen != "" {
			return "", usagef("--stale, --fresh and --missing cannot be combined: choose one")
		}
		if set {
			chosen = mark
		}
	}
	switch {
	case chosen == "":
		return "", usagef("missing flag: add --stale, --fresh or --missing")
	case f.reason == "":
		return "", usagef("missing flag --reason: add a reason, for people who look at the marks later")
	case len(f.reason) > event.MaxMessage:
		return "", usagef("--reason has %d bytes; at most %d are allowed", len(f.reason), event.MaxMessage)
	}
	return chosen, nil
}

func (a *app) mark(ctx context.Context, name string, f *markFlags) error {
	r := engine.MarkRequest{Reason: f.reason}
	var err error
	if r.Mark, err = f.mark(); err != nil {
		return err
	}
	for _, text := range f.partitions {
		s, err := plan.ParseSelection(text)
		if err != nil {
			return &usageError{err}
		}
		r.Partitions = append(r.Partitions, s)
	}
	p, err := a.definedProject(ctx, func(assets []plan.Asset) ([]ids.AssetKey, error) {
		asset, err := assetNamed(assets, name)
		if err != nil {
			return nil, err
		}
		r.Asset = asset.Key
		return []ids.AssetKey{asset.Key}, nil
	})
	if err != nil {
		return err
	}
	r.Assets = p.Assets
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		done, err := s.Mark(ctx, r)
		if invalid := new(engine.InvalidError); errors.As(err, &invalid) {
			return &usageError{err}
		}
		if err != nil {
			return err
		}
		if done.Stale > 0 {
			a.warn("%s still stale, because the code has changed after the output was made: accept the change with `servo deploy --accept %s`", wereOf(done.Stale), done.Asset)
		}
		return a.document(done, func() string {
			return fmt.Sprintf("marked %s of %s as %s\n", plural(done.Partitions, "partition"), done.Asset, done.Mark)
		})
	})
}

// wereOf returns "1 partition is" or, for example, "2 partitions are".
func wereOf(n int) string {
	if n == 1 {
		return "1 partition is"
	}
	return plural(n, "partition") + " are"
}
