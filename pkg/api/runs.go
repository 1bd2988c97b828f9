package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Run is a run in a response.
type Run struct {
	RunID       string         `json:"run_id"`
	State       state.RunState `json:"state"`
	Trigger     string         `json:"trigger"`
	ParentRunID string         `json:"parent_run_id,omitempty"`
	RunKey      string         `json:"run_key,omitempty"`
	// Assets and Partitions are the first requested assets and partition selections. The totals
	// count all of them.
	Assets          json.RawMessage `json:"assets,omitempty"`
	AssetsTotal     int32           `json:"assets_total"`
	Partitions      json.RawMessage `json:"partitions,omitempty"`
	PartitionsTotal int32           `json:"partitions_total"`

	Labels      json.RawMessage  `json:"labels,omitempty"`
	Tasks       map[string]int32 `json:"tasks"`
	TasksTotal  int32            `json:"tasks_total"`
	CreatedAt   event.Time       `json:"created_at"`
	StartedAt   event.Time       `json:"started_at,omitempty,omitzero"`
	CompletedAt event.Time       `json:"completed_at,omitempty,omitzero"`
	Error       string           `json:"error,omitempty"`
}

func runOf(r *state.Run) Run {
	tasks := map[string]int32{}
	for _, c := range view.Counts(r) {
		tasks[string(c.State)] = c.Tasks
	}
	return Run{
		RunID: r.RunID, State: r.State, Trigger: r.TriggerType, ParentRunID: r.ParentRunID, RunKey: r.RunKey,
		Assets: json.RawMessage(r.RootAssets), AssetsTotal: r.RootAssetsTotal,
		Partitions: json.RawMessage(r.Partitions), PartitionsTotal: r.PartitionsTotal, Labels: json.RawMessage(r.Labels),
		Tasks: tasks, TasksTotal: r.TasksTotal, CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, CompletedAt: r.CompletedAt,
		Error: r.ErrorMessage,
	}
}

// Task is a task in a response.
type Task struct {
	TaskKey     string          `json:"task_key"`
	Kind        string          `json:"kind"`
	AssetKey    string          `json:"asset_key,omitempty"`
	Partition   string          `json:"partition_key,omitempty"`
	State       state.TaskState `json:"state"`
	Attempt     int32           `json:"attempt"`
	MaxAttempts int32           `json:"max_attempts"`
	StartedAt   event.Time      `json:"started_at,omitempty,omitzero"`
	CompletedAt event.Time      `json:"completed_at,omitempty,omitzero"`
	RowCount    int64           `json:"row_count"`
	ByteSize    int64           `json:"byte_size"`
	OutputURI   string          `json:"output_uri,omitempty"`
	ErrorCode   string          `json:"error_code,omitempty"`
	Error       string          `json:"error,omitempty"`
}

func taskOf(t *state.Task) Task {
	return Task{
		TaskKey: t.TaskKey, Kind: t.Kind, AssetKey: t.AssetKey, Partition: t.PartitionKey, State: t.State,
		Attempt: t.Attempt, MaxAttempts: t.MaxAttempts, StartedAt: t.StartedAt, CompletedAt: t.CompletedAt,
		RowCount: t.RowCount, ByteSize: t.ByteSize, OutputURI: t.OutputURI, ErrorCode: t.ErrorCode, Error: t.ErrorMessage,
	}
}

func (h handler) find(r *http.Request) (*state.State, *state.Run, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return nil, nil, err
	}
	return engine.FindRun(r.Context(), snap, r.PathValue("run"))
}

// Limits of listings.
const (
	defaultRuns  = 50
	maxRuns      = 1000
	defaultTasks = 1000
	maxTasks     = 100_000
)

func (h handler) runs(r *http.Request) (int, any, error) {
	n, err := limit(r, defaultRuns, maxRuns)
	if err != nil {
		return 0, nil, err
	}
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	rows, err := snap.Runs(r.Context(), n, func(*state.Run) bool { return true })
	if err != nil {
		return 0, nil, err
	}
	runs := []Run{}
	for _, row := range rows {
		runs = append(runs, runOf(row))
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "runs": runs}, nil
}

func (h handler) run(r *http.Request) (int, any, error) {
	_, run, err := h.find(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, runOf(run), nil
}

func (h handler) tasks(r *http.Request) (int, any, error) {
	n, err := limit(r, defaultTasks, maxTasks)
	if err != nil {
		return 0, nil, err
	}
	s, run, err := h.find(r)
	if err != nil {
		return 0, nil, err
	}
	after := r.URL.Query().Get("after")
	only := state.TaskState(strings.ToUpper(r.URL.Query().Get("state")))
	if only != "" && !slices.Contains(state.TaskStates(), only) {
		return 0, nil, refuse(http.StatusBadRequest, "unknown task state %q: choose from %v", only, state.TaskStates())
	}
	tasks, next := []Task{}, ""
	s.Tasks.Ascend(state.Key2{A: run.RunID, B: after}, func(t *state.Task) bool {
		switch {
		case t.RunID != run.RunID:
			return false
		case t.TaskKey == after || only != "" && t.State != only:
			return true
		case len(tasks) == n:
			next = tasks[n-1].TaskKey
			return false
		}
		tasks = append(tasks, taskOf(t))
		return true
	})
	return http.StatusOK, map[string]any{"run_id": run.RunID, "tasks": tasks, "next_after": next}, nil
}

func (h handler) explain(r *http.Request) (int, any, error) {
	e, err := h.Engine.Explain(r.Context(), r.PathValue("run"), r.PathValue("task"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, e, nil
}

func (h handler) cancel(r *http.Request) (int, any, error) {
	var body struct {
		Reason string `json:"reason"`
		Force  bool   `json:"force"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	_, run, err := h.find(r)
	if err != nil {
		return 0, nil, err
	}
	if err := h.engineOf(r).Cancel(r.Context(), run.RunID, body.Reason, body.Force); err != nil {
		return 0, nil, err
	}
	_, run, err = h.find(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, runOf(run), nil
}

// StartRequest is the body of POST /v1/runs.
type StartRequest struct {
	Assets   []string `json:"assets"`  // selections: "clean/daily", "raw/* and tag:pii"
	Exclude  []string `json:"exclude"` // selections, too
	All      bool     `json:"all"`
	Upstream bool     `json:"upstream"`
	// AllowIncomplete accepts missing partitions of upstream assets where an asset requires all.
	AllowIncomplete bool `json:"allow_incomplete"`
	// AllowFuture lets Partitions contain periods that have not begun.
	AllowFuture bool              `json:"allow_future"`
	Downstream  bool              `json:"downstream"`
	Partitions  []string          `json:"partitions"` // "date=2025-01-01..2025-01-31"
	RunKey      string            `json:"run_key"`
	Labels      map[string]string `json:"labels"`
}

// Started is the response to POST /v1/runs.
type Started struct {
	RunID string `json:"run_id"`
	Tasks int    `json:"tasks"`
	// Attached is set if the run key belongs to an existing run with the same request. RunID is
	// that run.
	Attached bool `json:"attached"`
	// Warnings describe effects of the run that the caller may not expect.
	Warnings []string `json:"warnings,omitempty"`
}

// choose returns the assets that the request selects.
func (r *StartRequest) choose(assets []plan.Asset) (selector.Result, error) {
	texts := r.Assets
	switch {
	case r.All && len(texts) == 0:
		texts = []string{"*"}
	case r.All:
		return selector.Result{}, errors.New(`"all" already includes every asset: remove it, or "assets"`)
	case len(texts) == 0:
		return selector.Result{}, errors.New(`no assets selected: set "assets", or "all": true for all of them; GET /v1/assets lists them`)
	}
	q := selector.Query{Upstream: r.Upstream, Downstream: r.Downstream}
	var err error
	if q.Include, err = selector.ParseAll(texts); err == nil && len(r.Exclude) > 0 {
		q.Exclude, err = selector.ParseAll(r.Exclude)
	}
	if err != nil {
		return selector.Result{}, err
	}
	return selector.NewCatalog(assets).Select(q)
}

func (h handler) start(r *http.Request) (int, any, error) {
	var body StartRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	p, err := h.Project()
	if err != nil {
		return 0, nil, &refusal{http.StatusConflict, err}
	}
	request := engine.RunRequest{
		Release: p.Release, RunKey: body.RunKey, Labels: body.Labels, MaxParallelism: p.MaxParallelism,
		Trigger: event.Trigger{Type: "manual", UserID: h.User(r)},
		Plan: plan.Request{
			Root: p.Root, Source: p.Source, Data: p.Data, Assets: p.Assets, AllowIncomplete: body.AllowIncomplete,
			AllowFuture: body.AllowFuture,
		},
	}
	chosen, err := body.choose(p.Assets)
	if err != nil {
		return 0, nil, &refusal{http.StatusBadRequest, err}
	}
	request.Roots, request.Plan.Select, request.Plan.Matched = chosen.Roots, chosen.Named, chosen.Matched
	for _, text := range body.Partitions {
		selection, err := plan.ParseSelection(text)
		if err != nil {
			return 0, nil, &refusal{http.StatusBadRequest, err}
		}
		request.Plan.Partitions = append(request.Plan.Partitions, selection)
	}
	handle, err := h.engineOf(r).Run(r.Context(), request)
	switch {
	case errors.Is(err, engine.ErrConflict):
		return 0, nil, err
	case err != nil && handle.RunID == "":
		return 0, nil, &refusal{http.StatusBadRequest, err} // nothing was appended: the request cannot be planned
	case err != nil:
		return 0, nil, err
	}
	return http.StatusCreated, Started{
		RunID: handle.RunID, Tasks: handle.Tasks, Attached: handle.Attached, Warnings: handle.Warnings,
	}, nil
}
