package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) backfillCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Materialize many partitions in chunks that can be paused, cancelled and retried",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.createBackfillCommand(), a.listBackfillsCommand(), a.showBackfillCommand(), a.waitBackfillCommand(), a.pauseBackfillCommand(),
		a.resumeBackfillCommand(), a.cancelBackfillCommand(), a.retryBackfillCommand(), a.setBackfillCommand())
	return cmd
}

func (a *app) listBackfillsCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "list",
		Annotations: writesRows,
		Short:       "List backfills, newest first",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).ListBackfills(cmd.Context(), &servov1.ListBackfillsRequest{})
				if err != nil {
					return err
				}
				return list(a, backfillColumns(), api.ReadAll[engine.Backfill](found.GetBackfills()))
			})
		},
	}
}

func backfillColumns() []column[engine.Backfill] {
	n := func(name string, of func(engine.Backfill) int64) column[engine.Backfill] {
		return column[engine.Backfill]{
			Name: name, Value: func(b engine.Backfill) any { return of(b) },
			Text: func(b engine.Backfill) any { return number(view.Grouped(of(b))) },
		}
	}
	return []column[engine.Backfill]{
		{Name: "backfill_id", Value: func(b engine.Backfill) any { return b.ID }},
		{Name: "state", Value: func(b engine.Backfill) any { return string(b.State) }},
		{Name: "assets", Value: func(b engine.Backfill) any { return cells(b.Assets) }, Text: func(b engine.Backfill) any { return view.Some(b.Assets) }},
		n("partitions", func(b engine.Backfill) int64 { return b.Partitions }),
		n("left", func(b engine.Backfill) int64 { return b.Left }),
		n("done", func(b engine.Backfill) int64 { return b.Done }),
		n("failed", func(b engine.Backfill) int64 { return b.Failed }),
		n("skipped", func(b engine.Backfill) int64 { return b.Skipped }),
		n("cancelled", func(b engine.Backfill) int64 { return b.Cancelled }),
		{Name: "in_flight", Value: func(b engine.Backfill) any { return inFlightText(b.InFlight) }},
		{Name: "pause_reason", Value: func(b engine.Backfill) any { return orNil(b.PauseReason) }},
		{
			Name: "created_at", Value: func(b engine.Backfill) any { return moment(b.CreatedAt) },
			Text: func(b engine.Backfill) any { return stamp(b.CreatedAt) },
		},
		{Name: "next", Machine: true, Value: func(b engine.Backfill) any { return orNil(b.Next) }},
	}
}

func (a *app) showBackfillCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "show [ID]",
		Annotations: writesDocument,
		Short:       "Show the progress of a backfill (ID: its id, or the last characters of the id; default: the newest)",
		Args:        takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).GetBackfill(cmd.Context(), &servov1.GetBackfillRequest{
					BackfillId: orText(optional(args), "latest"),
				})
				if err != nil {
					return err
				}
				b := api.Read[engine.Backfill](found)
				return a.document(b, func() string { return a.backfillText(b) })
			})
		},
	}
}

// maxBackfillWords is the maximum number of assets and partitions that a suggested command names.
const maxBackfillWords = 10

// withCurrentCode returns the command that repeats the failed partitions of a backfill with the current code, or "" if
// a retry of the backfill is not due, or uses the current code itself.
func withCurrentCode(b *engine.Backfill) string {
	if b.Release == "" || !strings.HasPrefix(b.Next, "servo backfill retry-failed ") {
		return ""
	}
	if len(b.Assets)+len(b.Selection) > maxBackfillWords {
		return "servo backfill create SELECTION -p PARTITIONS --only failed"
	}
	words := append([]string{"servo backfill create"}, b.Assets...)
	for _, partitions := range b.Selection {
		words = append(words, "-p", quoted(partitions))
	}
	return strings.Join(append(words, "--only failed"), " ")
}

// backfillText describes a backfill.
func (a *app) backfillText(b *engine.Backfill) string {
	var out strings.Builder
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(&out, "%-10s %s\n", name, text)
		}
	}
	fmt.Fprintf(&out, "backfill %s is %s\n", a.style.bold(b.ID), b.State)
	if b.PausedAt != 0 {
		line("paused", "%s by %s%s", stamp(b.PausedAt), orText(b.PausedBy, "servo"), prefixed(": ", b.PauseReason))
	}
	line("next", "%s", b.Next)
	line("new code", "%s", withCurrentCode(b))
	line("assets", "%s%s%s", view.Some(b.Assets), prefixed(" ", view.Some(b.Selection)), prefixed(", only ", b.Only))
	line("progress", "%s", progressText(b))
	if len(b.Codes) > 0 {
		var codes []string
		for _, code := range slices.Sorted(maps.Keys(b.Codes)) {
			codes = append(codes, fmt.Sprintf("%s %s", view.Grouped(b.Codes[code]), code))
		}
		line("errors", "%s", strings.Join(codes, ", "))
	}
	line("runs", "%s", view.Some(b.Runs))
	if e := b.ETA; e != nil {
		line("time left", "%s", etaText(e))
	}
	rules := fmt.Sprintf("%d at once, %s first, priority %d", b.MaxParallel, b.Order, b.Priority)
	if b.Ordered {
		rules = fmt.Sprintf("one after the other, priority %d; pauses if one does not succeed", b.Priority)
	}
	if b.StopAt > 0 {
		rules += fmt.Sprintf("; pauses at %s", plural(int(b.StopAt), "failed partition"))
	}
	line("chunks", "%s%s", rules, prefixed(", pool ", b.Pool))
	line("release", "%s", orText(release.Short(b.Release), "the current one"))
	line("created", "%s%s", stamp(b.CreatedAt), prefixed(" by ", b.CreatedBy))
	if b.EndedAt != 0 {
		line("ended", "%s", stamp(b.EndedAt))
	}
	return out.String()
}

// progressText describes the progress of a backfill in numbers of partitions.
func progressText(b *engine.Backfill) string {
	texts := []string{fmt.Sprintf("%s of %s done", view.Grouped(b.Done), plural(int(b.Partitions), "partition"))}
	for _, c := range []struct {
		n    int64
		what string
	}{{b.Failed, "failed"}, {b.Skipped, "skipped"}, {b.Cancelled, "cancelled"}, {b.Running, "running"}, {b.Left - b.Running, "waiting"}} {
		if c.n > 0 {
			texts = append(texts, view.Grouped(c.n)+" "+c.what)
		}
	}
	text := fmt.Sprintf("%s; %d of %s ended", strings.Join(texts, ", "), b.ChunksEnded, plural(int(b.Chunks), "chunk"))
	if f := b.InFlight; f != nil {
		text += fmt.Sprintf("; in %s that runs, %v", plural(int(f.Chunks), "chunk"), inFlightText(f))
		if f.Chunks > 1 {
			text = strings.Replace(text, "that runs", "that run", 1)
		}
	}
	return text
}

// inFlightText describes how many tasks of the running chunks have ended. It returns nil if no chunk is running.
func inFlightText(f *engine.InFlight) any {
	if f == nil {
		return nil
	}
	return fmt.Sprintf("%s of %s ended", view.Grouped(f.TasksEnded), plural(int(f.Tasks), "task"))
}

// etaText describes the remaining time.
func etaText(e *engine.BackfillETA) string {
	span := func(seconds float64) string { return view.Span(time.Duration(seconds * float64(time.Second))) }
	if span(e.Low) == span(e.High) {
		return "about " + span(e.Seconds)
	}
	return fmt.Sprintf("about %s (%s to %s)", span(e.Seconds), span(e.Low), span(e.High))
}

// backfillFlags are the flags of commands that start chunks.
type backfillFlags struct{ detach bool }

func (f *backfillFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.detach, "detach", false, "do not wait, even if no other process executes the backfill")
}

// commandBackfill sends a command about a backfill. If this process executes the chunks that the command starts,
// commandBackfill waits for them.
func (a *app) commandBackfill(ctx context.Context, p *event.AutomationCommand, f *backfillFlags, done func(engine.Backfill) string) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	p.Name = orText(p.Name, "latest")
	return a.do(ctx, settings, func(ctx context.Context, s *session) error {
		if err := a.limits(ctx, s, settings); err != nil {
			return err
		}
		b, err := s.CommandBackfill(ctx, p)
		if err != nil {
			return err
		}
		a.note("backfill %s %s: %s", a.style.bold(b.ID), done(b), progressText(&b))
		if f == nil || b.State != state.BackfillRunning {
			return nil
		}
		return a.followBackfill(ctx, s, b.ID, f)
	})
}

func is(text string) func(engine.Backfill) string {
	return func(engine.Backfill) string { return text }
}

func (a *app) pauseBackfillCommand() *cobra.Command {
	p := event.AutomationCommand{Verb: event.VerbPause}
	cmd := &cobra.Command{
		Use:   "pause [ID]",
		Short: "Start no more chunks of a backfill, until it is resumed",
		Long: "Start no more chunks of a backfill. The runs of its chunks continue; with --now they are cancelled, and\n" +
			"their unfinished partitions are materialized after the backfill is resumed.",
		Args: takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = optional(args)
			return a.commandBackfill(cmd.Context(), &p, nil, is("is paused"))
		},
	}
	cmd.Flags().BoolVar(&p.Now, "now", false, "also cancel the running chunks")
	cmd.Flags().StringVar(&p.Reason, "reason", "", "the reason, shown to people")
	return cmd
}

func (a *app) resumeBackfillCommand() *cobra.Command {
	var f backfillFlags
	cmd := &cobra.Command{
		Use:   "resume [ID]",
		Short: "Start chunks of a paused backfill again, and count failures from zero",
		Args:  takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.commandBackfill(cmd.Context(), &event.AutomationCommand{Verb: event.VerbResume, Name: optional(args)}, &f, is("continues"))
		},
	}
	f.add(cmd)
	return cmd
}

func (a *app) cancelBackfillCommand() *cobra.Command {
	p := event.AutomationCommand{Verb: event.VerbCancel}
	cmd := &cobra.Command{
		Use:   "cancel [ID]",
		Short: "End a backfill, and cancel its running chunks",
		Args:  takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = optional(args)
			return a.commandBackfill(cmd.Context(), &p, nil, func(b engine.Backfill) string {
				if b.State == state.BackfillCancelling {
					return "is being cancelled"
				}
				return "is cancelled"
			})
		},
	}
	cmd.Flags().StringVar(&p.Reason, "reason", "", "the reason, shown to people")
	return cmd
}

func (a *app) retryBackfillCommand() *cobra.Command {
	var f backfillFlags
	cmd := &cobra.Command{
		Use:   "retry-failed [ID]",
		Short: "Repeat the failed and skipped partitions of a backfill",
		Long: "Repeat the failed and skipped partitions of a backfill, and continue the backfill. Partitions that another run\n" +
			"has materialized in the meantime count as done. A backfill that failed can be retried for 30 days.",
		Args: takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.commandBackfill(cmd.Context(), &event.AutomationCommand{Verb: event.VerbRetryFailed, Name: optional(args)}, &f, is("is retried"))
		},
	}
	f.add(cmd)
	return cmd
}

func (a *app) setBackfillCommand() *cobra.Command {
	p := event.AutomationCommand{Verb: event.VerbSet}
	cmd := &cobra.Command{
		Use:     "set [ID] --max-parallel N",
		Short:   "Change how many chunks of a backfill run at once",
		Example: "  servo backfill set --max-parallel 10",
		Args:    takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.MaxParallel < 1 || p.MaxParallel > event.MaxParallelRuns {
				return usagef("--max-parallel is %d; must be 1 to %d", p.MaxParallel, event.MaxParallelRuns)
			}
			p.Name = optional(args)
			return a.commandBackfill(cmd.Context(), &p, nil, func(b engine.Backfill) string {
				return fmt.Sprintf("runs %s at once", plural(int(b.MaxParallel), "chunk"))
			})
		},
	}
	cmd.Flags().Int32Var(&p.MaxParallel, "max-parallel", 0, "how many chunks run at once")
	return cmd
}

func (a *app) waitBackfillCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait [ID]",
		Short: "Wait until a backfill has ended or is paused; execute it if no other process does",
		Args:  takes("[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, err := a.settings()
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), settings, func(ctx context.Context, s *session) error {
				snap, err := s.Current(ctx)
				if err != nil {
					return err
				}
				b, err := engine.FindBackfill(ctx, snap, orText(optional(args), "latest"), a.Clock.Now())
				if err != nil {
					return err
				}
				return a.awaitBackfill(ctx, s, b.ID)
			})
		},
	}
}

// followBackfill waits for a backfill if this process executes it. Otherwise it prints which process executes it.
func (a *app) followBackfill(ctx context.Context, s *session, id string, f *backfillFlags) error {
	switch {
	case s.stack == nil:
		a.note("%s executes the backfill; wait for it with `servo backfill wait`", s.executor())
		return nil
	case f.detach:
		a.note("no process executes the backfill: start `servo dev`, or `servo backfill wait`")
		return nil
	}
	return a.awaitBackfill(ctx, s, id)
}

// reportEvery is the shortest time between two reports of progress.
const reportEvery = 2 * time.Second

// awaitBackfill waits until a backfill has ended, or is paused and none of its runs is live. It prints the progress
// when chunks end.
func (a *app) awaitBackfill(ctx context.Context, s *session, id string) error {
	a.note("waiting for the backfill; Ctrl-C leaves the rest to the next process")
	snap, err := s.Current(ctx)
	ended, reported := int32(-1), time.Time{}
	for ; err == nil; snap, err = s.Await(ctx, snap.Revision) {
		b, err := engine.FindBackfill(ctx, snap, id, a.Clock.Now())
		if err != nil {
			return err
		}
		over := b.State.Ended() || b.State == state.BackfillPaused && b.Running == 0
		if now := a.Clock.Now(); over || b.ChunksEnded != ended && now.Sub(reported) >= reportEvery {
			text := progressText(&b)
			if b.ETA != nil && !over {
				text += "; " + etaText(b.ETA) + " left"
			}
			a.note("%s", text)
			ended, reported = b.ChunksEnded, now
		}
		if !over {
			continue
		}
		a.note("backfill %s is %s%s", a.style.bold(b.ID), b.State, prefixed(": ", b.PauseReason))
		if b.Next != "" {
			a.note("continue it with: %s", b.Next)
		}
		if command := withCurrentCode(&b); command != "" {
			a.note("the backfill keeps the code of its release; if you have changed the code, use instead: %s", command)
		}
		if b.State != state.BackfillSucceeded {
			return errReported
		}
		return nil
	}
	return err
}
