package automator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// project is a release with its code.
type project struct {
	sha     string
	release *release.Release
	code    *release.Code
	graph   *plan.Graph // the graph of the assets in code; nil: it is invalid, and planning reports why
	catalog *selector.Catalog
}

func newProject(sha string, r *release.Release, code *release.Code) *project {
	p := &project{sha: sha, release: r, code: code}
	p.graph, _ = plan.NewGraph(code.Assets)
	return p
}

// evaluate evaluates which partitions of the project's assets are stale in a snapshot, at the time now.
func (p *project) evaluate(ctx context.Context, snap *snapshot.Snapshot, now time.Time) (*staleness.Evaluation, error) {
	if p.graph == nil {
		return engine.Staleness(ctx, snap, p.code.Assets, now) // the graph is invalid: Staleness returns the error
	}
	return engine.Evaluate(ctx, snap, p.graph, now), nil
}

// Codes of refusals.
const (
	unplannable = "UNPLANNABLE"       // the request does not fit the release
	noRelease   = "NO_RELEASE"        // no release is deployed
	overtaken   = "OVERTAKEN"         // a run that was requested later has already materialized one of the partitions
	unavailable = "STORE_UNAVAILABLE" // the state or the release could not be read
)

var errNoRelease = errors.New("no release is deployed: start `servo dev`, or deploy the project with `servo deploy`")

// plan starts the run that a request asks for, or refuses the request. If p could not be read, err is the reason.
func (a *Automator) plan(ctx context.Context, snap *snapshot.Snapshot, row *state.RunRequest, p *project, err error) error {
	_, _, ofChunk := state.ParseChunkRequest(row.RequestID)
	switch {
	case err != nil:
	case ofChunk:
		err = a.startChunk(ctx, snap, row, p)
	default:
		err = a.start(ctx, snap, row, p)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	cause := refusal(err)
	if cause.Code == plan.CodeMissingInput {
		cause.Retryable = mayArrive(snap.State, row)
	}
	if ofChunk && cause.Code == fold.DocumentDamaged {
		cause.Retryable = false // pause the backfill until a person restores the document and resumes it
	}
	if err := a.engine.RefuseRequest(ctx, row, snap.State.Release(), cause); err != nil {
		return err
	}
	if cause.Code != fold.NothingToDo {
		// Log the refusal: the row is deleted an hour after the request has ended, and users may not look at it within
		// that hour.
		a.cfg.Logger.WarnContext(ctx, "a requested run could not be planned", slog.String("request", row.RequestID),
			slog.String("code", cause.Code), slog.String("error", cause.Message), slog.Bool("retry", cause.Retryable))
	}
	return nil
}

// mayArrive reports whether a run may soon materialize an input that a request lacks: a live run, or a run whose
// request has not been planned yet. Requests that lack an input themselves do not count, because two of them would
// keep each other waiting.
//
// The first refusal is always temporary: schedules that are due at the same time as the request may not have
// requested their runs yet.
func mayArrive(s *state.State, row *state.RunRequest) bool {
	arrives := row.Generation == 0 || s.LiveRuns() > 0
	if !arrives {
		s.PendingRequests(func(other *state.RunRequest) bool {
			arrives = other.RequestID != row.RequestID && other.ErrorCode != plan.CodeMissingInput
			return !arrives
		})
	}
	return arrives
}

// start plans a request and starts its run.
func (a *Automator) start(ctx context.Context, snap *snapshot.Snapshot, row *state.RunRequest, p *project) error {
	var spec event.RunSpec
	if err := json.Unmarshal([]byte(row.Spec), &spec); err != nil {
		return &engine.PlanError{Err: fmt.Errorf("read request %s: %w", row.RequestID, err)}
	}
	request, err := a.request(&spec, p, formOf(row))
	if err != nil {
		return &engine.PlanError{Err: err}
	}
	request.Trigger = triggerOf(row)
	now := a.cfg.Clock.Now()
	if row.Logical != 0 {
		now = row.Logical.Time() // words such as `latest` refer to the time of the tick, not to the time of planning
	}
	if err := a.memory.Acquire(ctx, planning); err != nil {
		return err
	}
	planned, err := a.engine.PlanRequest(ctx, snap, row, request, now)
	if err != nil {
		a.memory.Release(planning)
		return err
	}
	held := weight(planned.Tasks())
	a.memory.Release(planning - held)
	defer a.memory.Release(held)
	return a.engine.StartRequest(ctx, planned)
}

// planning is the share of the memory for plans that the automator reserves for a request while it plans the request.
// After planning, a plan of at least largePlan tasks keeps the whole share until its run has started; a smaller plan
// keeps less. So only a few requests are planned at the same time, but many small runs can start in the same ledger
// entry.
const (
	planning  = starting / parallel
	largePlan = 10_000
)

// weight returns the share of the memory for plans that is reserved for a finished plan until its run has started.
func weight(tasks int) int64 {
	return min(1+int64(tasks)*planning/largePlan, planning)
}

// triggerOf returns the cause of the run of a request.
func triggerOf(row *state.RunRequest) event.Trigger {
	if row.ScheduleID != "" {
		how := "cron"
		if fold.KindOf(row.RequestID) == state.TickManual {
			how = "manual"
		}
		return event.Trigger{Type: how, ScheduleID: row.ScheduleID, TickID: row.TickID, UserID: userOf(row.Actor)}
	}
	return event.Trigger{Type: "manual", UserID: userOf(row.Actor)}
}

// userOf returns the name of the user in a principal, or "".
func userOf(principal string) string {
	const prefix = "user:"
	if len(principal) > len(prefix) && principal[:len(prefix)] == prefix {
		return principal[len(prefix):]
	}
	return ""
}

// formOf returns the form in which the refusal of a request names its options. The refusal of a tick names fields of
// the schedule, because users see it beside the schedule. Every other refusal names fields of the API, even if a
// command recorded the request.
func formOf(row *state.RunRequest) plan.Form {
	if row.ScheduleID != "" {
		return plan.Schedule
	}
	return plan.Fields
}

// request resolves the selections of a request in a release.
func (a *Automator) request(spec *event.RunSpec, p *project, form plan.Form) (engine.RunRequest, error) {
	texts := spec.Assets
	if spec.All {
		texts = []string{"*"}
	}
	q := selector.Query{Upstream: spec.Upstream, Downstream: spec.Downstream}
	var err error
	if q.Include, err = selector.ParseAll(texts); err == nil && len(spec.Exclude) > 0 {
		q.Exclude, err = selector.ParseAll(spec.Exclude)
	}
	if err != nil {
		return engine.RunRequest{}, err
	}
	chosen, err := p.catalog.Select(q)
	if err != nil {
		return engine.RunRequest{}, err
	}
	r := engine.RunRequest{
		Release: p.sha, Roots: chosen.Roots, MaxParallelism: spec.MaxParallelism, TimeoutSec: spec.TimeoutSec, Labels: spec.Labels,
		Need: engine.Need(spec.Only),
		Plan: plan.Request{
			Source: p.release.Source, Data: p.release.Data, Assets: p.code.Assets, Graph: p.graph, Select: chosen.Named, Matched: chosen.Matched,
			AllowIncomplete: spec.AllowIncomplete, Form: form,
		},
	}
	if r.MaxParallelism == 0 {
		r.MaxParallelism = p.release.MaxParallelism
	}
	if r.Plan.Source == "" {
		if r.Plan.Root = a.cfg.Root; r.Plan.Root == "" {
			return r, fmt.Errorf("release %s has no archive of the project's files, and this process does not know the project's folder: set deploy: explicit, and deploy again",
				release.Short(p.sha))
		}
	}
	for _, text := range spec.Partitions {
		selection, err := plan.ParseSelection(text)
		if err != nil {
			return r, err
		}
		r.Plan.Partitions = append(r.Plan.Partitions, selection)
	}
	return r, nil
}

// refusal describes why a request could not be planned. The result is retryable unless the request itself causes the
// error.
func refusal(err error) event.Error {
	e := event.Error{Code: unavailable, Category: event.CategoryInfrastructure, Message: limited(err.Error()), Retryable: true}
	permanent, changed, damaged := new(engine.PlanError), new(engine.DefinitionError), new(engine.DamagedError)
	rejected := new(event.DecodeError) // the event would be rejected again
	switch {
	case errors.As(err, &changed):
		e.Code, e.Category, e.Retryable = fold.DefinitionChanged, event.CategoryConfiguration, false
	case errors.As(err, &damaged):
		e.Code = fold.DocumentDamaged
	case errors.Is(err, engine.ErrNothing):
		e.Code, e.Category, e.Retryable = fold.NothingToDo, event.CategoryUser, false
	case errors.Is(err, engine.ErrMissingInput):
		e.Code, e.Category = plan.CodeMissingInput, event.CategoryTransient
	case errors.Is(err, engine.ErrOvertaken):
		e.Code, e.Category = overtaken, event.CategoryUser
	case errors.Is(err, errNoRelease):
		e.Code, e.Category = noRelease, event.CategoryConfiguration
	case errors.As(err, &permanent), errors.As(err, &rejected):
		e.Code, e.Category, e.Retryable = unplannable, event.CategoryConfiguration, false
	}
	return e
}

// maxMessage is the maximum length of the message of a refusal, in bytes.
const maxMessage = 2000

// limited cuts a text after its last whole character within the limit. It also replaces bytes that are not UTF-8,
// because an event with such bytes is rejected.
func limited(text string) string {
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) <= maxMessage {
		return text
	}
	end := maxMessage
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
