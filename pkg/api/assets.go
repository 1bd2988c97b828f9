package api

import (
	"net/http"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Asset is a declared asset with totals of its materialized partitions.
type Asset struct {
	AssetKey    string   `json:"asset_key"`
	Description string   `json:"description,omitempty"`
	Owners      []string `json:"owners,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	DependsOn   []string `json:"depends_on"`
	Partitions  string   `json:"partitions,omitempty"`
	File        string   `json:"file"`
	// Materialized is the number of materialized partitions, at most 1 for an unpartitioned asset.
	Materialized int   `json:"materialized"`
	RowCount     int64 `json:"row_count"`
	ByteSize     int64 `json:"byte_size"`
	// Schemas is the number of different schemas that the partitions are known to have.
	Schemas        int        `json:"schemas"`
	MaterializedAt event.Time `json:"last_materialized_at,omitempty,omitzero"`
}

func (h handler) assets(r *http.Request) (int, any, error) {
	p, err := h.Project()
	if err != nil {
		return 0, nil, &refusal{http.StatusConflict, err}
	}
	snap, err := h.Engine.Snapshots.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	assets := []Asset{}
	for i := range p.Assets {
		a := &p.Assets[i]
		view := Asset{
			AssetKey: a.Key.String(), Description: a.Description, Owners: a.Owners, Tags: a.Tags, DependsOn: []string{}, File: a.File,
		}
		for _, dep := range a.Deps {
			view.DependsOn = append(view.DependsOn, dep.String())
		}
		if a.Partitions != nil {
			view.Partitions = a.Partitions.Dimension + " " + a.Partitions.String()
		}
		view.fill(snap.State, a)
		assets = append(assets, view)
	}
	return http.StatusOK, map[string]any{"project": p.Name, "revision": snap.Revision, "assets": assets}, nil
}

func (a *Asset) fill(s *state.State, asset *plan.Asset) {
	var stored []*state.Partition
	s.Partitions.Ascend(state.Key2{A: a.AssetKey}, func(row *state.Partition) bool {
		if row.AssetKey != a.AssetKey {
			return false
		}
		a.Materialized++
		a.RowCount += row.RowCount
		a.ByteSize += row.ByteSize
		a.MaterializedAt = max(a.MaterializedAt, row.MaterializedAt)
		if asset.Declares(row.PartitionKey) {
			stored = append(stored, row)
		}
		return true
	})
	a.Schemas = view.Schemas(stored)
}

func (h handler) ready(r *http.Request) (int, any, error) {
	if _, err := h.Engine.Snapshots.Current(r.Context()); err != nil {
		return 0, nil, &refusal{http.StatusServiceUnavailable, err}
	}
	return http.StatusOK, map[string]string{"status": "ready"}, nil
}
