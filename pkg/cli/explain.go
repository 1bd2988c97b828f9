package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "explain [RUN] TASK",
		SuggestFor:  []string{"why", "describe"},
		Annotations: writesDocument,
		Short:       "Show why a partition is stale, or why a task is in its state",
		Long: "Show why a partition of an asset is missing, fresh or stale. If the partition's newest task did not\n" +
			"succeed, or its run has not ended, show the task instead: its events, dependencies, limits and timers. To see the task\n" +
			"in any case, write the run before it, or only a part of the task's key. The name of a schedule shows the schedule.",
		Example: "  servo explain 'clean/daily[date=2012-03-04]'\n  servo explain latest report/chart\n  servo explain 2012-03-04      any unique part of the task's key",
		Args:    takes("[RUN]", "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, task := runAndTask(args)
			return a.read(cmd.Context(), func(v published) error {
				if run == "" {
					var done bool
					var err error
					if done, task, err = a.explainPartition(cmd.Context(), v, task); done || err != nil {
						return err
					}
				}
				now := event.At(a.Clock.Now())
				e, err := a.explainTask(cmd.Context(), v, now, run, task)
				if err != nil {
					if run != "" {
						return err
					}
					if s, missing := engine.FindSchedule(v.State, task); missing == nil {
						return a.showSchedule(cmd.Context(), v, &s)
					}
					return a.noTask(cmd.Context(), task, err)
				}
				return a.document(e, func() string { return a.explanation(e, now) + backfillOf(v.State, e.RunID) })
			})
		},
	}
}

// explainTask explains a task of a run. If run is empty, it explains the task in the newest run that contains the
// task. In this case, it does not use the API, because the API's call needs a run.
func (a *app) explainTask(ctx context.Context, v published, now event.Time, run, task string) (*view.Explanation, error) {
	if run == "" {
		return engine.ExplainTask(ctx, v.Store, v.Snapshot, now, run, task)
	}
	found, err := a.calls(v).ExplainTask(ctx, &servov1.ExplainTaskRequest{RunId: run, TaskKey: task})
	if err != nil {
		return nil, err
	}
	return api.Read[view.Explanation](found), nil
}

// noTask adds advice to the error about an unknown task. It names the asset that has the given name, or an asset with a
// similar name.
func (a *app) noTask(ctx context.Context, name string, err error) error {
	key, _, _ := strings.Cut(name, "[")
	if !errors.Is(err, engine.ErrNotFound) || !strings.Contains(key, "/") {
		return err
	}
	p, problem := a.definedProject(ctx, func([]plan.Asset) ([]ids.AssetKey, error) { return nil, nil })
	if problem != nil {
		return err
	}
	keys := make([]string, len(p.Assets))
	for i := range p.Assets {
		asset := &p.Assets[i]
		if keys[i] = asset.Key.String(); keys[i] != key {
			continue
		}
		if asset.Partitions == nil {
			return fmt.Errorf("explain %s: %w: asset %s has no partitions: use `servo explain %s`", name, engine.ErrNotFound, key, key)
		}
		var names, dimensions []string
		for _, d := range asset.Partitions.Dimensions {
			names, dimensions = append(names, d.Name), append(dimensions, d.Name+"=…")
		}
		return fmt.Errorf("explain %s: %w: %s is partitioned by %s: explain one partition, as in `servo explain '%s[%s]'`: list them with `servo partitions %s`",
			name, engine.ErrNotFound, key, strings.Join(names, " and "), key, strings.Join(dimensions, ","), key)
	}
	if !errors.Is(err, engine.ErrNoTask) { // the name is a part of the keys of several tasks
		return err
	}
	if near := plan.Suggest(key, keys); near != "" {
		return fmt.Errorf("explain %s: %w: no asset or task has this name: did you mean %s?", name, engine.ErrNotFound, near)
	}
	return fmt.Errorf("explain %s: %w: no asset or task has this name: list the assets with `servo assets`", name, engine.ErrNotFound)
}

// backfillOf describes the backfill to which a run belongs. It returns "" if no backfill waits for a person's command.
func backfillOf(s *state.State, runID string) string {
	run := s.Runs.Get(runID)
	if run == nil {
		return ""
	}
	key, _, _ := state.ParseChunkRequest(run.RequestID)
	row := s.Backfills.Get(key.BackfillID)
	if row == nil {
		return ""
	}
	b, err := engine.BackfillOf(row)
	if err != nil || b.Next == "" {
		return ""
	}
	return fmt.Sprintf("backfill %s is %s%s: continue it with %s\n", b.ID, b.State, prefixed(": ", b.PauseReason), b.Next)
}

// explanation formats an explanation for people.
func (a *app) explanation(e *view.Explanation, now event.Time) string {
	t := &outline{style: a.style}
	word, rest, _ := strings.Cut(e.Headline, ":")
	fmt.Fprintf(&t.b, "%s\n%s:%s\n", a.style.bold(readable(e.TaskKey)), a.style.state(word), view.OneLine(rest))
	a.causes(t, e)
	t.section("incomplete")
	for _, text := range e.Incomplete {
		t.line("%s", view.OneLine(text))
	}
	t.section("checks")
	for _, c := range e.Checks {
		t.line("%s  %s, %s  %s", c.Check, c.Verdict(), strings.ToLower(c.Severity), view.OneLine(c.Message))
	}
	quarantineLines(t, e)
	t.section("attempts")
	for _, at := range e.Attempts {
		t.line("%d  %s  %s", at.Attempt, attemptText(at, now), indented(strings.TrimSpace(at.Error), strings.Repeat(" ", outlineMargin)))
		if at.SuggestedAction != "" {
			t.line("   what to do: %s", view.OneLine(at.SuggestedAction))
		}
	}
	a.upstreams(t, e)
	t.section("limits")
	for _, l := range e.Limits {
		held := ""
		if l.Full {
			held = ": " + strings.Join(l.Holders, ", ")
		}
		t.line("%s %s  %d of %d slots in use%s", l.Scope, l.Name, l.InUse, l.Slots, held)
	}
	t.section("queue")
	if d := e.Dispatch; d != nil {
		t.line("%s  %s, generation %d, as %s  %s", d.Status, eventTime(d.CreatedAt), d.Generation, d.QueueTaskName, view.OneLine(d.Error))
	}
	t.section("timers")
	for _, timer := range e.Timers {
		t.line("%s  %s, due %s (%s)", timer.Type, timer.State, eventTime(timer.FireAt), timer.TimerID)
	}
	t.section("alive")
	if h := e.Heartbeat; h != nil {
		t.line("%s ago; without another one, the attempt fails at %s  %s", view.Span(now.Sub(h.At)), eventTime(h.Deadline), view.OneLine(h.Message))
	}
	t.section("ledger")
	for _, ev := range e.Events {
		t.line("%s  %s  %s  %s %s  %s", eventTime(ev.Time), pad(ev.Type, len("DispatchEnqueued")), ev.Entry, pad(string(ev.Outcome), len("NO_CHANGE")),
			view.OneLine(ev.Reason), view.OneLine(view.FirstLine(ev.Summary)))
	}
	if e.EventsLeftOut {
		t.line("… more events: list them with `servo admin ledger --run %s`", e.RunID)
	}
	fmt.Fprintf(&t.b, "\n%s\n", a.style.dim("run "+e.RunID+" is "+string(e.RunState)))
	return t.b.String()
}

// quarantineLines says what became of an output that a check has blocked, and what a person can do about it.
func quarantineLines(t *outline, e *view.Explanation) {
	t.section("quarantine")
	q := e.Quarantine
	if q == nil {
		return
	}
	t.line("the output is %s", q)
	if q.State != state.CandidatePending && q.State != state.CandidateRejected {
		return
	}
	asset, _, _ := strings.Cut(e.TaskKey, "[")
	again := "make it again: servo run " + asset + " --failed-only"
	if !q.Pending() {
		t.line("%s", again)
		return
	}
	t.line("look at it:    servo quarantine show %s", quoted(readable(e.TaskKey)))
	t.line("publish it:    servo quarantine approve %s", quoted(readable(e.TaskKey)))
	t.line("or fix the data and %s", again)
}

// maxUpstreams is the maximum number of upstreams that an explanation lists. It also limits the number of listed root
// causes.
const maxUpstreams = 20

// causes lists the chain of tasks up to a root cause. If there are several root causes, it also lists these, up to
// [maxUpstreams] of them.
func (a *app) causes(t *outline, e *view.Explanation) {
	t.section("because")
	for _, c := range e.Cause {
		t.line("%s is %s  %s", readable(c.TaskKey), c.State, indented(strings.TrimSpace(c.Error), strings.Repeat(" ", outlineMargin)))
	}
	if n := len(e.RootCauses); n > 1 {
		t.section("root causes")
		t.line("%d failed tasks: servo tasks %s --in FAILED", n, e.RunID)
		for i, key := range e.RootCauses {
			if i == maxUpstreams {
				t.line("… and %d more", n-maxUpstreams)
				break
			}
			t.line("%s", key)
		}
	}
}

// urgency returns the place of an upstream in the list: first failed ones, then skipped and cancelled ones, then
// unfinished ones, and last succeeded ones.
func urgency(up view.Edge) int {
	switch {
	case up.State == state.TaskFailed:
		return 0
	case up.State == state.TaskSkipped, up.State == state.TaskCancelled:
		return 1
	case up.State != state.TaskSucceeded:
		return 2 //nolint:mnd // before those that succeeded
	}
	return 3 //nolint:mnd // last
}

func (a *app) upstreams(t *outline, e *view.Explanation) {
	t.section("upstream")
	ups := slices.Clone(e.Upstreams)
	slices.SortStableFunc(ups, func(a, b view.Edge) int { return cmp.Compare(urgency(a), urgency(b)) })
	for i, up := range ups {
		if i == maxUpstreams {
			t.line("… and %d more; list them with -o json", len(e.Upstreams)-maxUpstreams)
			break
		}
		resolved := "not resolved"
		if up.Resolution != "" {
			resolved = fmt.Sprintf("resolved %s at %s", up.Resolution, eventTime(up.ResolvedAt))
		}
		t.line("%s  %s, %s", readable(up.TaskKey), a.style.state(string(up.State)), resolved)
	}
	t.section("downstream")
	if e.Downstreams > 0 {
		t.line("%s", plural(e.Downstreams, "edge"))
	}
}

func attemptText(at view.AttemptInfo, now event.Time) string {
	switch {
	case at.FinishedAt != 0 && at.StartedAt != 0:
		return fmt.Sprintf("%s %s, %s after %s on %s", at.State, at.Outcome, eventTime(at.FinishedAt),
			view.Span(at.FinishedAt.Sub(at.StartedAt)), at.WorkerID)
	case at.FinishedAt != 0:
		return fmt.Sprintf("%s %s, %s, never started", at.State, at.Outcome, eventTime(at.FinishedAt))
	case at.StartedAt != 0:
		return fmt.Sprintf("%s for %s on %s", at.State, view.Span(now.Sub(at.StartedAt)), at.WorkerID)
	}
	return fmt.Sprintf("%s since %s ago", at.State, view.Span(now.Sub(at.CreatedAt)))
}

// eventTime formats the time of an event with milliseconds, because many events happen in one second.
func eventTime(t event.Time) string {
	if t == 0 {
		return "-"
	}
	return t.Time().Format("2006-01-02T15:04:05.000Z07:00")
}

// outline is text in sections, each with its name in the margin. Empty sections are omitted.
type outline struct {
	style style
	b     strings.Builder
	name  string
}

// outlineMargin is the width of the margin with the names of the sections.
const outlineMargin = 12

func (o *outline) section(name string) { o.name = name }

func (o *outline) line(format string, args ...any) {
	if o.name != "" {
		o.b.WriteByte('\n')
	}
	fmt.Fprintf(&o.b, "%s%s\n", o.style.dim(pad(o.name, outlineMargin)), strings.TrimRight(fmt.Sprintf(format, args...), " "))
	o.name = ""
}
