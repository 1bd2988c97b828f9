package api

import (
	"net/http"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
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
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	assets := []Asset{}
	for i := range p.Assets {
		rows := snap.Partitions(r.Context(), p.Assets[i].Key.String(), "")
		a, err := view.AssetOf(rows, &p.Assets[i], view.Calendar(snap.State, time.Time{}))
		if err != nil {
			return 0, nil, err
		}
		assets = append(assets, Asset{
			AssetKey: a.Key.String(), Description: a.Description, Owners: a.Owners, Tags: a.Tags, DependsOn: a.DependsOn(),
			Partitions: a.Partitioning(), File: a.File, Materialized: a.Stored, RowCount: a.Rows, ByteSize: a.Bytes,
			Schemas: len(a.Schemas), MaterializedAt: a.MaterializedAt,
		})
	}
	return http.StatusOK, map[string]any{"project": p.Name, "revision": snap.Revision, "assets": assets}, nil
}

func (h handler) ready(r *http.Request) (int, any, error) {
	if _, err := h.Engine.Current(r.Context()); err != nil {
		return 0, nil, &refusal{http.StatusServiceUnavailable, err}
	}
	return http.StatusOK, map[string]string{"status": "ready"}, nil
}
