package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// RunRequest describes a run to be triggered.
type RunRequest struct {
	// Plan selects assets and partitions. Run sets Plan.Materialized and Plan.Calendar.
	Plan plan.Request
	// Roots are the assets that a list of runs shows for the run. Nil: the assets that Plan selects.
	Roots []ids.AssetKey
	// RunKey identifies the request for 30 days, so that a repeated request starts no second run; "": no key.
	RunKey string
	// Fingerprint tells requests with the same run key apart. If it is "", a hash of the plan is used or, if the request
	// chooses partitions by their status, a hash of the request. If Fingerprint is set, a repeated request attaches to the
	// existing run even if its plan would be different now.
	Fingerprint    string
	Trigger        event.Trigger
	MaxParallelism int32
	TimeoutSec     int32
	CancelGraceSec int32
	Labels         map[string]string
	// Vars are the variables whose values differ from those in the project's environment. The assets of Plan already use
	// these values.
	Vars map[string]string
	// Release is the hash of the release that the run executes; "": none is deployed.
	Release string
	// Need chooses the partitions of the selected assets by their status. If it is "", Plan.Partitions selects them.
	Need Need
}

// RunHandle identifies the run of a request.
type RunHandle struct {
	RunID string
	Tasks int
	// Attached is set if the run key belongs to an existing run with the same request. RunID is
	// that run.
	Attached bool
	// Warnings are the warnings of the plan. LeftOut are the assets that the plan omits.
	Warnings, LeftOut []string
	// Incomplete describes the inputs that lack partitions.
	Incomplete []string
}

// Run plans and triggers a run. If it returns both an error and a RunID, the ledger may contain the trigger, and the
// run may appear later.
func (e *Engine) Run(ctx context.Context, r RunRequest) (RunHandle, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return RunHandle{}, err
	}
	now := e.cfg.Clock.Now()
	if r.RunKey != "" && r.Fingerprint == "" && r.choosesByStatus() {
		if r.Fingerprint, err = r.fingerprint(); err != nil {
			return RunHandle{}, err
		}
	}
	if r.Fingerprint != "" { // attach before planning: the inputs may be gone
		if handle, found, err := triggered(ctx, snap, r.RunKey, r.Fingerprint, now); found || err != nil {
			return handle, err
		}
	}
	warnings, err := Choose(ctx, snap, &r, now)
	if err != nil {
		return RunHandle{}, err
	}
	built, runID, err := e.prepareRun(ctx, snap, r.Plan, now)
	if err != nil {
		return RunHandle{}, err
	}
	p := &event.RunTriggered{
		RunID:       runID,
		Fingerprint: r.Fingerprint, Trigger: r.Trigger, RootAssets: roots(r), RunKey: r.RunKey, MaxParallelism: r.MaxParallelism,
		TimeoutSec: r.TimeoutSec, CancelGraceSec: r.CancelGraceSec, Labels: r.Labels,
		Release: r.Release, Vars: r.Vars, AllowIncomplete: r.Plan.AllowIncomplete,
	}
	p.PartitionSelection = selectionOf(built)
	t, err := e.trigger(ctx, snap, built, p, observedOf(snap))
	if !t.Attached {
		t.Warnings, t.LeftOut = append(warnings, built.Warnings...), built.LeftOut
		for _, in := range built.Incomplete {
			t.Incomplete = append(t.Incomplete, in.String())
		}
	}
	return t, err
}

// prepareRun plans a run and mints its id. Readers of the state assume that the run reads every period that has begun at
// the time in this id. All periods begin at full minutes, so prepareRun plans again if the id has a later minute than
// the time of planning.
func (e *Engine) prepareRun(ctx context.Context, snap *snapshot.Snapshot, r plan.Request, now time.Time) (built *plan.Plan, runID string, err error) {
	if built, err = Prepare(ctx, snap, r, now); err != nil {
		return nil, "", err
	}
	runID = e.newRunID(snap)
	if at := ids.Time(runID); at.Truncate(time.Minute).After(now) {
		r.ReadsAt = at
		built, err = Prepare(ctx, snap, r, now)
	}
	return built, runID, err
}

// newRunID mints the id of a run. The clock that an earlier run used may be ahead, so that the earlier run has a greater
// id. The outputs of the new run replace those of earlier runs only if its id is greater. Otherwise its outputs would
// stay invisible. Downstream tasks of the run would still read them, and the outputs of these tasks would wrongly
// look fresh.
func (e *Engine) newRunID(snap *snapshot.Snapshot) string {
	if newest := snap.State.Runs.Last(); newest != nil {
		e.cfg.IDs.Observe(newest.RunID)
	}
	return e.cfg.IDs.New()
}

// maxNamedBytes limits the total length of the asset keys in an event, and also the total length of the selections,
// because an event must fit into a line of limited length.
const maxNamedBytes = 256 << 10

// atMost returns the longest prefix of texts that fits into an event.
func atMost(texts []string) []string {
	size := 0
	for i, text := range texts {
		if size += len(text); i == event.MaxSelection || size > maxNamedBytes {
			return texts[:i]
		}
	}
	return texts
}

// selectionOf returns the selections of a plan, shortened so that they fit into the event that triggers the run.
func selectionOf(built *plan.Plan) []string {
	return atMost(shortened(built.Selected, event.MaxRef))
}

// maxInlineTasks and maxInlineBytes limit a plan whose tasks are stored in the event. The compactor reads larger
// plans from the store.
const (
	maxInlineTasks = 500
	maxInlineBytes = 256 << 10
)

// observed identifies the state on which a plan was made.
type observed struct {
	seq int64
	at  event.Time
	// through, last and entries identify the ledger entries in the state: see [event.PlanCreated].
	through, last, entries string
}

// observedOf returns the state on which a new run is planned.
func observedOf(snap *snapshot.Snapshot) observed {
	on := observed{seq: snap.State.FoldSeq, at: snap.State.FoldTime, through: snap.CompleteThrough}
	last, hash := snap.State.EntriesFrom(on.through)
	on.last, on.entries = last, hash.String()
	return on
}

func (e *Engine) trigger(
	ctx context.Context, snap *snapshot.Snapshot, built *plan.Plan, p *event.RunTriggered, on observed,
) (RunHandle, error) {
	data, sha, err := built.Encode()
	if err != nil {
		return RunHandle{}, err
	}
	if p.Fingerprint == "" {
		if p.Fingerprint, err = fingerprint(built, p); err != nil {
			return RunHandle{}, err
		}
	}
	ref := plan.Ref(e.cfg.Domain, sha)
	if err := e.storePlan(ctx, ref, data); err != nil {
		return RunHandle{}, err
	}
	if p.RunID == "" {
		p.RunID = e.newRunID(snap)
	}
	p.PlanID = e.cfg.IDs.New()
	created := &event.PlanCreated{
		RunID: p.RunID, PlanID: p.PlanID, PlanRef: ref, Fingerprint: sha, TasksTotal: int32(len(built.Tasks)), //nolint:gosec // plans are bounded
		ObservedSeq: on.seq, ObservedTime: on.at, ObservedThrough: on.through, ObservedLast: on.last, ObservedEntries: on.entries,
	}
	if !built.OnlyChecks() && len(built.Tasks) <= maxInlineTasks && len(data) <= maxInlineBytes {
		for i := range built.Tasks {
			created.Tasks = append(created.Tasks, built.Tasks[i].TaskDef)
		}
	}
	ctx, span := e.cfg.Traces.Start(ctx, "trigger", trace.About{Tenant: e.cfg.Domain.Tenant, Workspace: e.cfg.Domain.Workspace, RunID: p.RunID})
	after, group, err := e.append(ctx, p.RunID, p, created)
	span.End(err)
	if err != nil {
		return RunHandle{RunID: p.RunID}, err // the trigger may be durable, and be folded later
	}
	return e.outcome(ctx, after, p, group)
}

// storePlan stores a plan. Its name is a hash of its content, so the call succeeds if the object exists.
func (e *Engine) storePlan(ctx context.Context, ref string, data []byte) error {
	_, err := e.cfg.Store.Create(ctx, ref, data)
	if err == nil || errors.Is(err, blob.ErrExists) {
		return nil
	}
	if have, _, readErr := blob.Get(ctx, e.cfg.Store, ref, plan.MaxBytes); readErr == nil && string(have) == string(data) {
		return nil // Create has stored the plan, but its response was lost
	}
	return fmt.Errorf("store plan: %w", err)
}

// outcome returns the run that a trigger started or attached to, according to a state in which the trigger is folded.
func (e *Engine) outcome(ctx context.Context, snap *snapshot.Snapshot, p *event.RunTriggered, group state.Key2) (RunHandle, error) {
	made, err := snap.WithRun(ctx, p.RunID) // WithRun also finds a run that is closed already
	if err != nil && !manifest.Damaged(err) {
		return RunHandle{}, err
	}
	if made != nil {
		return RunHandle{RunID: p.RunID, Tasks: int(made.Runs.Get(p.RunID).TasksTotal)}, nil
	}
	if p.RequestID != "" { // another planner was faster, or the request has ended
		return RunHandle{RunID: p.RunID, Attached: true}, nil
	}
	if live := snap.State.LiveRunOf(p.RootRun); p.RootRun != "" && live != "" {
		return RunHandle{}, errLiveRetry(p.Trigger.ParentRunID, live)
	}
	owner := snap.State.RunKeys.Get(p.RunKey)
	if owner == nil {
		return RunHandle{}, fmt.Errorf("trigger run: %s", entryOutcome(snap, group))
	}
	return attach(ctx, snap, owner, p.Fingerprint)
}

// Triggered returns the run of an earlier request with the same run key, if there is one and the key has not expired.
// The error is [ErrConflict] if the earlier request had another fingerprint.
func (e *Engine) Triggered(ctx context.Context, key, fingerprint string) (handle RunHandle, found bool, err error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return RunHandle{}, false, err
	}
	return triggered(ctx, snap, key, fingerprint, e.cfg.Clock.Now())
}

func triggered(ctx context.Context, snap *snapshot.Snapshot, key, fingerprint string, now time.Time) (handle RunHandle, found bool, err error) {
	owner := snap.State.RunKeys.Get(key)
	if owner == nil || owner.ExpiresAt <= event.At(now) {
		return RunHandle{}, false, nil
	}
	handle, err = attach(ctx, snap, owner, fingerprint)
	return handle, err == nil, err
}

// attach returns the run that has a run key, if the request of this run has the fingerprint.
func attach(ctx context.Context, snap *snapshot.Snapshot, owner *state.RunKey, fingerprint string) (RunHandle, error) {
	if owner.Fingerprint != fingerprint {
		return RunHandle{}, fmt.Errorf(
			"run key %q: %w: run %s keeps this key until %s, but was started by a different request (other assets, partitions, code, limits or labels): use another key",
			owner.RunKey, ErrConflict, owner.RunID, owner.ExpiresAt)
	}
	attached := RunHandle{RunID: owner.RunID, Attached: true}
	s, err := snap.WithRun(ctx, owner.RunID)
	if err != nil {
		return RunHandle{}, err
	}
	if s != nil {
		attached.Tasks = int(s.Runs.Get(owner.RunID).TasksTotal)
	}
	return attached, nil
}

// entryOutcome describes the outcome of a group that had no effect.
func entryOutcome(snap *snapshot.Snapshot, group state.Key2) string {
	row := groupRow(snap, group)
	switch {
	case row != nil:
		return fmt.Sprintf("ledger entry %s was folded as %s %s: %s", group.A, row.Outcome, row.Reason, row.Detail)
	case snap.Recorded(group.A):
		return "ledger entry " + group.A + " was processed, but had no effect: see `servo admin ledger --entry " + group.A + "`"
	}
	return "ledger entry " + group.A + " is not folded"
}

// fingerprint returns a hash of the plan and the settings of a run. Two requests with the same run key and different
// fingerprints conflict.
func fingerprint(built *plan.Plan, p *event.RunTriggered) (string, error) {
	tasks, err := built.Fingerprint()
	if err != nil {
		return "", err
	}
	return plan.Hash(struct {
		Tasks          string            `json:"tasks"`
		Partitions     []string          `json:"partitions"`
		MaxParallelism int32             `json:"max_parallelism"`
		TimeoutSec     int32             `json:"timeout_sec"`
		Labels         map[string]string `json:"labels"`
		Vars           map[string]string `json:"vars,omitempty"`
	}{tasks, p.PartitionSelection, p.MaxParallelism, p.TimeoutSec, p.Labels, p.Vars})
}

// choosesByStatus reports whether the status of partitions decides which partitions run.
func (r *RunRequest) choosesByStatus() bool {
	return r.Need != "" || slices.ContainsFunc(r.Plan.Partitions, func(s plan.Selection) bool { return s.Status != "" })
}

// fingerprint returns a hash of the request itself, not of its plan. If a request chooses partitions by status, its
// plan does not identify it: a repetition would have a smaller plan as soon as the first task of the run has ended.
func (r *RunRequest) fingerprint() (string, error) {
	selected, err := selectedAssets(&r.Plan)
	if err != nil {
		return "", err
	}
	codes := map[string]string{}
	for i := range r.Plan.Assets {
		if a := &r.Plan.Assets[i]; selected[a.Key] {
			codes[a.Key.String()] = a.Code
		}
	}
	var partitions []string
	for _, s := range r.Plan.Partitions {
		partitions = append(partitions, s.String())
	}
	return plan.Hash(struct {
		Need            Need              `json:"need"`
		Codes           map[string]string `json:"codes"`
		Partitions      []string          `json:"partitions"`
		AllowIncomplete bool              `json:"allow_incomplete"`
		AllowFuture     bool              `json:"allow_future"`
		Priority        *int32            `json:"priority"`
		Pool            string            `json:"pool"`
		MaxParallelism  int32             `json:"max_parallelism"`
		TimeoutSec      int32             `json:"timeout_sec"`
		Labels          map[string]string `json:"labels"`
		Vars            map[string]string `json:"vars"`
	}{
		r.Need, codes, partitions, r.Plan.AllowIncomplete, r.Plan.AllowFuture, r.Plan.Priority, r.Plan.Pool, r.MaxParallelism, r.TimeoutSec, r.Labels, r.Vars,
	})
}

func roots(r RunRequest) []string {
	var keys []string
	selected := r.Roots
	if len(selected) == 0 {
		selected = slices.Concat(r.Plan.Select, r.Plan.Matched)
	}
	if r.Plan.All || len(selected) == 0 {
		for i := range r.Plan.Assets {
			keys = append(keys, r.Plan.Assets[i].Key.String())
		}
	}
	for _, key := range selected {
		keys = append(keys, key.String())
	}
	return atMost(keys)
}

// plan reads the plan of a run.
func (e *Engine) plan(ctx context.Context, run *state.Run) (*plan.Plan, error) {
	return readPlan(ctx, e.cfg.Store, run)
}

func readPlan(ctx context.Context, store blob.Store, run *state.Run) (*plan.Plan, error) {
	data, _, err := blob.Get(ctx, store, run.PlanRef, plan.MaxBytes)
	if _, large := errors.AsType[*blob.TooLargeError](err); large || errors.Is(err, blob.ErrInvalid) {
		return nil, &DamagedError{fmt.Errorf("read plan of run %s: %w", run.RunID, err)}
	}
	if err != nil {
		return nil, unreadable("plan of run "+run.RunID, err)
	}
	p, err := plan.Open(run.PlanRef, data)
	if err != nil {
		return nil, &DamagedError{fmt.Errorf("read plan %s of run %s: %w", run.PlanRef, run.RunID, err)}
	}
	return p, nil
}

// Materialized lists the materialized partitions of an asset, for the planner.
func Materialized(ctx context.Context, snap *snapshot.Snapshot, asset ids.AssetKey) ([]plan.Input, error) {
	var inputs []plan.Input
	for row, err := range snap.Partitions(ctx, asset.String(), "") {
		if err != nil {
			return nil, fmt.Errorf("read the partitions of %s: %w", asset, err)
		}
		inputs = append(inputs, plan.Input{
			PartitionKey: row.PartitionKey, MaterializationID: row.MaterializationID, URI: row.OutputURI, Rows: row.RowCount,
			Degraded: row.Quality == state.Degraded, Schema: row.SchemaHash, Version: row.VersionSeq,
		})
	}
	return inputs, nil
}
