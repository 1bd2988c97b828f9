package automator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// judge appends events that say which deadlines the assets in a snapshot have met or missed, and which deadlines are
// next. The events also list further missing partitions of missed deadlines.
func (a *Automator) judge(ctx context.Context, snap *snapshot.Snapshot, work control.Automation, p *project, err error) error {
	if err != nil {
		return err
	}
	var items []event.JudgedDeadline
	missing, evaluations := 0, evaluations{}
	flush := func() error {
		if len(items) == 0 {
			return nil
		}
		err := a.engine.JudgeDeadlines(ctx, items)
		items, missing = nil, 0
		return err
	}
	add := func(item event.JudgedDeadline) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(items) == event.MaxJudged || missing+len(item.Missing) > event.MaxMissing {
			if err := flush(); err != nil {
				return err
			}
		}
		items, missing = append(items, item), missing+len(item.Missing)
		return nil
	}
	for _, row := range work.Deadlines {
		if err := add(a.verdict(ctx, snap, row, 0, p, evaluations)); err != nil {
			return err
		}
	}
	for _, miss := range work.Misses {
		if item, ok := a.verdictAgain(ctx, snap, miss, p, evaluations); ok {
			if err := add(item); err != nil {
				return err
			}
		}
	}
	return flush()
}

// verdictAgain lists the partitions that have had no output since a deadline was missed. It returns false if it cannot
// list them; a later pass tries again.
func (a *Automator) verdictAgain(ctx context.Context, snap *snapshot.Snapshot, miss *state.DeadlineMiss, p *project, known evaluations) (event.JudgedDeadline, bool) {
	promise := snap.State.Promises.Get(miss.AssetKey)
	if promise == nil || promise.Version == "" {
		return event.JudgedDeadline{}, false
	}
	row := *promise
	row.Period, row.DueAt = miss.Period, miss.DueAt
	item := a.verdict(ctx, snap, &row, miss.MissedAt, p, known)
	if item.Error != "" {
		a.cfg.Logger.WarnContext(ctx, "could not list the missing partitions of a missed deadline; a later pass retries", slog.String("asset", miss.AssetKey),
			slog.String("period", miss.Period), slog.String("error", item.Error))
		return item, false
	}
	item.Next, item.NextAt = "", 0
	return item, true
}

// verdict judges the deadline of a row, if the row has one, and finds the next deadline. If the parameter "since" is
// not 0, verdict treats partitions as present if their outputs were made after this time.
func (a *Automator) verdict(ctx context.Context, snap *snapshot.Snapshot, row *state.Promise, since event.Time, p *project, known evaluations) event.JudgedDeadline {
	item := event.JudgedDeadline{
		Asset: row.AssetKey, Version: row.Version, Period: row.Period, DueAt: row.DueAt, ObservedSeq: snap.State.FoldSeq,
	}
	fail := func(err error) event.JudgedDeadline {
		item.Verdict, item.Missing, item.More, item.Error = "", nil, 0, limited(err.Error())
		return item
	}
	var spec event.Deadline
	if err := json.Unmarshal([]byte(row.Spec), &spec); err != nil {
		return fail(fmt.Errorf("read the deadline: %w", err))
	}
	i := slices.IndexFunc(p.code.Assets, func(x engine.Asset) bool { return x.Key.String() == row.AssetKey })
	if i < 0 {
		return fail(fmt.Errorf("release %.12s has no such asset", p.sha))
	}
	d, err := engine.DeadlinesOf(&p.code.Assets[i], &spec)
	if err != nil {
		return fail(err)
	}
	if row.DueAt == 0 {
		next, at, ok := d.First(row.WantedAt.Time())
		if ok {
			item.Next, item.NextAt = next, event.At(at)
		}
		return item
	}
	late, err := a.missing(ctx, snap, row, d, p, known)
	if err != nil {
		return fail(err)
	}
	if since != 0 {
		if late, err = notMadeSince(ctx, snap, row.AssetKey, late, since); err != nil {
			return fail(err)
		}
	}
	if item.Verdict = event.DeadlineMet; len(late) > 0 {
		most := min(len(late), maxMissing)
		item.Verdict, item.Missing, item.More = event.DeadlineMissed, late[:most], int64(len(late)-most)
	}
	next, at, ok, err := d.Next(row.Period, row.DueAt.Time())
	if err != nil {
		return fail(err)
	}
	if ok {
		item.Next, item.NextAt = next, event.At(at)
	}
	return item
}

// notMadeSince removes from late the partitions that have an output which was made after the time since. It returns the
// remaining partitions. Such an output may be stale, and its row may be in history.
func notMadeSince(ctx context.Context, snap *snapshot.Snapshot, asset string, late []string, since event.Time) ([]string, error) {
	made := map[string]bool{}
	for row, err := range snap.WithHidden(ctx, asset) {
		if err != nil {
			return nil, fmt.Errorf("read the partitions of %s: %w", asset, err)
		}
		if row.MaterializedAt > since {
			made[row.PartitionKey] = true
		}
	}
	return slices.DeleteFunc(late, func(key string) bool { return made[key] }), nil
}

// maxMissing is the maximum number of partitions of one asset that an event lists.
const maxMissing = 500

// evaluations caches the staleness of a snapshot's partitions, by the time for which it is evaluated. The zero time
// means the current time.
type evaluations map[time.Time]*staleness.Evaluation

// missing returns the partitions of a period that are missing or stale.
func (a *Automator) missing(ctx context.Context, snap *snapshot.Snapshot, row *state.Promise, d *engine.Deadlines, p *project, known evaluations) (late []string, err error) {
	var at time.Time
	if expected := d.Expected(row.Period); expected.After(a.cfg.Clock.Now()) {
		// Evaluate for the time at which the partitions are expected, even if the deadline is earlier.
		at = expected.Add(time.Second)
	}
	e := known[at]
	if e == nil {
		now := at
		if now.IsZero() {
			now = a.cfg.Clock.Now()
		}
		if e, err = p.evaluate(ctx, snap, now); err != nil {
			return nil, err
		}
		known[at] = e
	}
	partitions, err := e.Partitions(d.Asset())
	if err != nil {
		return nil, err
	}
	for _, x := range partitions {
		if d.Contains(row.Period, x.Key) && (x.Status == staleness.Missing || x.Status == staleness.Stale) {
			late = append(late, x.Key)
		}
	}
	return late, nil
}
