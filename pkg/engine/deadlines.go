package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Asset is an asset of a release.
type Asset = plan.Asset

// JudgeDeadlines appends an event with verdicts about deadlines.
func (e *Engine) JudgeDeadlines(ctx context.Context, items []event.JudgedDeadline) error {
	_, _, err := e.append(ctx, "", &event.DeadlineJudged{Items: items})
	return err
}

// Deadlines computes the deadlines of an asset's periods.
type Deadlines struct {
	asset     *plan.Asset
	dimension *space.Dimension // the time dimension; nil: a deadline every day
	periods   *space.Deadlines
	spec      *event.Deadline
	zone      *time.Location
	hour, min int
	calendar  plan.Calendar
}

// layoutBy is the format in which a deadline states its time of day.
const layoutBy = "15:04"

// DeadlinesOf returns the deadlines of an asset.
func DeadlinesOf(a *plan.Asset, spec *event.Deadline) (*Deadlines, error) {
	d := &Deadlines{asset: a, dimension: a.Partitions.Time(), spec: spec, calendar: plan.Calendar{Zone: calendar.Zone}}
	name := spec.Timezone
	if d.dimension != nil {
		name = cmp.Or(name, d.dimension.Timezone)
	}
	var err error
	if d.zone, err = calendar.Zone(cmp.Or(name, "UTC")); err != nil {
		return nil, fmt.Errorf("deadline of %s: %w", a.Key, err)
	}
	if spec.By != "" {
		by, err := time.Parse(layoutBy, spec.By)
		if err != nil {
			return nil, fmt.Errorf("deadline of %s: %q is not a time: write \"09:00\"", a.Key, spec.By)
		}
		d.hour, d.min = by.Hour(), by.Minute()
	}
	if d.dimension == nil {
		if spec.By == "" {
			return nil, errors.New("an asset without a time dimension has no period that ends: write by: \"09:00\"")
		}
		return d, nil
	}
	if d.periods, err = d.calendar.Deadlines(d.dimension, d.due); err != nil {
		return nil, fmt.Errorf("deadline of %s: %w", a.Key, err)
	}
	return d, nil
}

// due returns the deadline of a period.
func (d *Deadlines) due(_, end time.Time) time.Time {
	if d.spec.By == "" {
		return end.Add(time.Duration(d.spec.AfterEndSec) * time.Second)
	}
	zone := time.UTC
	if name := d.dimension.Timezone; name != "" {
		if z, err := calendar.Zone(name); err == nil {
			zone = z
		}
	}
	last := end.Add(-time.Second).In(zone) // the last day of the period in the time zone of the dimension
	return d.on(last.Year(), last.Month(), last.Day()+int(d.spec.DaysAfter))
}

func (d *Deadlines) on(year int, month time.Month, day int) time.Time {
	return time.Date(year, month, day, d.hour, d.min, 0, 0, d.zone)
}

// First returns the first period whose deadline is after a time.
func (d *Deadlines) First(after time.Time) (period string, at time.Time, ok bool) {
	if d.periods != nil {
		return d.periods.First(after)
	}
	local := after.In(d.zone)
	for day := local.Day(); ; day++ {
		if at = d.on(local.Year(), local.Month(), day); at.After(after) {
			return "", at, true
		}
	}
}

// Next returns the period after the given one, and the deadline of this next period. The parameter "at" is the deadline
// of the given period.
func (d *Deadlines) Next(period string, at time.Time) (next string, nextAt time.Time, ok bool, err error) {
	if d.periods != nil {
		return d.periods.Next(period)
	}
	next, nextAt, ok = d.First(at)
	return next, nextAt, ok, nil
}

// Asset returns the asset.
func (d *Deadlines) Asset() ids.AssetKey { return d.asset.Key }

// Expected returns the time at which the partitions of a period become expected.
func (d *Deadlines) Expected(period string) time.Time {
	if d.dimension == nil {
		return time.Time{}
	}
	_, end, err := d.calendar.Interval(d.dimension, period)
	if err != nil {
		return time.Time{}
	}
	return end.Add(time.Duration(d.dimension.ReadyAfterSec) * time.Second)
}

// Contains reports whether a partition belongs to a period.
func (d *Deadlines) Contains(period, partition string) bool {
	if d.dimension == nil {
		return true
	}
	p, err := ids.ParsePartition(partition)
	return err == nil && p[d.dimension.Name] == period
}

// Promise contains the deadline, the freshness limit and the SLAs that the deployed release declares for an asset. It
// also contains the current status of the deadline and of the freshness.
type Promise struct {
	Asset string `json:"asset"`
	// Status is the status of the deadline: waiting, at_risk, late (an earlier period is still missing), ended or
	// error.
	Status string `json:"status,omitempty"`
	// Period is the period with the next deadline, DueAt.
	Period string     `json:"period,omitempty"`
	DueAt  event.Time `json:"due_at,omitempty,omitzero"`
	// NeedsSec is the estimated duration of the remaining work in seconds. It is a cautious estimate: it uses the 95th
	// percentile of earlier durations.
	NeedsSec float64 `json:"needs_sec,omitempty"`
	// Late lists the periods whose deadline was missed and whose partitions are still missing or stale.
	Late  []string `json:"late,omitempty"`
	Error string   `json:"error,omitempty"`
	// Freshness is fresh, or late if the newest output is too old. DataAt is when the newest output was materialized.
	// LagAt is when that output becomes too old.
	Freshness string     `json:"freshness,omitempty"`
	MaxLagSec int64      `json:"max_lag_sec,omitempty"`
	DataAt    event.Time `json:"data_at,omitempty,omitzero"`
	LagAt     event.Time `json:"lag_at,omitempty,omitzero"`
	RunSec    int64      `json:"sla_run_sec,omitempty"`
	TaskSec   int64      `json:"sla_task_sec,omitempty"`
}

// Promises returns the promises of the deployed release, by asset.
func (e *Engine) Promises(ctx context.Context) ([]Promise, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return nil, err
	}
	return e.PromisesAt(ctx, snap, e.cfg.Clock.Now())
}

// PromisesAt is like [Engine.Promises], but reads the given snapshot, and judges the promises at the given time.
func (e *Engine) PromisesAt(ctx context.Context, snap *snapshot.Snapshot, now time.Time) ([]Promise, error) {
	return PromisesOf(ctx, snap, func(sha string) ([]plan.Asset, error) {
		_, code, err := e.ReadRelease(ctx, sha)
		if err != nil {
			return nil, err
		}
		return code.Assets, nil
	}, now)
}

// PromisesOf is like [Engine.Promises], but reads the given snapshot. The function read returns the assets of a
// release.
func PromisesOf(ctx context.Context, snap *snapshot.Snapshot, read func(sha string) ([]plan.Asset, error), now time.Time) ([]Promise, error) {
	all := []Promise{}
	if snap.State.Promises.Len() == 0 {
		return all, nil
	}
	assets, err := read(snap.State.Release())
	if err != nil {
		return nil, err
	}
	risk, err := newRisk(ctx, snap, assets, now)
	if err != nil {
		return nil, err
	}
	for row := range snap.State.Promises.All {
		x := Promise{
			Asset: row.AssetKey, Period: row.Period, DueAt: row.DueAt, Error: row.Error, MaxLagSec: row.MaxLagSec, DataAt: row.DataAt, LagAt: row.LagAt,
			RunSec: row.RunSec, TaskSec: row.TaskSec,
		}
		if row.MaxLagSec > 0 {
			if x.Freshness = "fresh"; row.LagAt == 0 {
				x.Freshness = "late"
			}
		}
		if row.Version != "" {
			if err := risk.judge(&x, row); err != nil {
				return nil, err
			}
		}
		all = append(all, x)
	}
	return all, nil
}

// risk estimates the remaining work before a deadline.
type risk struct {
	snap       *snapshot.Snapshot
	assets     []plan.Asset
	evaluation *staleness.Evaluation
	needs      map[ids.AssetKey]time.Duration // by asset: the duration of the longest chain of assets that must run
	took       map[string]time.Duration
	now        time.Time
}

func newRisk(ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, now time.Time) (*risk, error) {
	r := &risk{snap: snap, assets: assets, needs: map[ids.AssetKey]time.Duration{}, took: map[string]time.Duration{}, now: now}
	wanted := map[string]bool{}
	for i := range assets {
		wanted[assets[i].Key.String()] = true
	}
	past, err := Past(snap.State, wanted)
	if err != nil {
		return nil, err
	}
	const percent = 95
	for asset, samples := range past {
		took := make([]time.Duration, len(samples))
		for i := range samples {
			took[i] = samples[i].Duration
		}
		slices.Sort(took)
		if len(took) > 0 {
			r.took[asset] = took[(len(took)-1)*percent/100]
		}
	}
	r.evaluation, err = Staleness(ctx, snap, assets, now)
	return r, err
}

// judge sets the status of a deadline.
func (r *risk) judge(x *Promise, row *state.Promise) error {
	for _, miss := range r.snap.State.MissesOf(row.AssetKey) {
		if miss.Open(event.At(r.now)) {
			x.Late = append(x.Late, cmp.Or(miss.Period, miss.DueAt.String()))
		}
	}
	switch {
	case row.Error != "":
		x.Status = "error"
		return nil
	case row.DueAt == 0 && row.WantedAt == 0:
		x.Status = "ended"
		return nil
	}
	key, err := ids.ParseAssetKey(row.AssetKey)
	if err != nil {
		return fmt.Errorf("read deadline of %s: %w", row.AssetKey, err)
	}
	needs, err := r.remaining(key)
	if err != nil {
		return err
	}
	x.NeedsSec = needs.Seconds()
	switch {
	case len(x.Late) > 0:
		x.Status = "late"
	case row.DueAt != 0 && r.now.Add(needs).After(row.DueAt.Time()) && r.unmade(row, key):
		x.Status = "at_risk"
	default:
		x.Status = "waiting"
	}
	return nil
}

// unmade reports whether the period of a deadline has a missing or stale partition, or has not ended.
func (r *risk) unmade(row *state.Promise, key ids.AssetKey) bool {
	var spec event.Deadline
	i := slices.IndexFunc(r.assets, func(a plan.Asset) bool { return a.Key == key })
	if i < 0 || json.Unmarshal([]byte(row.Spec), &spec) != nil {
		return false
	}
	d, err := DeadlinesOf(&r.assets[i], &spec)
	if err != nil {
		return false
	}
	partitions, err := r.evaluation.Partitions(key)
	if err != nil {
		return false
	}
	made, found := true, false
	for _, p := range partitions {
		if d.Contains(row.Period, p.Key) {
			found = true
			made = made && p.Status != staleness.Missing && p.Status != staleness.Stale
		}
	}
	return !found || !made // a period without expected partitions has not ended
}

// remaining estimates how long the remaining work for an asset takes: the duration of the longest chain of assets that
// must run and that ends with this asset.
func (r *risk) remaining(key ids.AssetKey) (time.Duration, error) {
	if needs, known := r.needs[key]; known {
		return needs, nil
	}
	r.needs[key] = 0 // a placeholder that nothing reads, because a graph has no cycles
	i := slices.IndexFunc(r.assets, func(a plan.Asset) bool { return a.Key == key })
	if i < 0 {
		return 0, nil
	}
	longest := time.Duration(0)
	for _, up := range r.assets[i].Deps {
		n, err := r.evaluation.Count(up)
		if err != nil {
			return 0, err
		}
		if n.Missing+n.Stale == 0 {
			continue
		}
		needs, err := r.remaining(up)
		if err != nil {
			return 0, err
		}
		longest = max(longest, needs)
	}
	r.needs[key] = longest + r.took[key.String()]
	return r.needs[key], nil
}
