package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ErrResolved means that the output has already left quarantine: it was published, rejected or replaced.
var ErrResolved = errors.New("the output is not in quarantine any more")

// Candidate is an output that a check has blocked and that is waiting for a decision.
type Candidate struct {
	Asset             string `json:"asset"`
	Partition         string `json:"partition,omitempty"`
	MaterializationID string `json:"materialization_id"`
	// Name is the asset with its partition, written as in the key of a task.
	Name      string `json:"name"`
	RunID     string `json:"run_id"`
	TaskKey   string `json:"task_key"`
	OutputURI string `json:"output_uri"`
	RowCount  int64  `json:"row_count"`
	ByteSize  int64  `json:"byte_size"`
	// FailedChecks lists the checks that blocked the output. If there are many, it lists only the first ones.
	FailedChecks    []state.FailedCheck `json:"failed_checks"`
	BlockedAt       event.Time          `json:"blocked_at"`
	ExpiresAt       event.Time          `json:"expires_at"`
	ApproveOnExpiry bool                `json:"approve_on_expiry"`
}

// Candidates returns the outputs in quarantine, sorted by asset and partition.
func Candidates(s *state.State) ([]Candidate, error) {
	found := []Candidate{}
	if s.PendingCandidates() == 0 {
		return found, nil
	}
	for row := range s.Candidates.All {
		if row.State != state.CandidatePending {
			continue
		}
		c, err := candidateOf(row)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, nil
}

func candidateOf(row *state.Candidate) (Candidate, error) {
	c := Candidate{
		Asset: row.AssetKey, Partition: row.PartitionKey, MaterializationID: row.MaterializationID, Name: row.AssetKey,
		RunID: row.RunID, TaskKey: row.TaskKey, OutputURI: row.OutputURI, RowCount: row.RowCount, ByteSize: row.ByteSize,
		BlockedAt: row.BlockedAt, ExpiresAt: row.ExpiresAt, ApproveOnExpiry: row.ApproveOnExpiry,
	}
	asset, err := ids.ParseAssetKey(row.AssetKey)
	partition, partitionErr := ids.ParsePartition(row.PartitionKey)
	if err = errors.Join(err, partitionErr, json.Unmarshal([]byte(row.FailedChecks), &c.FailedChecks)); err != nil {
		return c, fmt.Errorf("read candidate %s in quarantine: %w", row.MaterializationID, err)
	}
	c.Name = ids.TaskKey(asset, partition)
	return c, nil
}

// FindCandidate returns the output in quarantine that a name denotes. The name is the asset with its partition, or
// the id of the materialization.
func FindCandidate(s *state.State, name string) (Candidate, error) {
	all, err := Candidates(s)
	if err != nil {
		return Candidate{}, err
	}
	for i := range all {
		if all[i].Name == ids.StoredKey(name) || all[i].MaterializationID == name {
			return all[i], nil
		}
	}
	return Candidate{}, fmt.Errorf("output of %s: %w in quarantine: %s", name, ErrNotFound, inQuarantine(all, name))
}

// inQuarantine returns a hint for an error about an unknown name: the outputs of the named asset in quarantine. If the
// asset has none, the hint suggests the nearest name, or lists other outputs.
func inQuarantine(all []Candidate, name string) string {
	if len(all) == 0 {
		return "no output is in quarantine"
	}
	var ofAsset, names []string
	asset, _, _ := strings.Cut(name, "[")
	for i := range all {
		names = append(names, ids.ReadableKey(all[i].Name))
		if all[i].Asset == asset {
			ofAsset = append(ofAsset, ids.ReadableKey(all[i].Name))
		}
	}
	if len(ofAsset) > 0 {
		return "these outputs of the asset are in quarantine: " + view.Some(ofAsset)
	}
	if near := plan.Suggest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "these outputs are in quarantine: " + view.Some(names)
}

// CandidateOf returns the output in quarantine that a name denotes, as [FindCandidate] does. A caller may repeat a
// command under the same key: see [Conditions.Key]. If the earlier command has taken effect, the output is no longer in
// quarantine, and CandidateOf returns the output that this command has resolved.
func (e *Engine) CandidateOf(ctx context.Context, name string) (Candidate, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return Candidate{}, err
	}
	command, err := e.repeated(snap)
	switch {
	case err != nil:
		return Candidate{}, err
	case command == "":
		return FindCandidate(snap.State, name)
	}
	for row := range snap.State.Candidates.All {
		if row.CommandID == command {
			return candidateOf(row)
		}
	}
	return Candidate{}, fmt.Errorf("output of %s: %w", name, ErrResolved)
}

// hasMarker returns an error if a candidate has no marker in the store.
func (e *Engine) hasMarker(ctx context.Context, c Candidate) error {
	m, key, err := ReadMarker(ctx, e.cfg.Store, c.OutputURI)
	switch {
	case err == nil && m.URI == c.OutputURI:
		return nil
	case err == nil || errors.Is(err, blob.ErrNotFound):
		return fmt.Errorf("its files are %w: reject it, and run the asset again", ErrNotFound)
	}
	return fmt.Errorf("read %s: %w", key, err)
}

// Resolve publishes a candidate (event.DecisionApprove) or rejects it (event.DecisionReject). The error is
// [ErrResolved] if the output has already left quarantine. Resolve never publishes a candidate without a marker:
// after a rebuild from the bare ledger, the files of a candidate may be missing.
func (e *Engine) Resolve(ctx context.Context, c Candidate, decision, reason string) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	if id, err := e.repeated(snap); err != nil || id != "" {
		return err
	}
	key := state.Key3{A: c.Asset, B: c.Partition, C: c.MaterializationID}
	if row := snap.State.Candidates.Get(key); row != nil {
		e.cfg.IDs.Observe(row.Version) // the id of the command must be greater than that of the report
	}
	if decision == event.DecisionApprove {
		if err := e.hasMarker(ctx, c); err != nil {
			return fmt.Errorf("approve the output of %s: %w", c.Name, err)
		}
	}
	p := &event.QuarantineResolved{
		CommandID: e.cfg.IDs.New(), Asset: c.Asset, Partition: c.Partition, MaterializationID: c.MaterializationID,
		Decision: decision, Reason: reason, CommandKey: e.conditions.Key, Fingerprint: e.conditions.Fingerprint,
	}
	if snap, _, err = e.append(ctx, "", p); err != nil {
		return fmt.Errorf("%s the output of %s: %w", decision, c.Name, err)
	}
	owner, err := e.repeated(snap) // a concurrent call with the same key may have come first
	if err != nil {
		return err
	}
	row := snap.State.Candidates.Get(key)
	switch {
	case row == nil:
		return fmt.Errorf("%s the output of %s: %w", decision, c.Name, ErrResolved)
	case row.CommandID != cmp.Or(owner, p.CommandID):
		return fmt.Errorf("%s the output of %s: %w: it is %s (%s)", decision, c.Name, ErrResolved, row.State, row.Reason)
	}
	return nil
}
