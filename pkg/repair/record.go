package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// RecordError reports that the order in which the ledger was folded is unknown: the manifest or its
// rows of ledger_entries are missing, damaged or contradictory.
type RecordError struct{ Err error }

// Error implements error.
func (e *RecordError) Error() string {
	return fmt.Sprintf("the order in which the ledger was folded is unknown: %s", manifest.Problem(e.Err))
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// recordError distinguishes damage from a failed read. Only damage is a [RecordError], because a failed read may
// succeed the next time.
func recordError(err error) error {
	if errors.Is(err, errNothing) {
		return err
	}
	if manifest.Damaged(err) || errors.Is(err, manifest.ErrNone) {
		return &RecordError{err}
	}
	return fmt.Errorf("read the order in which the ledger was folded: %w", err)
}

// contradictions returns the error for contradictory rows of ledger_entries. The parameter problems contains their
// descriptions.
func contradictions(problems []string) error {
	const some = 5
	lines := problems[:min(some, len(problems))]
	return &RecordError{errors.New(strings.Join(lines, "; "))}
}

// record reads the rows of ledger_entries in successive manifests. It returns each row only once.
type record struct {
	cfg     Config
	through int64           // places up to this sequence number were read
	known   map[string]bool // segments of history that were read
}

// read returns the places of all groups that m has folded and that no earlier call has returned, in
// no particular order.
func (r *record) read(ctx context.Context, m *manifest.Manifest) ([]place, error) {
	cfg := r.cfg
	only := *m
	only.BaseSnapshot.Files = onlyEntries(m.BaseSnapshot.Files, func(f manifest.File) string { return f.Table })
	only.L1, only.L0, only.History = nil, nil, nil
	for _, d := range slices.Concat(m.L1, m.L0) {
		d.Files = onlyEntries(d.Files, func(f manifest.File) string { return f.Table })
		d.Inline = onlyEntries(d.Inline, func(rows manifest.Rows) string { return rows.Table })
		only.L0 = append(only.L0, d)
	}
	st, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, &only)
	if err != nil {
		return nil, err
	}
	closed, err := r.closed(ctx, m)
	if err != nil {
		return nil, err
	}
	order := appendPlaces(closed, st.Entries.Rows())
	order = slices.DeleteFunc(order, func(p place) bool { return p.firstSeq <= r.through })
	r.through = max(r.through, m.FoldSeq)
	return order, nil
}

// closed returns the places in history segments that no earlier call has read.
func (r *record) closed(ctx context.Context, m *manifest.Manifest) (order []place, err error) {
	index, has := m.History["ledger_entries"]
	if !has {
		return nil, nil
	}
	files, err := r.cfg.Manifests.Segments(ctx, index)
	if err != nil {
		return nil, err
	}
	order = make([]place, 0, min(index.Rows, maxPlaces))
	for _, f := range files {
		if r.known[f.Key] {
			continue
		}
		rows, err := r.cfg.Codec.Merge(ctx, []snapshot.Source{{
			Table: f.Table, Name: f.Key,
			Read: func(ctx context.Context) ([]byte, error) { return r.cfg.Manifests.LoadFile(ctx, f) },
		}})
		if err != nil {
			return nil, err
		}
		r.known[f.Key] = true
		order = appendPlaces(order, state.List[state.Entry](rows))
	}
	return order, nil
}

// onlyEntries returns the parts that contain rows of ledger_entries.
func onlyEntries[T any](parts []T, table func(T) string) []T {
	return slices.DeleteFunc(slices.Clone(parts), func(part T) bool { return table(part) != "ledger_entries" })
}
