package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

func (a *app) schedulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "schedules",
		Annotations: writesRows,
		Short:       "List the schedules of the deployed release, with their next ticks",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).ListSchedules(cmd.Context(), &servov1.ListSchedulesRequest{})
				if err != nil {
					return err
				}
				all := api.ReadAll[engine.Schedule](found.GetSchedules())
				if len(all) == 0 && a.table() && v.State.SchedulesPending() == nil {
					a.note("the deployed release has no schedules: declare them in servo.yaml or in schedules/*.yaml, and deploy them with `servo dev` or `servo deploy`")
				}
				a.noteNoTicks(cmd.Context(), v)
				return list(a, scheduleColumns(), all)
			})
		},
	}
}

// noteNoTicks warns that schedules do not tick, if there are active schedules and no process owns the state folder.
func (a *app) noteNoTicks(ctx context.Context, v published) {
	all, err := engine.Schedules(v.State)
	active := slices.ContainsFunc(all, func(s engine.Schedule) bool { return s.Status != "paused" && s.Status != "ended" })
	if d := v.State.SchedulesPending(); d != nil {
		active = active || d.Schedules != "" // the next owner of the folder defines the schedules of this deployment
	}
	if err != nil || !active || inCloud(v.dir) {
		return
	}
	if _, ok := owner(ctx, v.dir); !ok {
		a.note("no process owns the state folder, so no schedule ticks: start `servo dev`")
	}
}

func scheduleColumns() []column[engine.Schedule] {
	return []column[engine.Schedule]{
		{Name: "schedule", Value: func(s engine.Schedule) any { return s.Name }},
		{Name: "status", Value: func(s engine.Schedule) any { return s.Status }},
		{Name: "ticks", Value: func(s engine.Schedule) any { return expression(&s.Definition) }},
		{
			Name: "next_at", Value: func(s engine.Schedule) any { return moment(s.NextAt) },
			Text: func(s engine.Schedule) any { return stamp(s.NextAt) },
		},
		{Name: "overlap", Machine: true, Value: func(s engine.Schedule) any { return overlapOf(&s.Definition) }},
		{Name: "last_run", Value: func(s engine.Schedule) any { return orNil(s.LastRun) }},
		{Name: "last_run_state", Value: func(s engine.Schedule) any { return orNil(s.LastRunState) }},
		{Name: "started", Value: func(s engine.Schedule) any { return s.Started }},
		{Name: "skipped", Value: func(s engine.Schedule) any { return s.Skipped }},
		{Name: "dropped", Value: func(s engine.Schedule) any { return s.Dropped }},
		{Name: "failures", Value: func(s engine.Schedule) any { return s.Failures }},
	}
}

// expression returns the cron expression or the interval of a schedule, as it is written in project files.
func expression(s *event.Schedule) string {
	zone := ""
	if s.Timezone != "" && s.Timezone != "UTC" {
		zone = " " + s.Timezone
	}
	if s.Cron != "" {
		return s.Cron + zone
	}
	return "every " + (time.Duration(s.EverySec) * time.Second).String() + zone
}

func overlapOf(s *event.Schedule) string { return orText(s.Overlap, event.OverlapSkip) }

func orText(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func (a *app) showScheduleCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "show SCHEDULE",
		Annotations: writesDocument,
		Short:       "Show what a schedule runs, its policies, and its state",
		Args:        takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).GetSchedule(cmd.Context(), &servov1.GetScheduleRequest{Schedule: args[0]})
				if err != nil {
					return err
				}
				return a.showSchedule(cmd.Context(), v, api.Read[engine.Schedule](found))
			})
		},
	}
}

// showSchedule shows a schedule.
func (a *app) showSchedule(ctx context.Context, v published, s *engine.Schedule) error {
	a.noteNoTicks(ctx, v)
	return a.document(*s, func() string { return a.scheduleText(s) })
}

// scheduleText describes a schedule.
func (a *app) scheduleText(s *engine.Schedule) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(&b, "%-10s %s\n", name, text)
		}
	}
	d := &s.Definition
	fmt.Fprintf(&b, "schedule %s is %s\n", a.style.bold(s.Name), s.Status)
	if s.PausedAt != 0 {
		line("paused", "%s by %s%s", stamp(s.PausedAt), orText(s.PausedBy, "its failures"), prefixed(": ", s.Reason))
	}
	line("error", "%s", s.Error)
	line("ticks", "%s", expression(d))
	line("runs", "%s%s", strings.Join(specAssets(d.Run), ", "), prefixed(" ", strings.Join(d.Run.Partitions, " ")))
	line("overlap", "%s", overlapOf(d))
	line("catch up", "%s", orText(d.CatchUp, event.CatchUpNone))
	if s.NextAt != 0 {
		line("next", "%s", nextText(s))
	}
	if s.LastRun != "" {
		line("last run", "%s%s", s.LastRun, prefixed(" ", s.LastRunState))
	}
	line("active", "%s", strings.Join(s.Active, ", "))
	if s.Buffered > 0 {
		line("waiting", "%s", plural(s.Buffered, "tick"))
	}
	line("counts", "%d started, %d skipped, %d dropped", s.Started, s.Skipped, s.Dropped)
	if s.Failures > 0 {
		line("failures", "%d in a row", s.Failures)
	}
	return b.String()
}

// nextText describes the next tick, in the zone of the schedule.
func nextText(s *engine.Schedule) string {
	text := s.Next.Time().Format(time.RFC3339)
	if c, err := calendar.Compile(&s.Definition); err == nil {
		text = s.Next.Time().In(c.Location()).Format(time.RFC3339)
	}
	if delay := s.NextAt.Sub(s.Next); delay > 0 {
		text += fmt.Sprintf(", with a jitter of %s", delay)
	}
	return text
}

// prefixed returns a prefix and a text, or "" if the text is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func (a *app) ticksCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:         "ticks SCHEDULE",
		Annotations: writesRows,
		Short:       "List the ticks of a schedule with their outcomes, newest first",
		Args:        takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > maxTicks {
				return usagef("--limit is %d; must be 1 to %d", limit, maxTicks)
			}
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).ListTicks(cmd.Context(), &servov1.ListTicksRequest{
					Schedule: args[0], PageSize: int32(limit), //nolint:gosec // at most maxTicks
				})
				if err != nil {
					return err
				}
				return list(a, tickOutcomeColumns(), api.ReadAll[engine.Tick](found.GetTicks()))
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number of ticks to list")
	return cmd
}

func tickOutcomeColumns() []column[engine.Tick] {
	return []column[engine.Tick]{
		{Name: "tick_id", Machine: true, Value: func(t engine.Tick) any { return t.ID }},
		{
			Name: "tick", Value: func(t engine.Tick) any { return moment(t.Logical) },
			Text: func(t engine.Tick) any { return stamp(t.Logical) },
		},
		{Name: "kind", Value: func(t engine.Tick) any { return t.Kind }},
		{Name: "outcome", Value: func(t engine.Tick) any { return string(t.Outcome) }},
		{Name: "run_id", Value: func(t engine.Tick) any { return orNil(t.RunID) }},
		{Name: "run_state", Value: func(t engine.Tick) any { return orNil(t.RunState) }},
		{Name: "detail", Value: func(t engine.Tick) any { return orNil(t.Detail) }},
		{Name: "decided_at", Machine: true, Value: func(t engine.Tick) any { return moment(t.DecidedAt) }},
		{Name: "zone_data", Machine: true, Value: func(t engine.Tick) any { return orNil(t.Calendar) }},
	}
}

// commandSchedule sends a command about a schedule and prints the result.
func (a *app) commandSchedule(ctx context.Context, p *event.AutomationCommand, done func(engine.Schedule) string) error {
	settings, err := a.settings()
	if err != nil {
		return err
	}
	return a.do(ctx, settings, func(ctx context.Context, s *session) error {
		x, err := s.CommandSchedule(ctx, p)
		if err != nil {
			return err
		}
		a.note("%s", done(x))
		return nil
	})
}

func (a *app) pauseScheduleCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause SCHEDULE",
		Short: "Stop the ticks of a schedule, until it is resumed",
		Long:  "Stop the ticks of a schedule. Its runs and requests continue. A deployment does not resume it.",
		Args:  takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.commandSchedule(cmd.Context(), &event.AutomationCommand{Name: args[0], Verb: event.VerbPause, Reason: reason},
				func(s engine.Schedule) string { return "schedule " + a.style.bold(s.Name) + " is paused" })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, shown to people")
	return cmd
}

func (a *app) resumeScheduleCommand() *cobra.Command {
	var catchUp bool
	cmd := &cobra.Command{
		Use:   "resume SCHEDULE",
		Short: "Let a paused schedule tick again",
		Args:  takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.commandSchedule(cmd.Context(), &event.AutomationCommand{Name: args[0], Verb: event.VerbResume, CatchUp: catchUp},
				func(s engine.Schedule) string { return "schedule " + a.style.bold(s.Name) + " ticks again" })
		},
	}
	cmd.Flags().BoolVar(&catchUp, "catch-up", false, "also tick for the instants of the pause, by the schedule's catch_up policy")
	return cmd
}

func (a *app) triggerScheduleCommand() *cobra.Command {
	var overlap string
	cmd := &cobra.Command{
		Use:         "trigger SCHEDULE",
		Annotations: writesRows,
		Short:       "Let a schedule tick now",
		Long:        "Let a schedule tick now. The overlap policy of the schedule applies, unless --overlap names another one.",
		Args:        takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if overlap != "" && !isOverlap(overlap) {
				return usagef("--overlap %q: choose from %s", overlap, strings.Join(event.Overlaps(), ", "))
			}
			settings, err := a.settings()
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), settings, func(ctx context.Context, s *session) error {
				if _, err := s.CommandSchedule(ctx, &event.AutomationCommand{Name: args[0], Verb: event.VerbTrigger, Overlap: overlap}); err != nil {
					return err
				}
				snap, err := s.Current(ctx)
				if err != nil {
					return err
				}
				ticks, err := engine.Ticks(ctx, snap, args[0], 1)
				if err != nil {
					return err
				}
				a.noteNotExecuted(s)
				return list(a, tickOutcomeColumns(), ticks)
			})
		},
	}
	cmd.Flags().StringVar(&overlap, "overlap", "", "the overlap policy of this tick: "+strings.Join(event.Overlaps(), ", "))
	return cmd
}

// noteNotExecuted prints that no process executes the requested runs yet, if this process is the owner only because
// there was none.
func (a *app) noteNotExecuted(s *session) {
	if s.stack != nil {
		a.note("no process executes runs of schedules yet: start `servo dev`, or run `servo run --resume`")
	}
}

func isOverlap(policy string) bool {
	return slices.Contains(event.Overlaps(), policy)
}

func (a *app) backfillScheduleCommand() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "backfill SCHEDULE --from TIME --to TIME",
		Short: "Let a schedule tick for the instants of a past interval",
		Long: "Let a schedule tick for the instants of a past interval, oldest first and one after the other. Instants that\n" +
			"have a run are left out, and so are instants after the newest tick. Times without an offset are in the zone of the schedule; --to is exclusive.",
		Example: "  servo schedule backfill nightly --from 2025-01-01 --to 2025-02-01",
		Args:    takes("SCHEDULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" || to == "" {
				return usagef("missing interval: write --from TIME --to TIME")
			}
			settings, err := a.settings()
			if err != nil {
				return err
			}
			return a.do(cmd.Context(), settings, func(ctx context.Context, s *session) error { return a.backfill(ctx, s, args[0], from, to) })
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the first instant: a date, a local time or an RFC 3339 time")
	cmd.Flags().StringVar(&to, "to", "", "the end of the interval")
	return cmd
}

func (a *app) backfill(ctx context.Context, s *session, name, from, to string) error {
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	x, err := engine.FindSchedule(snap.State, name)
	if err != nil {
		return err
	}
	bound := func(flag, text string) (time.Time, error) {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			at, err = calendar.Bound(text, orText(x.Definition.Timezone, "UTC"))
		}
		if err != nil {
			return at, usagef("--%s: %w", flag, err)
		}
		return at, nil
	}
	begin, err := bound("from", from)
	if err != nil {
		return err
	}
	end, err := bound("to", to)
	if err != nil {
		return err
	}
	if !begin.Before(end) {
		return usagef("--to %s is not after --from %s", to, from)
	}
	made, err := s.BackfillSchedule(ctx, name, begin, end)
	if err != nil {
		return err
	}
	text := ""
	if made.LeftOut > 0 {
		text = fmt.Sprintf("; left out %s with a run", plural(made.LeftOut, "instant"))
	}
	a.note("%s of schedule %s, one after the other%s", plural(made.Ticks, "tick"), a.style.bold(name), text)
	if made.Ticks > 0 {
		a.noteNotExecuted(s)
	}
	if made.Later > 0 {
		a.warn("left out %s, which are after the newest tick, %s: the schedule itself ticks for them",
			plural(int(min(made.Later, math.MaxInt32)), "instant"), stamp(made.Newest))
	}
	return nil
}
