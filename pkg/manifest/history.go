package manifest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// The history of a table holds its closed rows in immutable segments. An index names
// the segments. A manifest names only the index, so that it does not grow with history.

// index is the stored form of an index.
type index struct {
	SchemaVersion int    `json:"schema_version"`
	Table         string `json:"table"`
	Segments      []File `json:"segments"`
}

// maxSegments is the maximum number of segments in an index.
const maxSegments = 1_000_000

// EncodeIndex returns an encoded index of a table's segments, and the File with which a manifest refers to the index.
func EncodeIndex(key, table string, segments []File) ([]byte, File, error) {
	data, err := jsonv2.Marshal(index{SchemaVersion, table, segments}, jsonv2.Deterministic(true))
	if err != nil {
		return nil, File{}, fmt.Errorf("encode the index of the history of %s: %w", table, err)
	}
	f := File{Table: table, Key: key, Size: int64(len(data)), CRC32C: blob.CRC32C(data)}
	for i, s := range segments {
		f.Rows += s.Rows
		if i == 0 || s.MinRun < f.MinRun {
			f.MinRun = s.MinRun
		}
		f.MaxRun = max(f.MaxRun, s.MaxRun)
	}
	return data, f, nil
}

// Segments returns the history segments of a table in order of their creation. f is the
// index. Callers must not modify the result.
func (s *Store) Segments(ctx context.Context, f File) ([]File, error) {
	s.mu.Lock()
	known, ok := s.segments[f.Table]
	s.mu.Unlock()
	if ok && known.key == f.Key {
		return known.files, nil
	}
	data, err := s.LoadFile(ctx, f)
	if err != nil {
		return nil, err
	}
	var x index
	if err := jsonv2.Unmarshal(data, &x, jsonv2.RejectUnknownMembers(true)); err != nil {
		return nil, &CorruptError{Key: f.Key, Reason: err.Error()}
	}
	p := &problem{}
	p.check(x.SchemaVersion == SchemaVersion, "its schema_version is %d, but this build reads %d; upgrade servo", x.SchemaVersion, SchemaVersion)
	p.check(x.Table == f.Table, "it belongs to table %.100q", x.Table)
	p.check(len(x.Segments) <= maxSegments, "it has %d segments; at most %d are allowed", len(x.Segments), maxSegments)
	for i := range x.Segments {
		p.check(x.Segments[i].Table == f.Table, "segments[%d] belongs to table %.100q", i, x.Segments[i].Table)
		validateFile(p, s.domain, func() string { return fmt.Sprintf("segments[%d]", i) }, &x.Segments[i], TierHistory)
	}
	if p.err != nil {
		return nil, &CorruptError{Key: f.Key, Reason: p.err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segments == nil {
		s.segments = map[string]segments{}
	}
	s.segments[f.Table] = segments{f.Key, x.Segments}
	return x.Segments, nil
}

// segments is the decoded content of an index. It is never modified.
type segments struct {
	key   string
	files []File
}

// AllFiles returns all state files that a manifest references, directly or through an
// index of history.
func (s *Store) AllFiles(ctx context.Context, m *Manifest) ([]File, error) {
	files := m.Files()
	history, err := s.HistoryFiles(ctx, m)
	return append(files, history...), err
}

// HistoryFiles returns the history segments of all tables.
func (s *Store) HistoryFiles(ctx context.Context, m *Manifest) ([]File, error) {
	var files []File
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		segments, err := s.Segments(ctx, m.History[table])
		if err != nil {
			return nil, fmt.Errorf("history of %s: %w", table, err)
		}
		files = append(files, segments...)
	}
	return files, nil
}

// RunSegments returns the segments of a table that may contain rows of a run.
func (s *Store) RunSegments(ctx context.Context, index File, runID string) ([]File, error) {
	if runID < index.MinRun || runID > index.MaxRun {
		return nil, nil
	}
	all, err := s.Segments(ctx, index)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, f := range all {
		if f.MinRun <= runID && runID <= f.MaxRun {
			files = append(files, f)
		}
	}
	return files, nil
}

// EntrySegments returns the segments of ledger_entries that may contain rows of entries.
// The entries must be sorted.
func (s *Store) EntrySegments(ctx context.Context, index File, entries []string) ([]File, error) {
	all, err := s.Segments(ctx, index)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, f := range all {
		first, _ := slices.BinarySearch(entries, f.MinEntry)
		if f.MinEntry == "" || first < len(entries) && entries[first] <= f.MaxEntry { // "": earlier builds did not record it
			files = append(files, f)
		}
	}
	return files, nil
}
