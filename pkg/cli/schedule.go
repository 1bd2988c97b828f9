package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

func (a *app) scheduleCommand() *cobra.Command {
	schedule := &cobra.Command{
		Use:   "schedule",
		Short: "Show, pause, trigger and explain a schedule",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	schedule.AddCommand(a.nextTicksCommand(), a.showScheduleCommand(), a.ticksCommand(), a.pauseScheduleCommand(), a.resumeScheduleCommand(),
		a.triggerScheduleCommand(), a.backfillScheduleCommand())
	return schedule
}

// maxTicks is the maximum of -n.
const maxTicks = 1000

// nextFlags are the flags of `servo schedule next`.
type nextFlags struct {
	spec    calendar.Spec
	from    string
	n       int
	explain bool
}

func (a *app) nextTicksCommand() *cobra.Command {
	f := nextFlags{}
	cmd := &cobra.Command{
		Use:         "next [SCHEDULE]",
		Annotations: writesRows,
		Short:       "Print the next ticks of a schedule, or of a cron expression",
		Long: "Print the next ticks of a schedule of the project's files, or of a cron expression, which needs no project.\n\n" +
			"--explain also prints how local times that clocks skip or repeat are handled.",
		Example: "  servo schedule next nightly --explain\n" +
			"  servo schedule next --cron '30 2 * * 1-5' --timezone Europe/Paris\n" +
			"  servo schedule next --cron '30 2 * * *' --timezone Europe/Paris --from 2025-03-29 -n 2 --explain",
		Args: takes("[SCHEDULE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.nextTicks(&f)
			}
			for _, flag := range []string{"cron", "timezone", "dst-gap", "dst-overlap"} {
				if cmd.Flags().Changed(flag) {
					return usagef("--%s and the schedule %s cannot be combined: remove one", flag, args[0])
				}
			}
			return a.nextOfSchedule(cmd.Context(), args[0], &f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.spec.Cron, "cron", "", "a cron expression: minute, hour, day of month, month, day of week")
	flags.StringVar(&f.spec.Timezone, "timezone", "UTC", "the IANA time zone of the expression")
	flags.StringVar(&f.spec.DST.Gap, "dst-gap", "", "what happens to a tick at a local time that clocks skip: shift or skip (default shift)")
	flags.StringVar(&f.spec.DST.Overlap, "dst-overlap", "", "at which occurrences of a repeated local time the schedule ticks: first, last or both (default first)")
	flags.StringVar(&f.from, "from", "", "print the ticks from this local time or RFC 3339 time on (default: now)")
	flags.IntVarP(&f.n, "number", "n", 10, "how many ticks to print, at most 1000") //nolint:mnd // a screen
	flags.BoolVar(&f.explain, "explain", false, "explain each tick, and local times without a tick")
	return cmd
}

// nextTicks prints the ticks of the expression in the flags. They have no jitter, because jitter depends on the name of
// a schedule.
func (a *app) nextTicks(f *nextFlags) error {
	if f.spec.Cron == "" {
		return usagef("missing argument: name a schedule, or write, for example, --cron '30 2 * * *'")
	}
	s, err := f.spec.Compile()
	if err != nil {
		return ofFlag(err)
	}
	return a.showTicks(s, "", f)
}

// nextOfSchedule prints the ticks of a schedule of the project's files.
func (a *app) nextOfSchedule(ctx context.Context, name string, f *nextFlags) error {
	dir, err := a.projectDir()
	if err != nil {
		return err
	}
	schedules, err := project.LoadSchedules(ctx, dir, a.projectOptions())
	if err != nil {
		return a.problems(dir, err)
	}
	names := make([]string, len(schedules))
	for i := range schedules {
		if names[i] = schedules[i].Name; names[i] == name {
			s, err := calendar.Compile(&schedules[i])
			if err != nil {
				return err
			}
			return a.showTicks(s, name, f)
		}
	}
	if near := plan.Suggest(name, names); near != "" {
		return fmt.Errorf("unknown schedule %q: did you mean %s?", name, near)
	}
	return fmt.Errorf("unknown schedule %q: declare it in %s or below %s", name, project.ConfigFile, project.SchedulesDir)
}

// ofFlag returns a usage error that names the flag of an invalid field. It returns other errors unchanged.
func ofFlag(err error) error {
	var field *calendar.FieldError
	if !errors.As(err, &field) {
		return err
	}
	return usagef("--%s: %w", strings.ReplaceAll(field.Field, ".", "-"), field.Err)
}

// tickRow is a tick of a schedule.
type tickRow struct {
	Tick  time.Time `json:"tick"`
	Local string    `json:"local"`
	// DueAt is the time of the tick plus its jitter.
	DueAt   time.Time         `json:"due_at"`
	Reasons []calendar.Reason `json:"reasons,omitempty"`
}

// ticksDocument contains the next ticks of a schedule, with explanations.
type ticksDocument struct {
	Timezone string `json:"timezone"`
	ZoneData string `json:"zone_data"`
	Gap      string `json:"gap,omitempty"`
	Overlap  string `json:"overlap,omitempty"`
	// Ticks are in order. Untaken explains, also in order, why local times up to the last tick have no tick although
	// they match the schedule: the clocks change.
	Ticks   []tickRow         `json:"ticks"`
	Untaken []calendar.Reason `json:"untaken,omitempty"`
}

// startAfter returns the time after which ticks are printed: one second before --from, or now.
func (f *nextFlags) startAfter(s *calendar.Schedule, now time.Time) (time.Time, error) {
	if f.from == "" {
		return now, nil
	}
	at, err := time.Parse(time.RFC3339, f.from)
	if err != nil {
		if at, err = calendar.Bound(f.from, s.Location().String()); err != nil {
			return at, usagef("--from: %w", err)
		}
	}
	return at.Add(-time.Second), nil
}

// showTicks prints the next ticks of a schedule. The id of the schedule determines their jitter.
func (a *app) showTicks(s *calendar.Schedule, id string, f *nextFlags) error {
	if f.n < 1 || f.n > maxTicks {
		return usagef("-n %d: write a number from 1 to %d", f.n, maxTicks)
	}
	after, err := f.startAfter(s, a.Clock.Now())
	if err != nil {
		return err
	}
	for _, note := range s.Notes() {
		a.note("note: %s", note)
	}
	rows := nextRows(s, id, after, f.n)
	if len(rows) < f.n {
		a.note("the schedule has no tick after these")
	}
	if !f.explain {
		return list(a, tickColumns(s), rows)
	}
	d := ticksDocument{Timezone: s.Location().String(), ZoneData: calendar.ZoneVersion, Gap: s.DST().Gap, Overlap: s.DST().Overlap, Ticks: rows}
	for i := range rows {
		rows[i].Reasons = s.Explain(rows[i].Tick)
	}
	if len(rows) > 0 {
		d.Untaken = slices.DeleteFunc(s.Changes(after, rows[len(rows)-1].Tick, maxTicks), func(r calendar.Reason) bool {
			return len(r.Ticks) > 0 || r.Policy == calendar.EveryHour
		})
	}
	return a.document(d, func() string { return d.text(s, id) })
}

func nextRows(s *calendar.Schedule, id string, after time.Time, n int) []tickRow {
	rows := []tickRow{}
	for len(rows) < n {
		tick, ok := s.Next(after)
		if !ok {
			break
		}
		rows = append(rows, tickRow{Tick: tick, Local: tick.In(s.Location()).Format(time.RFC3339), DueAt: s.Due(id, tick)})
		after = tick
	}
	return rows
}

func tickColumns(s *calendar.Schedule) []column[tickRow] {
	return []column[tickRow]{
		{Name: "tick", Value: func(r tickRow) any { return r.Tick.Format(time.RFC3339) }},
		{Name: "local", Value: func(r tickRow) any { return r.Local }},
		{Name: "weekday", Value: func(r tickRow) any { return r.Tick.In(s.Location()).Weekday().String() }},
		{Name: "due_at", Value: func(r tickRow) any { return r.DueAt.Format(time.RFC3339) }, Machine: s.Spec().JitterSec == 0},
	}
}

// text returns the ticks and the explanations in the order of their instants.
func (d *ticksDocument) text(s *calendar.Schedule, id string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s, zone data %s", d.Timezone, d.ZoneData)
	if d.Gap != "" {
		fmt.Fprintf(&out, ", dst: {gap: %s, overlap: %s}", d.Gap, d.Overlap)
	}
	out.WriteString("\n\n")
	untaken := d.Untaken
	written := map[string]bool{}
	for i := range d.Ticks {
		for len(untaken) > 0 && untaken[0].At.Before(d.Ticks[i].Tick) {
			out.WriteString(s.Text(&untaken[0], id) + "\n")
			untaken = untaken[1:]
		}
		out.WriteString(reasonsText(s, id, d.Ticks[i].Reasons, written))
	}
	for i := range untaken {
		out.WriteString(s.Text(&untaken[i], id) + "\n")
	}
	return out.String()
}

// reasonsText returns the reasons of a tick. It omits the reasons that it has returned for earlier ticks, because both
// ticks of a repeated local time have the same reason. The parameter written contains these reasons. If more than three
// local times belong to one tick, it returns the first three reasons and the number of the others.
func reasonsText(s *calendar.Schedule, id string, reasons []calendar.Reason, written map[string]bool) string {
	const most = 3
	var out strings.Builder
	for i := range reasons {
		if i == most {
			fmt.Fprintf(&out, "%d more local times belong to the same tick\n", len(reasons)-most)
			break
		}
		if text := s.Text(&reasons[i], id); !written[text] {
			written[text] = true
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}
