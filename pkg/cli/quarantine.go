package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) quarantineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine",
		Short: "Decide about outputs that a check has blocked",
		Long: "An output that a critical check has blocked is kept if its asset sets `quarantine`. Readers do not see it.\n" +
			"Look at its rows, then publish or delete it. If nobody decides, it expires.",
		Args: a.noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:         "list",
			Annotations: writesRows,
			Short:       "List the outputs in quarantine",
			Args:        takes(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.read(cmd.Context(), func(v published) error {
					found, err := a.calls(v).ListQuarantined(cmd.Context(), &servov1.ListQuarantinedRequest{})
					if err != nil {
						return err
					}
					return list(a, candidateColumns, api.ReadAll[engine.Candidate](found.GetOutputs()))
				})
			},
		},
		&cobra.Command{
			Use:         "show ASSET[PARTITION]",
			Annotations: writesDocument,
			Short:       "Show why an output is in quarantine, and how to look at its rows",
			Example:     "  servo quarantine show 'clean/daily[date=2025-03-30]'",
			Args:        takes("ASSET[PARTITION]"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.read(cmd.Context(), func(v published) error {
					c, err := engine.FindCandidate(v.State, args[0])
					if err != nil {
						return err
					}
					return a.document(c, func() string { return a.candidateText(&c) })
				})
			},
		},
		a.resolveCommand(event.DecisionApprove, "Publish an output in quarantine", "approved",
			"Publish an output although a check has blocked it. Its partition shows the output with the quality `approved`.\n"+
				"Partitions that read it become stale."),
		a.resolveCommand(event.DecisionReject, "Delete an output in quarantine", "rejected",
			"Reject an output that a check has blocked. Readers keep the previous output; the files are deleted after a day."),
	)
	return cmd
}

// resolveCommand returns the command that approves or rejects an output in quarantine.
func (a *app) resolveCommand(decision, short, done, long string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     decision + " ASSET[PARTITION]",
		Short:   short,
		Long:    long,
		Example: "  servo quarantine " + decision + " 'clean/daily[date=2025-03-30]' --reason 'see ticket 7'",
		Args:    takes("ASSET[PARTITION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(reason) > event.MaxMessage {
				return usagef("--reason has %d bytes: at most %d are allowed", len(reason), event.MaxMessage)
			}
			p, err := a.settings()
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), p, func(ctx context.Context, s *session) error {
				snap, err := s.Current(ctx)
				if err != nil {
					return err
				}
				c, err := engine.FindCandidate(snap.State, args[0])
				if err != nil {
					return err
				}
				if err := s.Resolve(ctx, c, decision, reason); err != nil {
					return err
				}
				a.note("%s %s: %s of run %s", done, a.style.bold(readable(c.Name)), plural(int(c.RowCount), "row"), c.RunID)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, shown to people")
	return cmd
}

// candidateColumns are the columns of the list of outputs in quarantine.
var candidateColumns = []column[engine.Candidate]{
	{Name: "output", Value: func(c engine.Candidate) any { return c.Name }, Text: func(c engine.Candidate) any { return readable(c.Name) }},
	{Name: "rows", Value: func(c engine.Candidate) any { return c.RowCount }, Text: func(c engine.Candidate) any { return number(view.Grouped(c.RowCount)) }},
	{Name: "checks", Value: func(c engine.Candidate) any { return cells(namesOfChecks(c.FailedChecks)) }, Text: func(c engine.Candidate) any {
		return strings.Join(namesOfChecks(c.FailedChecks), ", ")
	}},
	{Name: "blocked_at", Value: func(c engine.Candidate) any { return moment(c.BlockedAt) }, Text: func(c engine.Candidate) any { return stamp(c.BlockedAt) }},
	{Name: "expires_at", Value: func(c engine.Candidate) any { return moment(c.ExpiresAt) }, Text: func(c engine.Candidate) any { return stamp(c.ExpiresAt) }},
	{Name: "on_expiry", Value: func(c engine.Candidate) any { return onExpiry(c.ApproveOnExpiry) }},
	{Name: "run_id", Value: func(c engine.Candidate) any { return c.RunID }},
	{Name: "materialization_id", Machine: true, Value: func(c engine.Candidate) any { return c.MaterializationID }},
}

func namesOfChecks(checks []state.FailedCheck) []string {
	names := make([]string, len(checks))
	for i := range checks {
		names[i] = checks[i].Check
	}
	return names
}

func onExpiry(approve bool) string {
	if approve {
		return event.DecisionApprove
	}
	return event.DecisionReject
}

func (a *app) candidateText(c *engine.Candidate) string {
	out := &sheet{style: a.style, width: 12}
	out.field("output", "%s", a.style.bold(readable(c.Name)))
	out.field("rows", "%s", view.Grouped(c.RowCount))
	out.field("run", "%s", c.RunID)
	out.field("blocked", "%s", stamp(c.BlockedAt))
	out.field("expires", "%s, then %s", stamp(c.ExpiresAt), onExpiry(c.ApproveOnExpiry))
	for i, check := range c.FailedChecks {
		out.field(firstOnly(i, "checks"), "%s: %s", check.Check, view.OneLine(check.Message))
		if check.Sample != "" {
			out.field("", "failing rows: %s", rowsCommand(c.Name, check.Check, c.RunID))
		}
	}
	out.field("files", "%s", c.OutputURI)
	fmt.Fprintf(out, "\nservo query 'FROM %s.\"%s\"'\nservo quarantine approve %s\nservo quarantine reject %s\n",
		query.QuarantineSchema, strings.ReplaceAll(c.Asset, "/", "."), quoted(readable(c.Name)), quoted(readable(c.Name)))
	return out.String()
}

// quarantined prints the outputs of a run that wait for a decision.
func (a *app) quarantined(s *state.State, runID string) {
	all, err := engine.Candidates(s)
	if err != nil {
		a.warn("%v", err)
		return
	}
	n := 0
	for i := range all {
		if all[i].RunID != runID {
			continue
		}
		if n++; n <= maxFailures {
			a.note("quarantined %s until %s: servo quarantine show %s", readable(all[i].Name), stamp(all[i].ExpiresAt), quoted(readable(all[i].Name)))
		}
	}
	if n > maxFailures {
		a.note("… and %s: servo quarantine list", plural(n-maxFailures, "more output"))
	}
	if n > 0 {
		a.note("")
	}
}
