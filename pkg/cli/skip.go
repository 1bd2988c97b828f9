package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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
		Use:         "skip ENTRY",
		Annotations: writesDocument,
		Short:       "Skip a ledger entry that cannot be read",
		Long: "Record the decision to skip a ledger entry that cannot be read, or whose plan cannot be read.\n" +
			"The events of the entry are lost, and timers no longer wait for it. The decision is permanent:\n" +
			"it is stored beside the entry.",
		Args: takes("ENTRY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			entry := args[0]
			switch {
			case !ids.Valid(entry):
				return usagef("invalid entry %q: expected 26 letters and digits", entry)
			case reason == "":
				return usagef("missing flag --reason: say why the entry is lost; the reason is stored with the decision")
			}
			var p *project.Project
			err := a.withParts(cmd.Context(), func(settings *project.Project, parts *embedded.Workspace) error {
				p = settings
				return repair.Skip(cmd.Context(), a.repairConfig(parts),
					ledger.Skip{Entry: entry, By: a.User, At: event.At(a.Clock.Now()), Reason: reason})
			})
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), p, func(ctx context.Context, s *session) error {
				result, err := s.CatchUp(ctx)
				if err != nil {
					return fmt.Errorf("the decision is recorded and takes effect with the next compaction: %w", err)
				}
				if slices.Contains(result.Unreadable, entry) {
					return fmt.Errorf("the decision is recorded and takes effect as soon as %s can be read", ledger.SkipKey(s.Domain(), entry))
				}
				return a.document(result, func() string {
					return fmt.Sprintf("entry %s no longer blocks the fold; revision %d\n", entry, result.Revision)
				})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the entry is lost; stored with the decision")
	return cmd
}

// unreadText lists the entries that could not be folded.
func unreadText(unread []string) string {
	var text strings.Builder
	for _, entry := range unread {
		text.WriteString("unreadable, or waiting for an unreadable entry: " + entry + "\n")
	}
	return text.String()
}
