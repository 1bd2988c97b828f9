package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// AttentionKind is the reason why a person should look at something.
type AttentionKind string

// Kinds of attention.
const (
	// AttentionFailed: tasks of an asset have failed, and no later run has materialized their partitions.
	AttentionFailed AttentionKind = "FAILED"
	// AttentionLate: an asset has missed a deadline and its partitions are still missing or stale; or the newest output
	// of an asset is older than the freshness limit.
	AttentionLate AttentionKind = "LATE"
	// AttentionQuarantined: checks have blocked outputs of an asset, and the outputs are waiting for a decision.
	AttentionQuarantined AttentionKind = "QUARANTINED"
	// AttentionCheck: the last result of a check of an asset is a failure, and the checked output is visible.
	AttentionCheck AttentionKind = "CHECK_FAILED"
	// AttentionPaused: a schedule or a backfill is paused.
	AttentionPaused AttentionKind = "PAUSED"
	// AttentionBackfill: a backfill that skipped partitions ended within the last week.
	AttentionBackfill AttentionKind = "BACKFILL_FAILED"
	// AttentionError: a schedule has no next tick, or the run of its last tick could not be planned.
	AttentionError AttentionKind = "SCHEDULE_ERROR"
	// AttentionWaiting: a requested run could not be planned, and planning will be tried again.
	AttentionWaiting AttentionKind = "REQUEST_WAITING"
	// AttentionUndeliverable: notifications of the last day could not be sent to a channel.
	AttentionUndeliverable AttentionKind = "UNDELIVERABLE"
)

// Severities of attention.
const (
	SeverityError   = "ERROR"   // data is missing or may be wrong
	SeverityWarning = "WARNING" // something has stopped that should run
	SeverityInfo    = "INFO"    // a person has chosen this state
)

// Attention is something that a person should look at.
type Attention struct {
	Kind     AttentionKind `json:"kind"`
	Severity string        `json:"severity"`
	// Subject is the name of an asset, a schedule or a channel, or the id of a request or a backfill.
	Subject  string     `json:"subject"`
	Since    event.Time `json:"since"`
	Headline string     `json:"headline"`
	// Count is how many partitions, outputs, notifications or errors are affected, depending on the kind.
	Count int64 `json:"count"`
	// Partitions are the first affected partitions, as selections: "date=2025-01-15".
	Partitions []string `json:"partitions,omitempty"`
	// RunID and TaskKey identify the newest failed task.
	RunID   string `json:"run_id,omitempty"`
	TaskKey string `json:"task_key,omitempty"`
	// Downstream is the number of assets that depend on the subject, directly or not.
	Downstream int `json:"downstream_total"`
	// Commands are command lines that show details, or that solve the problem.
	Commands []string `json:"commands"`
	// Next is the command that repeats the failed tasks; nil: no task failed.
	Next *view.Step `json:"next,omitempty"`

	// OneRun means that all failed tasks belong to the run RunID.
	OneRun bool `json:"-"`
}

// attentionSpan is how long failed tasks of a run need attention. Older runs are not read.
const attentionSpan = 30 * 24 * time.Hour

// failedBackfillSpan is how long a failed backfill needs attention.
const failedBackfillSpan = 7 * 24 * time.Hour

// shownPartitions is the maximum number of listed partitions of an [Attention].
const shownPartitions = 5

// list adds a partition, unless [shownPartitions] partitions are listed already.
func (a *Attention) list(key string) {
	if key == "" || len(a.Partitions) == shownPartitions {
		return
	}
	if p, err := ids.ParsePartition(key); err == nil {
		key = p.Text()
	}
	a.Partitions = append(a.Partitions, key)
}

// FindAttention returns everything that needs attention. Errors come first. Items of the same severity are sorted by
// the number of assets that depend on the subject. It looks for failed tasks only in runs of the last 30 days, and only
// in the newest 100 of these runs that have failures. If assets is not nil, FindAttention considers only these assets
// when it looks for failed tasks, failed checks, missed deadlines and outputs that are too old.
func FindAttention(ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, now event.Time) ([]Attention, error) {
	f := finder{s: snap.State}
	if assets != nil {
		f.assets = make(map[string]*plan.Asset, len(assets))
	}
	for i := range assets {
		f.assets[assets[i].Key.String()] = &assets[i]
	}
	if err := f.failed(ctx, snap, now); err != nil {
		return nil, err
	}
	f.schedules()
	f.requests()
	if err := f.quarantined(); err != nil {
		return nil, err
	}
	// Call f.checks after f.failed and f.quarantined: it skips the assets for which these methods have added an item.
	if err := f.checks(ctx, snap); err != nil {
		return nil, err
	}
	f.tooOld()
	for _, find := range []func() error{
		func() error { return f.late(now) }, func() error { return f.backfills(now) }, f.undeliverable,
	} {
		if err := find(); err != nil {
			return nil, err
		}
	}
	graph, err := plan.NewGraph(assets)
	if err != nil {
		return nil, err
	}
	for i := range f.found {
		if asset := f.assets[f.found[i].Subject]; asset != nil {
			f.found[i].Downstream = len(graph.Downstream(asset.Key)) - 1
		}
	}
	rank := map[string]int{SeverityError: 0, SeverityWarning: 1, SeverityInfo: 2}
	slices.SortStableFunc(f.found, func(a, b Attention) int {
		return cmp.Or(
			cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(b.Downstream, a.Downstream),
			cmp.Compare(a.Since, b.Since), strings.Compare(a.Subject, b.Subject),
		)
	})
	return f.found, nil
}

// finder collects what needs attention.
type finder struct {
	s      *state.State
	assets map[string]*plan.Asset // nil: all assets are considered
	found  []Attention
}

func (f *finder) add(a Attention) { f.found = append(f.found, a) }

// failed adds an item for each asset with failed partitions.
func (f *finder) failed(ctx context.Context, snap *snapshot.Snapshot, now event.Time) error {
	byAsset, repeats := map[string]*Attention{}, map[string]*view.Repeat{}
	seen := map[state.Key2]bool{}
	since := ids.AtTime(now.Time().Add(-attentionSpan))
	err := eachFailure(ctx, snap, since, view.Calendar(snap.State, now.Time()), f.assets, func(t *state.Task, partition string) {
		key := state.Key2{A: t.AssetKey, B: partition}
		if seen[key] || f.inQuarantine(t, partition) {
			return
		}
		seen[key] = true
		a := byAsset[t.AssetKey]
		if a == nil { // runs come newest first
			a = &Attention{
				Kind: AttentionFailed, Severity: SeverityError, Subject: t.AssetKey, Since: t.CompletedAt, RunID: t.RunID, TaskKey: t.TaskKey, OneRun: true,
				Headline: view.ErrorLine(t.ErrorCode, t.ErrorMessage),
				Commands: []string{
					fmt.Sprintf("servo logs %s %s", t.RunID, view.Quoted(ids.ReadableKey(t.TaskKey))), "servo run " + t.AssetKey + " --failed-only",
				},
			}
			byAsset[t.AssetKey], repeats[t.AssetKey] = a, &view.Repeat{}
		}
		repeats[t.AssetKey].Add(t)
		a.Count++
		a.OneRun = a.OneRun && t.RunID == a.RunID
		a.Since = min(a.Since, t.CompletedAt)
		a.list(partition)
	})
	for asset, a := range byAsset {
		step := repeats[asset].StepOf(asset, a.RunID, a.OneRun)
		a.Next = &step
		slices.Sort(a.Partitions)
		f.add(*a)
	}
	return err
}

// inQuarantine reports whether a failed task has put its output for a partition into quarantine, where the output
// waits for a decision.
func (f *finder) inQuarantine(t *state.Task, partition string) (found bool) {
	f.s.CandidatesOf(t.AssetKey, partition, func(c *state.Candidate) bool {
		found = c.State == state.CandidatePending && c.RunID == t.RunID
		return !found
	})
	return found
}

// late adds an item for each deadline that was missed and whose partitions are still missing or stale.
func (f *finder) late(now event.Time) error {
	for row := range f.s.DeadlineMisses.All {
		if !row.Open(now) || !f.has(row.AssetKey) {
			continue
		}
		a := Attention{
			Kind: AttentionLate, Severity: SeverityError, Subject: row.AssetKey, Since: row.DueAt,
			Commands: []string{"servo deadlines", "servo assets " + row.AssetKey},
		}
		var missing []string
		if row.Missing != "" {
			if err := json.Unmarshal([]byte(row.Missing), &missing); err != nil {
				return fmt.Errorf("read missed deadline %s: %w", row.MissID, err)
			}
		}
		for _, key := range missing {
			a.list(key)
		}
		a.Count = max(int64(len(missing))+row.More, 1)
		a.Headline = "the deadline passed, and no newer output was made"
		if row.Period != "" {
			a.Headline = fmt.Sprintf("the deadline of %s passed, and no newer output was made", row.Period)
		}
		f.add(a)
	}
	return nil
}

// quarantined adds an item for each asset with outputs in quarantine.
func (f *finder) quarantined() error {
	candidates, err := Candidates(f.s)
	for i := range candidates { // sorted by asset
		c := &candidates[i]
		if last := len(f.found) - 1; last >= 0 && f.found[last].Kind == AttentionQuarantined && f.found[last].Subject == c.Asset {
			a := &f.found[last]
			a.Count++
			a.Since = min(a.Since, c.BlockedAt)
			a.list(c.Partition)
			continue
		}
		a := Attention{
			Kind: AttentionQuarantined, Severity: SeverityError, Subject: c.Asset, Since: c.BlockedAt, Count: 1,
			RunID: c.RunID, TaskKey: c.TaskKey, Headline: "a check blocked the output", Commands: []string{"servo quarantine list"},
		}
		if len(c.FailedChecks) > 0 {
			a.Headline = "the check " + c.FailedChecks[0].Check + " blocked the output"
		}
		a.list(c.Partition)
		f.add(a)
	}
	return err
}

// schedules adds an item for each schedule that is paused, that has no next tick, or whose last tick got no run because
// the run could not be planned.
func (f *finder) schedules() {
	for row := range f.s.Schedules.All {
		a := Attention{Kind: AttentionError, Severity: SeverityWarning, Subject: row.ScheduleID, Since: row.DefinedAt, Count: 1}
		tick := f.s.Ticks.Get(row.LastTick)
		switch {
		case row.RemovedAt != 0:
			continue
		case row.Paused:
			a.Kind, a.Since = AttentionPaused, cmp.Or(row.PausedAt, row.DefinedAt)
			a.Commands = []string{"servo schedule resume " + view.Quoted(row.ScheduleID)}
			switch {
			case row.PausedBy != "":
				a.Severity, a.Headline = SeverityInfo, "the schedule was paused by "+row.PausedBy
			case row.PausedAt == 0:
				a.Severity, a.Headline = SeverityInfo, "the schedule is declared with paused: true"
			default:
				a.Headline = "the schedule has paused itself"
			}
			if row.Reason != "" {
				a.Headline += ": " + view.OneLine(row.Reason)
			}
		case row.Error != "":
			a.Count, a.Headline = int64(row.Errors), "the schedule has no next tick: "+view.OneLine(row.Error)
			a.Commands = []string{"servo schedule show " + view.Quoted(row.ScheduleID)}
		case tick != nil && tick.Outcome == state.TickRefused:
			a.Severity, a.Since = SeverityError, cmp.Or(tick.EndedAt, tick.DecidedAt)
			a.Headline = "the run of the last tick could not be planned: " + view.OneLine(cmp.Or(tick.Detail, "no reason is recorded"))
			a.Commands = []string{"servo schedule ticks " + view.Quoted(row.ScheduleID)}
		default:
			continue
		}
		f.add(a)
	}
}

// requests adds an item for each requested run that could not be planned and whose planning will be tried again.
func (f *finder) requests() {
	for row := range f.s.Requests.All {
		if row.State != state.RequestWaiting || row.ErrorCode == "" {
			continue
		}
		f.add(Attention{
			Kind: AttentionWaiting, Severity: SeverityWarning, Subject: cmp.Or(row.ScheduleID, row.RequestID), Since: row.CreatedAt, Count: 1,
			Headline: "a requested run cannot be planned: " + view.ErrorLine(row.ErrorCode, row.ErrorMessage), Commands: []string{"servo requests"},
		})
	}
}

// checks adds an item for each check of severity CRITICAL or ERROR whose last result is a failure. It adds none if the
// asset already has an item for a failed task or for an output in quarantine, or if the checked output was approved.
func (f *finder) checks(ctx context.Context, snap *snapshot.Snapshot) error {
	known := map[string]bool{}
	for i := range f.found {
		known[f.found[i].Subject] = true
	}
	for row := range f.s.AssetChecks.All {
		if row.LastPassed || row.Severity != checkCritical && row.Severity != checkError || known[row.AssetKey] || !f.has(row.AssetKey) {
			continue
		}
		shown, err := snap.Partition(ctx, row.AssetKey, row.LastPartition)
		if err != nil {
			return err
		}
		if shown != nil && shown.Quality == state.Approved && shown.RunID == row.LastRunID {
			continue
		}
		a := Attention{
			Kind: AttentionCheck, Severity: SeverityError, Subject: row.AssetKey, Since: row.LastAt, Count: 1,
			Headline: "the check " + row.Check + " has failed: " + view.OneLine(row.FailedMessage),
			Commands: []string{"servo checks " + row.AssetKey},
		}
		a.list(row.LastPartition)
		f.add(a)
	}
	return nil
}

// These are the severities of checks whose failure means that the data is wrong.
const (
	checkCritical = "CRITICAL"
	checkError    = "ERROR"
)

// tooOld adds an item for each asset whose newest output is older than the asset's freshness limit.
func (f *finder) tooOld() {
	for row := range f.s.Promises.All {
		if row.MaxLagSec == 0 || row.LagAt != 0 || !f.has(row.AssetKey) {
			continue
		}
		lag := time.Duration(row.MaxLagSec) * time.Second
		f.add(Attention{
			Kind: AttentionLate, Severity: SeverityError, Subject: row.AssetKey, Since: row.DataAt.Add(lag), Count: 1,
			Headline: "the newest output is more than " + view.Span(lag) + " old",
			Commands: []string{"servo deadlines", "servo assets " + row.AssetKey},
		})
	}
}

// has reports whether the search includes an asset. If f.assets is nil, it includes all assets.
func (f *finder) has(asset string) bool { return f.assets == nil || f.assets[asset] != nil }

// backfills adds an item for each backfill that is paused, and for each backfill that has skipped partitions and
// ended in the last week. It does not report failed partitions, because these have items of their own until they are
// materialized.
func (f *finder) backfills(now event.Time) error {
	for row := range f.s.Backfills.All {
		if row.State != state.BackfillFailed || row.Skipped == 0 || now.Sub(row.EndedAt) > failedBackfillSpan {
			continue
		}
		b, err := BackfillOf(row)
		if err != nil {
			return err
		}
		a := Attention{
			Kind: AttentionBackfill, Severity: SeverityError, Subject: b.ID, Since: b.EndedAt, Count: b.Skipped,
			Headline: fmt.Sprintf("the backfill of %s has ended; it skipped %s", view.Some(b.Assets), view.Count(int(b.Skipped), "partition")),
			Commands: []string{"servo backfill show " + b.ID},
		}
		if b.Next != "" {
			a.Commands = append(a.Commands, b.Next)
		}
		f.add(a)
	}
	open, err := OpenBackfills(f.s)
	for i := range open {
		b := &open[i]
		if b.State != state.BackfillPaused {
			continue
		}
		a := Attention{
			Kind: AttentionPaused, Severity: SeverityInfo, Subject: b.ID, Since: b.PausedAt, Count: b.Left,
			Headline: "the backfill of " + view.Some(b.Assets) + " was paused by " + b.PausedBy,
			Commands: []string{"servo backfill show " + b.ID},
		}
		if b.PausedBy == "" {
			a.Severity, a.Headline = SeverityWarning, "the backfill of "+view.Some(b.Assets)+" has paused itself"
		}
		if b.PauseReason != "" {
			a.Headline += ": " + view.OneLine(b.PauseReason)
		}
		if b.Next != "" {
			a.Commands = append(a.Commands, b.Next)
		}
		f.add(a)
	}
	return err
}

// undeliverable adds an item for each channel to which a notification of the last day could not be sent.
func (f *finder) undeliverable() error {
	all, err := Undeliverable(f.s)
	byChannel := map[string]int{} // the index of the channel's item in found
	for i := range all {
		n := &all[i]
		place, ok := byChannel[n.Channel]
		if !ok {
			place = len(f.found)
			byChannel[n.Channel] = place
			f.add(Attention{
				Kind: AttentionUndeliverable, Severity: SeverityWarning, Subject: n.Channel, Since: n.FirstAt,
				Headline: "notifications could not be sent: " + view.OneLine(n.Error), Commands: []string{"servo alerts"},
			})
		}
		f.found[place].Count++
		f.found[place].Since = min(f.found[place].Since, n.FirstAt)
	}
	return err
}

// eachFailure calls yield for each failed partition. A partition is failed if its task failed in one of the newest runs
// with failures, and no later run has materialized the partition. Tasks that a run's timeout cancelled count as failed.
// eachFailure reads the runs whose ids are not below the parameter "since", newest first. If assets is not nil, it
// ignores the partitions of other assets, and partitions that the given assets no longer have.
func eachFailure(
	ctx context.Context, snap *snapshot.Snapshot, since string, calendar plan.Calendar, assets map[string]*plan.Asset,
	yield func(t *state.Task, partition string),
) error {
	return eachUnmade(ctx, snap, since, calendar, assets, snap.FailedTasks, yield)
}

// eachUnmade calls tasksOf for each of the newest runs with failures. It calls yield for each partition of these tasks,
// unless a later run has materialized the partition.
func eachUnmade(
	ctx context.Context, snap *snapshot.Snapshot, since string, calendar plan.Calendar, assets map[string]*plan.Asset,
	tasksOf func(context.Context, *state.Run) ([]snapshot.FailedTask, error), yield func(t *state.Task, partition string),
) error {
	page, err := snap.FindRuns(ctx, snapshot.RunQuery{Since: since, Limit: maxOlderRuns, Match: func(run snapshot.RunHead) bool {
		return run.TasksFailed > 0 || run.State == state.RunTimedOut
	}})
	if err != nil {
		return err
	}
	for _, run := range page.Runs {
		failed, err := tasksOf(ctx, run)
		if err != nil {
			return err
		}
		for _, one := range failed {
			t := one.Task
			for _, partition := range one.Partitions {
				if assets != nil && !hasPartition(calendar, assets[t.AssetKey], partition) {
					continue
				}
				made, err := snap.Partition(ctx, t.AssetKey, partition)
				if err != nil {
					return err
				}
				if made == nil || made.RunID < run.RunID {
					yield(t, partition)
				}
			}
		}
	}
	return nil
}

// hasPartition reports whether an asset, which may be nil, still has a partition.
func hasPartition(calendar plan.Calendar, asset *plan.Asset, partition string) bool {
	if asset == nil {
		return false
	}
	members, err := calendar.Members(asset.Partitions)
	return err == nil && members.Has(partition)
}
