package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// Some checks compare an output with earlier outputs. The plan contains the values of the earlier outputs. A check
// never reads them from the state, so a retry compares with the same values.

// anomaly compares a measured value with the values of earlier outputs.
func (r *checkRun) anomaly(ctx context.Context, c *quality.Check, query string) (event.CheckResult, error) {
	var value int64
	if err := r.scan(ctx, query, &value); err != nil {
		return event.CheckResult{}, err
	}
	result := c.JudgeAnomaly(value, r.t.task.Past[c.Name])
	if c.Params.Watch.Weekday {
		result.Season = r.t.task.Season
	}
	return result, nil
}

// drift compares the columns of the output with those of the output that was the newest when the run was planned. It
// reads the commit marker of the earlier output only if the hashes of the columns differ.
func (r *checkRun) drift(ctx context.Context, c *quality.Check) (event.CheckResult, error) {
	before, has := r.t.plan.Schemas[r.asset.String()]
	if !has {
		return c.JudgeDrift(false, false, nil, nil), nil
	}
	for i := range r.made {
		if r.made[i].schema == "" {
			if err := r.made[i].describe(); err != nil {
				return event.CheckResult{}, err
			}
		}
	}
	if schemaHash(r.made) == before.Hash {
		return c.JudgeDrift(false, false, nil, nil), nil
	}
	m, key, err := contract.FindMarker(before.URI, func(key string) ([]byte, error) {
		data, _, err := blob.Get(ctx, r.w.cfg.Store, key, contract.MaxCommitMarkerBytes)
		return data, err
	}, func(err error) bool { return errors.Is(err, blob.ErrNotFound) })
	switch {
	case errors.Is(err, blob.ErrNotFound): // the earlier output was deleted after the run was planned
		return c.JudgeDrift(true, false, nil, nil), nil
	case err != nil:
		return event.CheckResult{}, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read %s: %w", key, err))
	}
	after := columnsOf(r.made)
	return c.JudgeDrift(true, len(m.Columns) > 0 && len(after) > 0, typesOf(m.Columns), typesOf(after)), nil
}

func typesOf(columns []contract.CommitMarkerColumn) []quality.ColumnType {
	types := make([]quality.ColumnType, len(columns))
	for i, c := range columns {
		types[i] = quality.ColumnType{Name: c.Name, Type: c.Type}
	}
	return types
}
