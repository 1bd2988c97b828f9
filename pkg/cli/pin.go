package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/project"
)

const (
	day = 24 * time.Hour
	// minPin and maxPin bound how long a revision is pinned.
	minPin = time.Hour
	maxPin = 3_650 * day
)

func (a *app) pinCommand() *cobra.Command {
	var keep, reason string
	var release bool
	cmd := &cobra.Command{
		Use:         "pin [REVISION]",
		Annotations: writesDocument,
		Short:       "Keep a revision with its outputs, or list the pinned revisions",
		Long: "Keep a revision, with every output that it shows, for a while: `servo query --as-of` and `servo export\n" +
			"--as-of` then read it, whatever the setting `keep` says. At most 10 revisions can be pinned at once. Outputs that\n" +
			"the collector has already deleted are not restored; the command counts them. Without REVISION, list the pins.",
		Example: "  servo admin pin 4211 --for 90d --reason 'figures of the annual report'\n" +
			"  servo admin pin 4211 --release --reason 'the report is published'",
		Args: takes("[REVISION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if cmd.Flags().Changed("for") || cmd.Flags().Changed("reason") || release {
					return usagef("missing argument REVISION")
				}
				return a.listPins(cmd.Context())
			}
			revision, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || revision < 1 {
				return usagef("invalid revision %q: expected a number of at least 1", args[0])
			}
			span, err := parseSpan(keep)
			switch {
			case reason == "":
				return usagef("missing flag --reason: add a reason, for people who look at the pin later")
			case release && cmd.Flags().Changed("for"):
				return usagef("--release ends the pin: leave out --for")
			case release:
				return a.release(cmd.Context(), revision, reason)
			case err != nil:
				return err
			case span < minPin || span > maxPin:
				return usagef("--for is %s; it must be between 1h and 3650d", keep)
			}
			return a.pin(cmd.Context(), revision, span, reason)
		},
	}
	cmd.Flags().StringVar(&keep, "for", "90d", "how long: 12h, 90d")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, shown to people")
	cmd.Flags().BoolVar(&release, "release", false, "end the pin of the revision")
	return cmd
}

// parseSpan parses a duration that may be in days.
func parseSpan(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= int(maxPin/day) {
			return time.Duration(n) * day, nil
		}
		return 0, usagef("invalid duration %q: write, for example, 12h or 90d; at most 3650d", text)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, usagef("invalid duration %q: write, for example, 12h or 90d", text)
	}
	return d, nil
}

func (a *app) pin(ctx context.Context, revision int64, span time.Duration, reason string) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	return a.do(ctx, settings, func(ctx context.Context, s *session) error {
		until := a.Clock.Now().Add(span)
		missing, err := s.Pin(ctx, revision, until, reason)
		if err != nil {
			return err
		}
		if missing > 0 {
			a.warn("%s of revision %d had been collected before the pin took effect", plural(missing, "output"), revision)
		}
		a.note("pinned revision %d until %s", revision, until.UTC().Format(time.RFC3339))
		return nil
	})
}

func (a *app) release(ctx context.Context, revision int64, reason string) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	return a.do(ctx, settings, func(ctx context.Context, s *session) error {
		if err := s.Unpin(ctx, revision, reason); err != nil {
			return err
		}
		a.note("released revision %d", revision)
		return nil
	})
}

// pinList is the result of servo admin pin without a revision.
type pinList struct {
	Pins []engine.Pinned `json:"pins"`
}

func (a *app) listPins(ctx context.Context) error {
	return a.withParts(ctx, func(_ *project.Project, parts *embedded.Workspace) error {
		snap, err := parts.Reader().Current(ctx)
		if err != nil {
			return err
		}
		pins := pinList{engine.Pins(snap.State, a.Clock.Now())}
		return a.document(pins, func() string {
			if len(pins.Pins) == 0 {
				return "no revision is pinned\n"
			}
			var text strings.Builder
			table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0) //nolint:mnd // spaces between columns
			fmt.Fprintln(table, "revision\tuntil\tpinned by\treason")
			for _, p := range pins.Pins {
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\n", p.Revision, p.Until.Time().Format(time.RFC3339), p.PinnedBy, p.Reason)
			}
			_ = table.Flush() // writing to memory cannot fail
			return text.String()
		})
	})
}
