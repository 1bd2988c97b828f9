package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/repair"
)

func (a *app) skipCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "skip ENTRY",
		Short: "Go on without a ledger entry that cannot be read",
		Long: "Record the decision to go on without a ledger entry that cannot be read, or whose plan cannot.\n" +
			"What the entry says is lost, and timers no longer wait for it. The decision is stored beside the entry, for good.",
		Args: takes("ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			entry := args[0]
			switch {
			case !ids.Valid(entry):
				return usagef("%q is not the id of an entry: 26 letters and digits", entry)
			case reason == "":
				return usagef("--reason is missing: say why the entry is lost; it is kept with the decision")
			}
			var p *project.Project
			err := a.upkeep(cmd.Context(), func(settings *project.Project, parts *embedded.Parts) error {
				p = settings
				return repair.Skip(cmd.Context(), a.repairConfig(parts),
					ledger.Skip{Entry: entry, By: a.User, At: event.At(a.Clock.Now()), Reason: reason})
			})
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), p, func(ctx context.Context, s *session) error {
				result, err := s.Compactor.Compact(ctx, compactor.Request{Barrier: true})
				if err != nil {
					return fmt.Errorf("the decision is recorded; it counts with the next compaction: %w", err)
				}
				if slices.Contains(result.Unread, entry) {
					return fmt.Errorf("the decision is recorded; it counts once %s can be read", ledger.SkipKey(s.Domain, entry))
				}
				return a.document(result, func() string {
					return fmt.Sprintf("entry %s is dealt with; revision %d\n", entry, result.Revision)
				})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the entry is lost; kept with the decision")
	return cmd
}

// unreadText names the entries that could not be folded.
func unreadText(unread []string) string {
	var text strings.Builder
	for _, entry := range unread {
		text.WriteString("cannot be read, or waits for an entry that cannot: " + entry + "\n")
	}
	return text.String()
}
