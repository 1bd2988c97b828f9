package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// DeployRequest describes a deployment.
type DeployRequest struct {
	// Release is the hash of the release. The objects of the release are already stored.
	Release string
	// Expects is the release with which the caller compared Release: the [Deployment.Release] that
	// [Engine.CurrentDeployment] returned, or "" for none. If another release is current, the deployment fails with a
	// [*ReleaseConflictError]. With Force, the release is deployed in any case.
	Expects string
	Force   bool
	// Kind is event.DeployRelease, event.DeployRollback or event.DeployLocal.
	Kind        string
	Environment string
	Message     string
	Git         *event.Git // nil: unknown
	// Accept lists code changes that must not make partitions stale.
	Accept  []Accept
	Changes event.Changes
	// Schedules are the schedules of the release.
	Schedules []event.Schedule
	// Alerts are the rules of the release.
	Alerts []event.AlertRule
	// Watched are the promises of the release about its assets: deadlines, freshness and SLAs.
	Watched []event.WatchedAsset
}

// Accept is a change of an asset's code, from Previous to Code, that makes no partition stale: a partition with the
// code Previous is treated as if it had the code Code. The same applies to a partition whose code is already treated as
// Previous because of an earlier Accept.
type Accept struct {
	Asset          ids.AssetKey
	Code, Previous string
}

// Deployment is a deployment of a release.
type Deployment struct {
	ID          string        `json:"deploy_id"`
	Release     string        `json:"release"`
	Kind        string        `json:"kind"`
	Environment string        `json:"environment,omitempty"`
	Actor       string        `json:"actor,omitempty"`
	Git         *event.Git    `json:"git,omitempty"`
	Message     string        `json:"message,omitempty"`
	Changes     event.Changes `json:"changes"`
	DeployedAt  event.Time    `json:"deployed_at"`
	// SupersededAt and SupersededBy are set if another deployment has replaced this one.
	SupersededAt event.Time `json:"superseded_at,omitzero"`
	SupersededBy string     `json:"superseded_by,omitempty"`
}

// ReleaseConflict is the error code of a [*ReleaseConflictError].
const ReleaseConflict = "RELEASE_CONFLICT"

// ReleaseConflictError reports that the current release is not the one that a deployment expected.
type ReleaseConflictError struct {
	Release, Expects string
	// Current is the current deployment; its ID is empty if there is none.
	Current Deployment
}

// Error implements error.
func (e *ReleaseConflictError) Error() string {
	found := "no release is deployed"
	if e.Current.ID != "" {
		found = fmt.Sprintf("%s deployed release %.12s at %s", e.Current.Actor, e.Current.Release, e.Current.DeployedAt)
	}
	expected := "no release"
	if e.Expects != "" {
		expected = fmt.Sprintf("release %.12s", e.Expects)
	}
	return fmt.Sprintf("deploy release %.12s: %s: %s, expected %s: compare with `servo plan` and deploy again, or use --force",
		e.Release, ReleaseConflict, found, expected)
}

// Deploy makes a release the current one. If r.Accept is empty, Deploy changes nothing and returns the current
// deployment in two cases: the release is current already, or another process deploys it at the same time. If the
// current release is not the one that the request expects, the error is a [*ReleaseConflictError]. If Deploy returns a
// different error together with a deployment that has an ID, the ledger may contain this deployment, which then becomes
// current later.
func (e *Engine) Deploy(ctx context.Context, r DeployRequest) (Deployment, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return Deployment{}, err
	}
	current, err := currentDeployment(snap.State)
	switch {
	case err != nil:
		return Deployment{}, err
	case r.isMade(current):
		return current, nil
	case !r.Force && current.Release != r.Expects:
		return Deployment{}, &ReleaseConflictError{Release: r.Release, Expects: r.Expects, Current: current}
	}
	e.cfg.IDs.Observe(current.ID) // the fold rejects a deployment with a lower id
	p := &event.ProjectDeployed{
		DeployID: e.cfg.IDs.New(), Release: r.Release, Expects: r.Expects, Force: r.Force, Kind: r.Kind,
		Environment: r.Environment, Message: r.Message, Git: r.Git, Changes: r.Changes, Schedules: event.HashSchedules(r.Schedules), Alerts: r.Alerts, Watched: r.Watched,
	}
	if p.Accept, err = accepted(snap.State, r.Accept); err != nil {
		return Deployment{}, err
	}
	if snap, _, err = e.append(ctx, "", p); err != nil {
		return Deployment{ID: p.DeployID, Release: r.Release}, fmt.Errorf("deploy release %.12s: %w", r.Release, err)
	}
	if row := snap.State.Deployments.Get(p.DeployID); row != nil {
		return deploymentOf(row)
	}
	current, err = currentDeployment(snap.State)
	switch {
	case err != nil:
		return Deployment{}, err
	case r.isMade(current):
		return current, nil // another process has deployed the same release in the meantime
	}
	return Deployment{}, &ReleaseConflictError{Release: r.Release, Expects: r.Expects, Current: current}
}

// isMade reports whether the current deployment is what the request asks for.
func (r *DeployRequest) isMade(current Deployment) bool {
	return current.ID != "" && current.Release == r.Release && len(r.Accept) == 0
}

// accepted returns, for each new code in accept, all other codes that count as this code: the previous code, and the
// codes that already count as one of the two.
func accepted(s *state.State, accept []Accept) ([]event.AcceptedCode, error) {
	var all []event.AcceptedCode
	for _, a := range accept {
		asset := a.Asset.String()
		codes := []string{a.Previous}
		for _, code := range []string{a.Code, a.Previous} {
			more, err := AcceptedCodes(s, asset, code)
			if err != nil {
				return nil, err
			}
			codes = append(codes, more...)
		}
		slices.Sort(codes)
		codes = slices.DeleteFunc(slices.Compact(codes), func(code string) bool { return code == a.Code })
		all = append(all, event.AcceptedCode{Asset: asset, Code: a.Code, Accepts: codes})
	}
	return all, nil
}

// AcceptedCodes returns the codes of an asset that count as the given code.
func AcceptedCodes(s *state.State, asset, code string) (codes []string, err error) {
	row := s.AcceptedCodes.Get(state.Key2{A: asset, B: code})
	if row == nil {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(row.Accepts), &codes); err != nil {
		return nil, fmt.Errorf("asset %s: read the codes that are accepted as code %s: %w", asset, code, err)
	}
	return codes, nil
}

// CurrentDeployment returns the current deployment. Its ID is empty if no release is deployed.
func (e *Engine) CurrentDeployment(ctx context.Context) (Deployment, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return Deployment{}, err
	}
	return currentDeployment(snap.State)
}

// Deployments returns the newest deployments, newest first: at most limit, or all if limit is 0.
func (e *Engine) Deployments(ctx context.Context, limit int) ([]Deployment, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return nil, err
	}
	return ListDeployments(ctx, snap, limit)
}

// ListDeployments is like [Engine.Deployments], but reads the given snapshot.
func ListDeployments(ctx context.Context, snap *snapshot.Snapshot, limit int) ([]Deployment, error) {
	rows, err := snap.Deployments(ctx)
	if err != nil {
		return nil, fmt.Errorf("list deployments: %w", err)
	}
	if limit > 0 {
		rows = rows[:min(limit, len(rows))]
	}
	deployments := make([]Deployment, len(rows))
	for i, row := range rows {
		if deployments[i], err = deploymentOf(row); err != nil {
			return nil, err
		}
	}
	return deployments, nil
}

func currentDeployment(s *state.State) (Deployment, error) {
	if row := s.Deployment(); row != nil {
		return deploymentOf(row)
	}
	return Deployment{}, nil
}

func deploymentOf(row *state.Deployment) (Deployment, error) {
	d := Deployment{
		ID: row.DeployID, Release: row.Release, Kind: row.Kind, Environment: row.Environment, Actor: row.Actor,
		Message: row.Message, DeployedAt: row.DeployedAt, SupersededAt: row.SupersededAt, SupersededBy: row.SupersededBy,
	}
	err := json.Unmarshal([]byte(row.Changes), &d.Changes)
	if err == nil && row.Git != "" {
		err = json.Unmarshal([]byte(row.Git), &d.Git)
	}
	if err != nil {
		return d, fmt.Errorf("read deployment %s: %w", row.DeployID, err)
	}
	return d, nil
}
