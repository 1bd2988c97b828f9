package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

func runOf(r *state.Run) *servov1.Run {
	tasks := map[string]int32{}
	for _, c := range view.Counts(r) {
		tasks[string(c.State)] = c.Tasks
	}
	return &servov1.Run{
		RunId: r.RunID, State: servov1.RunState_Value(enumNumber(servov1.RunState_Value(0).Descriptor(), string(r.State))),
		Trigger: r.TriggerType, ParentRunId: r.ParentRunID, RunKey: r.RunKey,
		Assets: view.Names(r.RootAssets), AssetsTotal: r.RootAssetsTotal, Partitions: view.Names(r.Partitions), PartitionsTotal: r.PartitionsTotal,
		Labels: labels(r.Labels), Tasks: tasks, TasksTotal: r.TasksTotal,
		CreatedAt: timestamp(r.CreatedAt), StartedAt: timestamp(r.StartedAt), CompletedAt: timestamp(r.CompletedAt),
		Error: r.ErrorMessage, ErrorCode: r.ErrorCode, Release: r.Release, Schedule: r.ScheduleID, CancelReason: r.CancelReason,
	}
}

func taskOf(t *state.Task) *servov1.Task {
	return &servov1.Task{
		RunId: t.RunID, TaskKey: t.TaskKey, Kind: t.Kind, AssetKey: t.AssetKey, PartitionKey: t.PartitionKey,
		State:   servov1.TaskState_Value(enumNumber(servov1.TaskState_Value(0).Descriptor(), string(t.State))),
		Attempt: t.Attempt, MaxAttempts: t.MaxAttempts, StartedAt: timestamp(t.StartedAt), CompletedAt: timestamp(t.CompletedAt),
		RowCount: t.RowCount, ByteSize: t.ByteSize, OutputUri: t.OutputURI, ErrorCode: t.ErrorCode, Error: t.ErrorMessage, Pool: t.Pool,
	}
}

// findRun returns a run, and a state that contains the rows of the run.
func (s *server) findRun(ctx context.Context, id string) (*state.State, *state.Run, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	return engine.FindRun(ctx, snap, id)
}

// findTask returns a task of a run, and a state that contains the rows of the run.
func (s *server) findTask(ctx context.Context, run, task string) (*state.State, *state.Task, error) {
	rows, found, err := s.findRun(ctx, run)
	if err != nil {
		return nil, nil, err
	}
	t, err := engine.FindTask(rows, found.RunID, task)
	return rows, t, err
}

// GetRun implements the call.
func (s *server) GetRun(ctx context.Context, r *servov1.GetRunRequest) (*servov1.Run, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	run, err := engine.FindRunRow(ctx, snap, r.GetRunId())
	if err != nil {
		return nil, err
	}
	return runOf(run), nil
}

// GetRunStatus implements the call.
func (s *server) GetRunStatus(ctx context.Context, r *servov1.GetRunStatusRequest) (*servov1.RunStatus, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	rows, run, err := engine.FindRun(ctx, snap, r.GetRunId())
	if err != nil {
		return nil, err
	}
	return fill(&servov1.RunStatus{}, view.StatusOf(rows, run, s.momentNow(ctx, snap))), nil
}

// ListRuns implements the call.
func (s *server) ListRuns(ctx context.Context, r *servov1.ListRunsRequest) (*servov1.ListRunsResponse, error) {
	p, err := s.page(ctx, r, defaultPage)
	if err != nil {
		return nil, err
	}
	states := map[state.RunState]bool{}
	for _, one := range r.GetState() {
		states[state.RunState(one.String())] = true
	}
	q := snapshot.RunQuery{Before: p.after, Limit: p.size, Most: maxRunsLooked, Enough: s.after(pageTime)}
	if len(states) > 0 || r.GetTrigger() != "" || r.GetSchedule() != "" || r.GetAsset() != "" {
		q.Match = func(run snapshot.RunHead) bool {
			return (len(states) == 0 || states[run.State]) && (r.GetTrigger() == "" || run.TriggerType == r.GetTrigger()) &&
				(r.GetSchedule() == "" || run.ScheduleID == r.GetSchedule()) &&
				(r.GetAsset() == "" || requested(run.RootAssets, run.RootAssetsTotal, r.GetAsset()) != no)
		}
	}
	found, err := p.findRuns(ctx, q, r.GetAsset())
	if err != nil {
		return nil, p.failed(err)
	}
	list := &servov1.ListRunsResponse{Revision: p.snap.Revision}
	for _, run := range found.Runs {
		list.Runs = append(list.Runs, runOf(run))
	}
	if found.Next != "" {
		list.NextPageToken = p.next(found.Next)
	}
	return list, nil
}

// findRuns returns the runs that a query accepts. The row of a run names only the first 20 requested assets. So if an
// asset is given, findRuns looks for tasks of the asset in the runs whose rows do not name all requested assets. If
// there are many such runs, the page ends when q.Enough returns true.
func (p *page) findRuns(ctx context.Context, q snapshot.RunQuery, asset string) (listed snapshot.RunPage, err error) {
	size, searched := q.Limit, false
	for {
		q.Limit = size - len(listed.Runs)
		found, err := p.snap.FindRuns(ctx, q)
		if err != nil {
			return listed, err
		}
		for i, run := range found.Runs {
			keep := asset == "" || requested(run.RootAssets, run.RootAssetsTotal, asset) == yes
			if !keep {
				if i > 0 && searched && q.Enough() {
					listed.Next = found.Runs[i-1].RunID
					return listed, nil
				}
				searched = true
				if keep, err = p.hasTaskOf(ctx, run.RunID, asset); err != nil {
					return listed, err
				}
			}
			if keep {
				listed.Runs = append(listed.Runs, run)
			}
		}
		listed.Next = found.Next
		if listed.Next == "" || len(listed.Runs) == size || len(found.Runs) < q.Limit || q.Enough() {
			return listed, nil
		}
		q.Before = listed.Next
	}
}

// hasTaskOf reports whether a run has a task of an asset.
func (p *page) hasTaskOf(ctx context.Context, runID, asset string) (bool, error) {
	found, err := p.snap.FindTasks(ctx, snapshot.TaskQuery{RunID: runID, Limit: 1, Match: func(t snapshot.TaskHead) bool { return t.AssetKey == asset }})
	return len(found.Tasks) > 0, err
}

// answerOf says whether a run requested an asset.
type answerOf int

const (
	no answerOf = iota
	yes
	maybe // the row of the run does not name all requested assets
)

// requested says whether a run requested an asset. The parameters are columns of the run's row: names contains the
// first requested assets, and total is the number of all requested assets.
func requested(names string, total int32, asset string) answerOf {
	first := view.Names(names)
	switch {
	case slices.Contains(first, asset):
		return yes
	case int(total) > len(first):
		return maybe
	}
	return no
}

// Limits of the work for one page of runs. If few runs match the filter, the search ends at one of these limits, and
// the page has fewer rows than the request asks for.
const (
	maxRunsLooked = 250_000
	pageTime      = 120 * time.Millisecond
)

// after starts to measure time. It returns a function that reports whether the duration limit has passed.
func (s *server) after(limit time.Duration) func() bool {
	began := s.Engine.Now()
	return func() bool { return s.Engine.Now().Sub(began) >= limit }
}

// ListTasks implements the call.
func (s *server) ListTasks(ctx context.Context, r *servov1.ListTasksRequest) (*servov1.ListTasksResponse, error) {
	p, err := s.page(ctx, r, largePage)
	if err != nil {
		return nil, err
	}
	run, err := engine.FindRunRow(ctx, p.snap, r.GetRunId())
	if err != nil {
		return nil, p.failed(err)
	}
	states := map[state.TaskState]bool{}
	for _, one := range r.GetState() {
		states[state.TaskState(one.String())] = true
	}
	q := snapshot.TaskQuery{RunID: run.RunID, After: p.after, Limit: p.size, Most: maxScanned}
	if len(states) > 0 || r.GetAssetKey() != "" {
		q.Match = func(t snapshot.TaskHead) bool {
			return (len(states) == 0 || states[t.State]) && (r.GetAssetKey() == "" || t.AssetKey == r.GetAssetKey())
		}
	}
	found, err := p.snap.FindTasks(ctx, q)
	if err != nil {
		return nil, p.failed(err)
	}
	list := &servov1.ListTasksResponse{Revision: p.snap.Revision, RunId: run.RunID}
	for _, t := range found.Tasks {
		list.Tasks = append(list.Tasks, taskOf(t))
	}
	if found.Next != "" {
		list.NextPageToken = p.next(found.Next)
	}
	return list, nil
}

// GetTask implements the call.
func (s *server) GetTask(ctx context.Context, r *servov1.GetTaskRequest) (*servov1.Task, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	if ids.Valid(r.GetRunId()) { // if the key is exact, as usual, the run's other tasks are not read
		t, err := snap.Task(ctx, r.GetRunId(), r.GetTaskKey())
		switch {
		case err != nil:
			return nil, err
		case t != nil:
			return taskOf(t), nil
		}
	}
	_, t, err := s.findTask(ctx, r.GetRunId(), r.GetTaskKey())
	if err != nil {
		return nil, err
	}
	return taskOf(t), nil
}

// ExplainTask implements the call.
func (s *server) ExplainTask(ctx context.Context, r *servov1.ExplainTaskRequest) (*servov1.TaskExplanation, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	explain := engine.ExplainTask
	if readingOf(ctx).asOf != "" {
		explain = engine.ExplainPastTask
	}
	x, err := explain(ctx, s.Engine.Store(), snap, s.momentNow(ctx, snap), r.GetRunId(), r.GetTaskKey())
	if err != nil {
		return nil, err
	}
	return fill(&servov1.TaskExplanation{}, x), nil
}

// ListAttempts implements the call.
func (s *server) ListAttempts(ctx context.Context, r *servov1.ListAttemptsRequest) (*servov1.ListAttemptsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	rows, run, err := engine.FindRun(ctx, snap, r.GetRunId())
	if err != nil {
		return nil, err
	}
	t, err := engine.FindTask(rows, run.RunID, r.GetTaskKey())
	if err != nil {
		return nil, err
	}
	attempts := view.AttemptsOf(rows, t)
	return &servov1.ListAttemptsResponse{
		Revision: snap.Revision, RunId: t.RunID, TaskKey: t.TaskKey, Attempts: fillAll[view.AttemptInfo, servov1.Attempt](attempts),
	}, nil
}

// CancelRun implements the call.
func (s *server) CancelRun(ctx context.Context, r *servov1.CancelRunRequest) (*servov1.Run, error) {
	_, run, err := s.findRun(ctx, r.GetRunId())
	if err != nil {
		return nil, err
	}
	if err := s.actingFor(ctx).Cancel(ctx, run.RunID, r.GetReason(), r.GetForce()); err != nil {
		return nil, err
	}
	return s.GetRun(ctx, &servov1.GetRunRequest{RunId: run.RunID})
}

// RetryRun implements the call.
func (s *server) RetryRun(ctx context.Context, r *servov1.RetryRunRequest) (*servov1.TriggerRunResponse, error) {
	_, run, err := s.findRun(ctx, r.GetRunId())
	if err != nil {
		return nil, err
	}
	if !run.State.Terminal() && conditionsIn(ctx).Key == "" {
		return nil, refuse(wrongState, "retry run %s: it is %s; wait until it ends, or cancel it", run.RunID, run.State)
	}
	handle, err := s.actingFor(ctx).Retry(ctx, run.RunID)
	switch {
	case err != nil && handle.RunID == "" && kindOf(err) == internal && !gone(err):
		return nil, withKind(wrongState, err) // nothing was appended: there is nothing to retry
	case err != nil:
		return nil, err
	}
	return s.started(ctx, handle)
}

// started returns the response to a request that has started a run.
func (s *server) started(ctx context.Context, handle engine.RunHandle) (*servov1.TriggerRunResponse, error) {
	if _, err := s.current(ctx); err != nil { // sets the revision header to a revision that contains the run
		return nil, err
	}
	return &servov1.TriggerRunResponse{
		RunId: handle.RunID, Tasks: int32(handle.Tasks), Attached: handle.Attached, //nolint:gosec // a plan limits the number of tasks
		Warnings: warningsOf(handle), LeftOut: handle.LeftOut,
	}, nil
}

// maxIncomplete is the maximum number of incomplete inputs that a response names.
const maxIncomplete = 20

// warningsOf returns the warnings about a started run. They include the inputs that lack partitions: the caller may
// have accepted them with allow_incomplete, but still wants to know about them.
func warningsOf(handle engine.RunHandle) []string {
	all, incomplete := slices.Clone(handle.Warnings), handle.Incomplete
	if more := len(incomplete) - maxIncomplete; more > 0 {
		incomplete = append(slices.Clone(incomplete[:maxIncomplete]), fmt.Sprintf("and %d more incomplete inputs", more))
	}
	return append(all, incomplete...)
}

// selection has the fields that requests for runs and for backfills share.
type selection interface {
	GetAssets() []string
	GetExclude() []string
	GetAll() bool
	GetUpstream() bool
	GetDownstream() bool
	GetPartitions() []string
}

// choose returns the assets that a request selects.
func choose(r selection, assets []plan.Asset) (found selector.Result, err error) {
	texts := r.GetAssets()
	switch {
	case r.GetAll() && len(texts) == 0:
		texts = []string{"*"}
	case r.GetAll():
		return found, invalid("all", `"all" already includes every asset: remove "all" or "assets"`)
	case len(texts) == 0:
		return found, invalid("assets", `no assets selected: set "assets", or "all": true for all of them; GET /v1/assets lists them`)
	}
	q := selector.Query{Upstream: r.GetUpstream(), Downstream: r.GetDownstream()}
	if q.Include, err = selector.ParseAll(texts); err != nil {
		return found, invalid("assets", "%w", err)
	}
	if len(r.GetExclude()) > 0 {
		if q.Exclude, err = selector.ParseAll(r.GetExclude()); err != nil {
			return found, invalid("exclude", "%w", err)
		}
	}
	if found, err = selector.NewCatalog(assets).Select(q); err != nil {
		return found, withKind(invalidRequest, err)
	}
	return found, nil
}

// selections parses a request's selections of partitions.
func selections(r selection) ([]plan.Selection, error) {
	var all []plan.Selection
	for i, text := range r.GetPartitions() {
		one, err := plan.ParseSelection(text)
		if err != nil {
			return nil, invalid(fmt.Sprintf("partitions[%d]", i), "%w", err)
		}
		all = append(all, one)
	}
	return all, nil
}

// TriggerRun implements the call.
func (s *server) TriggerRun(ctx context.Context, r *servov1.TriggerRunRequest) (*servov1.TriggerRunResponse, error) {
	key, fingerprint, err := runKey(ctx, r)
	if err != nil {
		return nil, err
	}
	if fingerprint != "" { // a repeated request attaches to its run, even if the assets no longer exist
		if handle, found, err := s.actingFor(ctx).Triggered(ctx, key, fingerprint); err != nil {
			return nil, err
		} else if found {
			return s.started(ctx, handle)
		}
	}
	p, err := s.project()
	if err != nil {
		return nil, err
	}
	if r.GetOnly() != "" && len(r.GetPartitions()) > 0 {
		return nil, invalid("only", "chooses the partitions by their status, so the field partitions must be empty")
	}
	if r.GetAllowFuture() && len(r.GetPartitions()) == 0 {
		return nil, invalid("allow_future", "has an effect only on partitions: set partitions, or leave out allow_future")
	}
	request := engine.RunRequest{
		Need: engine.Need(r.GetOnly()), Release: p.Release, RunKey: key, Fingerprint: fingerprint, Labels: r.GetLabels(),
		MaxParallelism: cmp.Or(r.GetMaxParallelism(), p.MaxParallelism), TimeoutSec: r.GetTimeoutSec(),
		Trigger: event.Trigger{Type: "manual", UserID: s.user(ctx)},
		Plan: plan.Request{
			Root: p.Root, Source: p.Source, Data: p.Data, Assets: p.Assets, Graph: p.Graph, AllowIncomplete: r.GetAllowIncomplete(), AllowFuture: r.GetAllowFuture(), Form: plan.Fields,
		},
	}
	chosen, err := choose(r, p.Assets)
	if err != nil {
		return nil, err
	}
	request.Roots, request.Plan.Select, request.Plan.Matched = chosen.Roots, chosen.Named, chosen.Matched
	if request.Plan.Partitions, err = selections(r); err != nil {
		return nil, err
	}
	handle, err := s.actingFor(ctx).Run(ctx, request)
	switch {
	case errors.Is(err, engine.ErrConflict):
		return nil, err
	case errors.Is(err, engine.ErrNothing):
		return nil, withKind(wrongState, err)
	case err != nil && handle.RunID == "" && kindOf(err) == internal:
		return nil, withKind(invalidRequest, err) // nothing was appended: the request cannot be planned
	case err != nil:
		return nil, err
	}
	return s.started(ctx, handle)
}

// runKey returns the run key of a request. If the request has none, the key is derived from the header Idempotency-Key.
// In that case the fingerprint is a hash of the request and not of the plan: a repeated request must attach to the same
// run, even if its plan would have other inputs.
func runKey(ctx context.Context, r *servov1.TriggerRunRequest) (key, fingerprint string, err error) {
	if strings.HasPrefix(r.GetRunKey(), IdempotentPrefix) {
		return "", "", invalid("run_key", "must not begin with %q, which is reserved for the header %s", IdempotentPrefix, idempotencyKey)
	}
	if r.GetRunKey() != "" {
		return r.GetRunKey(), "", nil
	}
	c := conditionsIn(ctx)
	return c.Key, c.Fingerprint, nil
}
