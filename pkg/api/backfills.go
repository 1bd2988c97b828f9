package api

import (
	"errors"
	"net/http"
	"slices"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

func (h handler) backfills(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	all, err := engine.Backfills(r.Context(), snap)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "backfills": all}, nil
}

func (h handler) backfill(r *http.Request) (int, any, error) {
	b, err := h.findBackfill(r, r.PathValue("backfill"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, b, nil
}

func (h handler) findBackfill(r *http.Request, id string) (engine.Backfill, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return engine.Backfill{}, err
	}
	return engine.FindBackfill(r.Context(), snap, id, h.Engine.Now())
}

// BackfillRequest is the body of POST /v1/backfills. The selection is that of [StartRequest].
type BackfillRequest struct {
	Assets          []string `json:"assets"`
	Exclude         []string `json:"exclude"`
	All             bool     `json:"all"`
	Upstream        bool     `json:"upstream"`
	Downstream      bool     `json:"downstream"`
	Partitions      []string `json:"partitions"`
	Only            string   `json:"only"` // missing, failed or stale
	AllowIncomplete bool     `json:"allow_incomplete"`
	Chunk           int      `json:"chunk"`
	MaxParallel     int32    `json:"max_parallel"`
	Order           string   `json:"order"` // oldest or newest
	Ordered         bool     `json:"ordered"`
	StopAfter       string   `json:"stop_after"`
	Priority        *int32   `json:"priority"`
	Pool            string   `json:"pool"`
	FollowDeploys   bool     `json:"follow_deploys"`
	// DryRun plans the backfill and creates nothing.
	DryRun bool `json:"dry_run"`
}

// PlannedBackfill is the response to a dry run.
type PlannedBackfill struct {
	Partitions int            `json:"partitions"`
	Chunks     int            `json:"chunks"`
	Stages     int            `json:"stages"`
	StopAt     int64          `json:"stop_at"`
	Assets     map[string]int `json:"assets"` // the number of partitions of each
	Warnings   []string       `json:"warnings,omitempty"`
}

// request returns the backfill that a body describes.
func (b *BackfillRequest) request(p *Project) (engine.BackfillRequest, error) {
	r := engine.BackfillRequest{
		Plan: plan.Request{Assets: p.Assets, AllowIncomplete: b.AllowIncomplete}, Need: engine.Need(b.Only), Chunk: b.Chunk, MaxParallel: b.MaxParallel,
		Newest: b.Order == event.NewestFirst, Ordered: b.Ordered, StopAfter: b.StopAfter, Priority: engine.BackfillPriority, Pool: b.Pool, Release: p.Release,
	}
	if b.FollowDeploys {
		r.Release = ""
	}
	if b.Priority != nil {
		r.Priority = *b.Priority
	}
	switch {
	case !slices.Contains([]string{"", event.OnlyMissing, event.OnlyFailed, event.OnlyStale}, b.Only):
		return r, refuse(http.StatusBadRequest, "unknown status %q in \"only\": choose from missing, failed, stale", b.Only)
	case !slices.Contains([]string{"", event.OldestFirst, event.NewestFirst}, b.Order):
		return r, refuse(http.StatusBadRequest, "unknown order %q: choose from oldest, newest", b.Order)
	case b.MaxParallel < 0 || b.MaxParallel > event.MaxParallelRuns:
		return r, refuse(http.StatusBadRequest, "max_parallel is %d: must be 1 to %d", b.MaxParallel, event.MaxParallelRuns)
	case len(b.Pool) > event.MaxName:
		return r, refuse(http.StatusBadRequest, "pool has %d bytes: at most %d are allowed", len(b.Pool), event.MaxName)
	}
	selection := StartRequest{Assets: b.Assets, Exclude: b.Exclude, All: b.All, Upstream: b.Upstream, Downstream: b.Downstream}
	chosen, err := selection.choose(p.Assets)
	if err != nil {
		return r, &refusal{http.StatusBadRequest, err}
	}
	r.Plan.Select, r.Plan.Matched = chosen.Named, chosen.Matched
	for _, text := range b.Partitions {
		s, err := plan.ParseSelection(text)
		if err != nil {
			return r, &refusal{http.StatusBadRequest, err}
		}
		r.Plan.Partitions = append(r.Plan.Partitions, s)
	}
	return r, nil
}

func (h handler) createBackfill(r *http.Request) (int, any, error) {
	var body BackfillRequest
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	p, err := h.Project()
	if err != nil {
		return 0, nil, &refusal{http.StatusConflict, err}
	}
	request, err := body.request(p)
	if err != nil {
		return 0, nil, err
	}
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	planned, err := engine.PlanBackfill(r.Context(), snap, request, h.Engine.Now())
	switch {
	case errors.Is(err, engine.ErrNothing):
		return 0, nil, &refusal{http.StatusConflict, err}
	case err != nil:
		return 0, nil, &refusal{http.StatusBadRequest, err}
	case body.DryRun:
		d := PlannedBackfill{
			Partitions: planned.Chunks.Total(), Chunks: len(planned.Chunks.Lists), Stages: len(planned.Chunks.Stages) + 1, StopAt: planned.StopAt,
			Assets: map[string]int{}, Warnings: planned.Warnings,
		}
		for key, n := range planned.Tasks {
			d.Assets[key.String()] = n
		}
		return http.StatusOK, d, nil
	}
	id, err := h.engineOf(r).CreateBackfill(r.Context(), planned)
	if err != nil {
		return 0, nil, err
	}
	b, err := h.findBackfill(r, id)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, b, nil
}

// BackfillCommand is the body of the routes that change a backfill.
type BackfillCommand struct {
	Reason      string `json:"reason"`       // pause and cancel
	Now         bool   `json:"now"`          // pause
	MaxParallel int32  `json:"max_parallel"` // set
}

// commandBackfill returns a handler that sends a command about a backfill.
func (h handler) commandBackfill(verb string) func(*http.Request) (int, any, error) {
	return func(r *http.Request) (int, any, error) {
		var body BackfillCommand
		if err := decode(r, &body); err != nil {
			return 0, nil, err
		}
		switch {
		case len(body.Reason) > event.MaxMessage:
			return 0, nil, refuse(http.StatusBadRequest, "reason has %d bytes: at most %d are allowed", len(body.Reason), event.MaxMessage)
		case body.Now && verb != event.VerbPause, body.Reason != "" && verb != event.VerbPause && verb != event.VerbCancel, body.MaxParallel != 0 && verb != event.VerbSet:
			return 0, nil, refuse(http.StatusBadRequest, "a field of the body has no effect: now belongs to pause, reason to pause and cancel, and max_parallel to set")
		case verb == event.VerbSet && (body.MaxParallel < 1 || body.MaxParallel > event.MaxParallelRuns):
			return 0, nil, refuse(http.StatusBadRequest, "max_parallel is %d: must be 1 to %d", body.MaxParallel, event.MaxParallelRuns)
		}
		b, err := h.engineOf(r).CommandBackfill(r.Context(), &event.AutomationCommand{
			Name: r.PathValue("backfill"), Verb: verb, Reason: body.Reason, Now: body.Now, MaxParallel: body.MaxParallel,
		})
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, b, nil
	}
}
