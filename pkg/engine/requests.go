package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Request is a run that will be planned at a given time, or for a tick of a schedule.
type Request struct {
	ID         string             `json:"request_id"`
	State      state.RequestState `json:"state"`
	Actor      string             `json:"actor,omitempty"`
	ScheduleID string             `json:"schedule_id,omitempty"`
	Logical    event.Time         `json:"logical,omitempty,omitzero"`
	Run        event.RunSpec      `json:"run"`
	// RunID is the run of a STARTED request. Other requests have no run.
	RunID string `json:"run_id,omitempty"`
	// NextAt is when a WAITING request is planned. Tries is how often its planning has failed.
	NextAt    event.Time `json:"next_at,omitempty,omitzero"`
	Tries     int32      `json:"tries,omitempty"`
	ErrorCode string     `json:"error_code,omitempty"`
	Error     string     `json:"error,omitempty"`
	CreatedAt event.Time `json:"created_at"`
	EndedAt   event.Time `json:"ended_at,omitempty,omitzero"`
}

// RequestOf converts a row of table run_requests.
func RequestOf(row *state.RunRequest) (Request, error) {
	r := Request{
		ID: row.RequestID, State: row.State, Actor: row.Actor, ScheduleID: row.ScheduleID, Logical: row.Logical,
		NextAt: row.NextAt, Tries: row.Generation, ErrorCode: row.ErrorCode, Error: row.ErrorMessage, CreatedAt: row.CreatedAt, EndedAt: row.EndedAt,
	}
	if row.State == state.RequestStarted {
		r.RunID = row.RunID
	}
	if err := json.Unmarshal([]byte(row.Spec), &r.Run); err != nil {
		return r, fmt.Errorf("read request %s: %w", row.RequestID, err)
	}
	return r, nil
}

// Requests returns the requests of a state, oldest first. Requests that ended within the last hour
// are included if ended is set.
func Requests(s *state.State, ended bool) ([]Request, error) {
	requests := []Request{}
	for row := range s.Requests.All {
		if row.State.Ended() && !ended {
			continue
		}
		r, err := RequestOf(row)
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return int(a.CreatedAt - b.CreatedAt) })
	return requests, nil
}

// CheckRequest checks a request for a run at a given time. It returns an error if the request selects partitions that
// its assets cannot have at that time. The request may still be refused later, because assets, selections and keys
// may change until then.
func CheckRequest(snap *snapshot.Snapshot, r *RunRequest, at time.Time) error {
	if r.Need != "" && len(r.Plan.Partitions) == 0 {
		return nil // the state at that time will determine the partitions
	}
	p := r.Plan
	p.Calendar = view.Calendar(snap.State, at)
	return plan.CheckSelection(p)
}

// RequestRun requests a run at a given time. The run is planned at that time, on the release that is current then.
func (e *Engine) RequestRun(ctx context.Context, at time.Time, spec event.RunSpec) (Request, error) {
	p := &event.RunRequested{CommandID: e.cfg.IDs.New(), At: event.At(at), Run: spec}
	snap, group, err := e.append(ctx, "", p)
	if err != nil {
		return Request{}, fmt.Errorf("request a run: %w", err)
	}
	row := snap.State.Requests.Get("at:" + p.CommandID)
	if row == nil {
		return Request{}, fmt.Errorf("request a run: %s", entryOutcome(snap, group))
	}
	return RequestOf(row)
}

// CancelRequest ends a request before it becomes a run.
func (e *Engine) CancelRequest(ctx context.Context, id, reason string) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	if done, err := e.repeated(snap); err != nil || done != "" {
		return err
	}
	row := snap.State.Requests.Get(id)
	if row == nil {
		return fmt.Errorf("cancel request %s: %w: list the requests with `servo requests`", id, ErrNotFound)
	}
	if key, _, ok := state.ParseChunkRequest(id); ok {
		return fmt.Errorf("cancel request %s: %w: it is for chunk %d of a backfill: pause or cancel the backfill with `servo backfill pause %s` or `servo backfill cancel %s`",
			id, ErrNoEffect, key.Chunk, key.BackfillID, key.BackfillID)
	}
	p := &event.AutomationCommand{
		CommandID: e.cfg.IDs.New(), Target: event.TargetRequest, Name: id, Verb: event.VerbCancel, Reason: reason,
	}
	e.condition(p)
	if !row.State.Ended() {
		if snap, _, err = e.append(ctx, "", p); err != nil {
			return fmt.Errorf("cancel request %s: %w", id, err)
		}
		if now := snap.State.Requests.Get(id); now != nil {
			row = now
		}
		if row.State == state.RequestCancelled {
			return nil
		}
	}
	if row.State == state.RequestStarted {
		return fmt.Errorf("cancel request %s: %w: it has become a run: cancel the run with `servo cancel %s`", id, ErrRequestEnded, row.RunID)
	}
	return fmt.Errorf("cancel request %s: %w: it is %s", id, ErrRequestEnded, row.State)
}

// PlanError is a planning error that depends only on the request and the snapshot: planning again on the same
// snapshot would fail in the same way.
type PlanError struct{ Err error }

// Error implements error.
func (e *PlanError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PlanError) Unwrap() error { return e.Err }

// PlannedRequest is the plan of a request whose run has not started.
type PlannedRequest struct {
	snap  *snapshot.Snapshot
	built *plan.Plan
	run   *event.RunTriggered
}

// Tasks returns the number of tasks in the plan.
func (p *PlannedRequest) Tasks() int { return len(p.built.Tasks) }

// PlanRequest plans a request on a snapshot. The parameter "at" is the time of the request, for example the time of a
// tick, which may be long ago. PlanRequest writes nothing.
func (e *Engine) PlanRequest(ctx context.Context, snap *snapshot.Snapshot, row *state.RunRequest, r RunRequest, at time.Time) (*PlannedRequest, error) {
	if _, err := Choose(ctx, snap, &r, at); err != nil {
		return nil, err
	}
	if r.Plan.ReadsAt = e.cfg.Clock.Now(); ids.Time(row.RunID).After(r.Plan.ReadsAt) {
		r.Plan.ReadsAt = ids.Time(row.RunID) // the clock that the run's id is based on is ahead of this one
	}
	built, err := Prepare(ctx, snap, r.Plan, at)
	if err != nil {
		return nil, err
	}
	if err := checkOvertaken(snap, built, row.RunID); err != nil {
		return nil, err
	}
	return &PlannedRequest{snap, built, &event.RunTriggered{
		RunID: row.RunID, RequestID: row.RequestID, Trigger: r.Trigger, RootAssets: roots(r), MaxParallelism: r.MaxParallelism,
		TimeoutSec: r.TimeoutSec, CancelGraceSec: r.CancelGraceSec, Labels: r.Labels, Release: r.Release,
		AllowIncomplete: r.Plan.AllowIncomplete, PartitionSelection: selectionOf(built),
	}}, nil
}

// ErrOvertaken means that another run, which was requested later, has already materialized a partition of a planned
// run, so that the output of the planned run would not become visible. A request that is refused for this reason is
// planned again later. It then has a new run id, which is greater than that of the other run.
var ErrOvertaken = errors.New("a later run came first")

// checkOvertaken returns an error if a run that is later than the given one has materialized a partition of the plan.
// The live state contains the rows of all such partitions, because a row leaves the live state only when no earlier
// run can write the partition any more.
func checkOvertaken(snap *snapshot.Snapshot, built *plan.Plan, run string) error {
	for i := range built.Tasks {
		t := &built.Tasks[i]
		if t.AssetKey == "" || t.Kind != event.KindTask {
			continue
		}
		for _, partition := range t.EachPartition() {
			if row := snap.State.Partitions.Get(state.Key2{A: t.AssetKey, B: partition}); row != nil && row.RunID > run {
				return fmt.Errorf("%w: run %s, which was requested later, has already made %s: the request is planned again soon", ErrOvertaken, row.RunID, t.TaskKey)
			}
		}
	}
	return nil
}

// StartRequest starts the run of a planned request. The request determines the id of its run, so two planners start
// only one run. It is not an error if the request has already ended or another process has planned it.
func (e *Engine) StartRequest(ctx context.Context, p *PlannedRequest) error {
	_, err := e.trigger(ctx, p.snap, p.built, p.run, observedOf(p.snap))
	return err
}

// RefuseRequest records that a request could not be planned on a release.
func (e *Engine) RefuseRequest(ctx context.Context, row *state.RunRequest, release string, cause event.Error) error {
	_, _, err := e.append(ctx, "", &event.RequestRefused{
		RequestID: row.RequestID, Generation: row.Generation, Release: release, Error: cause,
	})
	if err != nil {
		return fmt.Errorf("refuse request %s: %w", row.RequestID, err)
	}
	return nil
}

// planned wraps the error of a planner in a [PlanError]: such an error depends only on the request and the snapshot.
func planned(p *plan.Plan, err error) (*plan.Plan, error) {
	if err != nil && !errors.Is(err, ErrNothing) {
		return nil, &PlanError{err}
	}
	return p, err
}

// AdvanceCalendar appends the next instants of schedules, which the fold cannot compute.
func (e *Engine) AdvanceCalendar(ctx context.Context, items []event.CalendarItem) error {
	if _, _, err := e.append(ctx, "", &event.CalendarAdvanced{Items: items}); err != nil {
		return fmt.Errorf("advance schedules: %w", err)
	}
	return nil
}

// DefineSchedules appends an event that changes the schedules of the domain, and waits until it is folded.
func (e *Engine) DefineSchedules(ctx context.Context, p *event.SchedulesDefined) error {
	if _, _, err := e.append(ctx, "", p); err != nil {
		return fmt.Errorf("define schedules: %w", err)
	}
	return nil
}
