package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/state"
)

// taskTook returns how many seconds a task took, or has taken so far.
func taskTook(t *state.Task, now event.Time) any {
	if took, started := view.TaskTook(t, now); started {
		return took.Seconds()
	}
	return nil
}

func taskTookText(t *state.Task, now event.Time) any {
	if took, started := view.TaskTook(t, now); started {
		return number(view.Span(took))
	}
	return nil
}

// runStatus is the result of servo status.
type runStatus struct {
	*view.Status

	// Owner is the id of the process that executes the run; 0: no process executes it.
	Owner int `json:"owner_pid,omitempty"`
	// Unpublished are the published places that do not show the newest outputs.
	Unpublished []publisher.Status `json:"unpublished,omitempty"`
	// Backfills are the backfills that have not ended.
	Backfills []engine.Backfill `json:"backfills,omitempty"`
	// Attention lists the assets, outputs, schedules and backfills that need a person. It is nil if the user names a
	// run.
	Attention []engine.Attention `json:"attention,omitempty"`

	run *state.Run
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "status [RUN]",
		Annotations: writesDocument,
		Short:       "Show the progress of a run, what it waits for, and its failures (default: the latest run)",
		Long: "Show the progress of a run, what it waits for, and its failures. Without RUN, show the latest run, and\n" +
			"everything that needs attention: failed and late assets, outputs in quarantine, paused schedules and backfills.",
		Args: takes("[RUN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(v published) error {
				if len(args) == 0 {
					a.noteNoTicks(cmd.Context(), v)
				}
				now := event.At(a.Clock.Now())
				s, run, err := engine.FindRun(cmd.Context(), v.Snapshot, optional(args))
				if err != nil && len(args) == 0 && a.table() {
					return errors.Join(a.noteAttention(cmd.Context(), v, now), err)
				}
				if err != nil {
					return err
				}
				status := &runStatus{Status: view.StatusOf(s, run, now), run: run}
				if !run.State.Terminal() {
					if o, ok := owner(cmd.Context(), v.dir); ok {
						status.Owner = o.PID
					}
				}
				places, err := a.publishedPlaces(v.dir, v.Domain)
				if err != nil {
					return err
				}
				status.Unpublished = slices.DeleteFunc(places, func(s publisher.Status) bool { return s.Error == "" })
				if status.Backfills, err = engine.OpenBackfills(v.State); err != nil {
					return err
				}
				if len(args) == 0 {
					status.Attention, err = engine.FindAttention(cmd.Context(), v.Snapshot, a.knownAssets(cmd.Context(), v.project), now)
					if err != nil {
						return err
					}
				}
				return a.document(status, func() string { return a.statusText(status, now) })
			})
		},
	}
}

// noteAttention prints what needs attention if there is no run to show, for example because all ticks of a schedule
// were refused.
func (a *app) noteAttention(ctx context.Context, v published, now event.Time) error {
	found, err := engine.FindAttention(ctx, v.Snapshot, a.knownAssets(ctx, v.project), now)
	if err != nil || len(found) == 0 {
		return err
	}
	out := &sheet{style: a.style, width: 12}
	a.attentionText(out, found, now)
	a.note("%s", strings.Trim(out.String(), "\n"))
	return nil
}

// maxStatus is the maximum number of items in each list of a status.
const maxStatus = 10

// triggerText describes what started a run. It omits a key that the server has derived from a header, because nobody
// chose such a key.
func triggerText(st *view.Status) string {
	text := st.Trigger
	if st.ParentRunID != "" {
		text += " of " + st.ParentRunID
	}
	if st.RunKey != "" && !strings.HasPrefix(st.RunKey, api.IdempotentPrefix) {
		text += ", run key " + st.RunKey
	}
	return text
}

func (a *app) statusText(st *runStatus, now event.Time) string {
	out := &sheet{style: a.style, width: 12}
	out.field("run", "%s", a.style.bold(st.RunID))
	out.field("state", "%s, %s", a.style.state(string(st.State)), a.lasted(st, now))
	out.field("trigger", "%s", triggerText(st.Status))
	out.field("assets", "%s", words(st.Assets, st.AssetsTotal))
	out.line("partitions", words(st.Partitions, st.PartitionsTotal))
	out.field("tasks", "%s: %s", view.Grouped(int64(st.TasksTotal)), counts(st.run))
	for i, t := range st.Running {
		if i == maxStatus {
			out.field("", "… and %d more", len(st.Running)-maxStatus)
			break
		}
		line := fmt.Sprintf("%s  %s on %s", readable(t.TaskKey), view.Span(now.Sub(t.Since)), t.Worker)
		if t.Message != "" {
			line += "  " + view.OneLine(t.Message)
		}
		out.field(firstOnly(i, "running"), "%s", line)
	}
	for i, wait := range st.Waits {
		out.field(firstOnly(i, "waits"), "%s", wait)
	}
	failedText(out, "retrying", st.Retrying, now)
	failed := slices.DeleteFunc(slices.Clone(st.Failed), func(t view.FailedTask) bool { return t.Quarantine.Approved() })
	failedText(out, "failed", failed, now)
	approvedText(out, st.Failed)
	for i := range st.Unpublished {
		out.field(firstOnly(i, "publish"), "%s", placeText(&st.Unpublished[i], "", now.Time()))
	}
	for i := range st.Backfills {
		b := &st.Backfills[i]
		out.field(firstOnly(i, "backfill"), "%s is %s: %s", b.ID, b.State, progressText(b))
	}
	out.line("error", st.Error)
	out.line("cancelled", st.Cancelled)
	switch {
	case len(failed) > 0:
		fmt.Fprintf(out, "\nservo logs %s %s\n%s\n", st.RunID, quoted(readable(failed[0].TaskKey)), strings.Join(st.Repeat.Advice(st.RunID), "\n"))
	case st.Repeat.OnlyApproved() && st.Repeat.Skipped:
		fmt.Fprintf(out, "\n%s\n", strings.Join(st.Repeat.Advice(st.RunID), "\n"))
	case !st.State.Terminal() && st.Owner == 0:
		out.WriteString("\nNo process is executing this run. Resume it with: servo run --resume\n")
	}
	a.attentionText(out, slices.DeleteFunc(slices.Clone(st.Attention), func(x engine.Attention) bool {
		return x.RunID == st.RunID && x.OneRun && st.State != state.RunTimedOut // shown above
	}), now)
	return out.String()
}

// knownAssets returns the assets of a project as runs see them, or nil if they cannot be read.
func (a *app) knownAssets(ctx context.Context, settings *project.Project) []plan.Asset {
	if explicit(settings) {
		d, err := a.deployedRelease(ctx, settings)
		if err != nil {
			return nil
		}
		return d.project.Assets
	}
	p, _ := a.loadProject(ctx, settings.Root) // `servo validate` reports the problems
	if p == nil {
		return nil
	}
	return p.Assets
}

// attentionText adds a section that lists what needs attention.
func (a *app) attentionText(out *sheet, found []engine.Attention, now event.Time) {
	if len(found) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", a.style.bold("needs attention"))
	for i := range found {
		if i == maxStatus {
			fmt.Fprintf(out, "… and %d more: servo status -o json\n", len(found)-maxStatus)
			return
		}
		x := &found[i]
		fmt.Fprintf(out, "%s  %s  %s", a.style.state(string(x.Kind)), a.style.bold(x.Subject), x.Headline)
		if len(x.Partitions) > 0 {
			fmt.Fprintf(out, "; %s", words(x.Partitions, int32(min(x.Count, math.MaxInt32))))
		}
		if x.Downstream > 0 {
			fmt.Fprintf(out, "; %s downstream", plural(x.Downstream, "asset"))
		}
		fmt.Fprintf(out, "; since %s ago\n", view.Span(now.Sub(x.Since)))
		for _, command := range x.Commands {
			fmt.Fprintf(out, "  %s\n", a.style.dim(command))
		}
	}
}

func failedText(out *sheet, name string, tasks []view.FailedTask, now event.Time) {
	for i, t := range tasks {
		if i == maxStatus {
			out.field("", "… and %d more", len(tasks)-maxStatus)
			return
		}
		again := ""
		if t.Again != 0 {
			again = "; again in " + view.Span(t.Again.Sub(now))
		}
		out.field(firstOnly(i, name), "%s  %s: %s%s", readable(t.TaskKey), t.Attempts, t.Error, again)
	}
}

// approvedText lists the failed tasks whose outputs were approved.
func approvedText(out *sheet, tasks []view.FailedTask) {
	n := 0
	for _, t := range tasks {
		if !t.Quarantine.Approved() {
			continue
		}
		if n < maxStatus {
			out.field(firstOnly(n, "approved"), "%s  the output is %s; %s", readable(t.TaskKey), t.Quarantine, t.Error)
		}
		n++
	}
	if n > maxStatus {
		out.field("", "… and %d more", n-maxStatus)
	}
}

func (a *app) lasted(st *runStatus, now event.Time) string {
	if st.CompletedAt != 0 {
		return fmt.Sprintf("took %s, ended %s ago", view.Span(st.CompletedAt.Sub(st.CreatedAt)), view.Span(now.Sub(st.CompletedAt)))
	}
	return fmt.Sprintf("for %s", view.Span(now.Sub(st.CreatedAt)))
}

// firstOnly returns the name for the first of several lines, and "" for the other lines.
func firstOnly(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

// words joins the first items of a list. The parameter total is the length of the whole list.
func words(list []string, total int32) string {
	shown := list[:min(len(list), maxStatus)]
	text := strings.Join(shown, ", ")
	if more := max(int(total), len(list)) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (a *app) cancelCommand() *cobra.Command {
	var reason string
	var force bool
	cmd := &cobra.Command{
		Use:   "cancel [RUN]",
		Short: "Cancel a run (default: the latest run), or a request",
		Long:  "Cancel a run, or a request that `servo requests` lists, by its id.",
		Args:  takes("[RUN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				if id := optional(args); isRequest(id) {
					return a.cancelRequest(ctx, s, id, reason)
				}
				return a.cancelRun(ctx, s, optional(args), cmp.Or(reason, "requested by "+cmp.Or(a.User, "a user")), force)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason to record in the ledger")
	cmd.Flags().BoolVar(&force, "force", false, "do not wait for running tasks to stop")
	return cmd
}

func (a *app) cancelRun(ctx context.Context, s *session, id, reason string, force bool) error {
	snap, err := s.Current(ctx)
	if err != nil {
		return err
	}
	_, run, err := engine.FindRun(ctx, snap, id)
	if err != nil {
		return err
	}
	// This process became the owner only because there was none. So no process executes the run, and there is nothing
	// to wait for.
	if err := s.Cancel(ctx, run.RunID, reason, force || s.stack != nil); err != nil {
		return err
	}
	if snap, err = s.Current(ctx); err != nil {
		return err
	}
	now := snap.State.Runs.Get(run.RunID)
	if now.State.Terminal() {
		a.note("run %s is %s: %s", now.RunID, a.style.state(string(now.State)), counts(now))
		return nil
	}
	a.note("run %s is %s: running tasks have %s to stop; `servo cancel %s --force` does not wait",
		now.RunID, a.style.state(string(now.State)), view.Span(time.Duration(now.CancelGraceSec)*time.Second), now.RunID)
	return nil
}
