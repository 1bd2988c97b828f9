package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of a manifest.
const (
	maxDeltas    = 4096
	maxFiles     = 100_000 // maximum number of files of the base
	maxTables    = 256
	maxName      = 256
	maxKeyLength = 1024
)

// problem records the first failed check.
type problem struct{ err error }

func (p *problem) check(ok bool, format string, args ...any) {
	if !ok && p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *problem) ulid(path, id string) {
	p.check(ids.Valid(id), "%s: %.40q is not a ULID", path, id)
}

func (p *problem) optionalULID(path, id string) {
	if id != "" {
		p.ulid(path, id)
	}
}

func (p *problem) count(path string, n int64) { p.check(n >= 0, "%s: %d is negative", path, n) }

func (p *problem) time(path string, t event.Time) { p.check(t >= 0, "%s: %d is before 1970", path, t) }

// isKnown reports whether the delta at index i of a tier has been validated before. For the base, whose delta is nil,
// it reports whether all files of the base have been validated.
type isKnown func(tier string, i int, d *Delta) bool

// validate checks a manifest, except the content of deltas for which the function known returns true.
func (m *Manifest) validate(known isKnown) error {
	p := &problem{}
	p.check(m.SchemaVersion == SchemaVersion, "schema_version: must be %[2]d, got %[1]d", m.SchemaVersion, SchemaVersion)
	if err := m.Domain().Validate(); err != nil {
		p.check(false, "tenant_id, workspace_id: %w", err)
	}
	p.ulid("timeline", m.Timeline)
	p.check(m.Revision >= 1, "revision: must be at least 1, got %d", m.Revision)
	p.ulid("nonce", m.Nonce)
	m.validateParent(p)
	p.check(m.Writer != "" && len(m.Writer) <= maxName, "writer: must have 1 to %[2]d bytes, got %[1]d", len(m.Writer), maxName)
	p.check(m.PublishedAt > 0, "published_at: required")
	p.count("fold_seq", m.FoldSeq)
	p.time("fold_time", m.FoldTime)
	m.validateWatermarks(p)
	m.validateFiles(p, known)
	p.check(m.L0Count == len(m.L0), "l0_count: %d, but l0_deltas has %d", m.L0Count, len(m.L0))
	p.count("l0_limits.max_count", int64(m.L0Limits.MaxCount))
	p.count("l0_limits.max_bytes", m.L0Limits.MaxBytes)
	p.optionalULID("orphan_floor", m.OrphanFloor)
	p.check(m.Parent != nil || NamedFrom(m.OrphanFloor, m.Files()),
		"orphan_floor: the first revision of a timeline references files whose ids are below it; write these files under new names")
	p.check(len(m.RowCounts) <= maxTables, "row_counts: %d tables; at most %d are allowed", len(m.RowCounts), maxTables)
	for table, n := range m.RowCounts {
		p.check(isTable(table), "row_counts: invalid table name %.100q", table)
		p.count("row_counts."+table, n)
	}
	return p.err
}

func (m *Manifest) validateParent(p *problem) {
	if m.Parent == nil {
		return
	}
	p.check(m.Parent.Revision == m.Revision-1, "parent.revision: must be %d, got %d", m.Revision-1, m.Parent.Revision)
	p.ulid("parent.nonce", m.Parent.Nonce)
}

func (m *Manifest) validateWatermarks(p *problem) {
	w := m.Watermarks
	p.optionalULID("watermarks.events_processed_through", w.EventsProcessedThrough)
	p.check(len(w.LastProcessedFile) <= maxKeyLength, "watermarks.last_processed_file: %d bytes; at most %d are allowed", len(w.LastProcessedFile), maxKeyLength)
	p.time("watermarks.last_processed_at", w.LastProcessedAt)
	p.optionalULID("watermarks.complete_through", w.CompleteThrough)
	p.time("watermarks.caught_up_at", w.CaughtUpAt)
	p.time("wakeup.at", m.Wakeup.At)
	p.time("wakeup.through", m.Wakeup.Through)
	p.check(m.Wakeup.At == 0 || m.Wakeup.At > m.Wakeup.Through, "wakeup.at: must be later than wakeup.through; otherwise the wakeup may be deleted")
}

func (m *Manifest) validateFiles(p *problem, known isKnown) {
	p.optionalULID("base_snapshot.id", m.BaseSnapshot.ID)
	p.time("base_snapshot.published_at", m.BaseSnapshot.PublishedAt)
	p.check(m.BaseSnapshot.Revision >= 0 && m.BaseSnapshot.Revision <= m.Revision,
		"base_snapshot.revision: must be 0 to %[2]d, got %[1]d", m.BaseSnapshot.Revision, m.Revision)
	p.check(m.BaseSnapshot.FoldSeq >= 0 && m.BaseSnapshot.FoldSeq <= m.FoldSeq,
		"base_snapshot.fold_seq: must be 0 to %[2]d, got %[1]d", m.BaseSnapshot.FoldSeq, m.FoldSeq)
	p.check(m.BaseSnapshot.FoldTime >= 0 && m.BaseSnapshot.FoldTime <= m.FoldTime,
		"base_snapshot.fold_time: must be 0 to %[2]d, got %[1]d", m.BaseSnapshot.FoldTime, m.FoldTime)
	p.optionalULID("base_snapshot.entries_from", m.BaseSnapshot.EntriesFrom)
	p.optionalULID("base_snapshot.runs_from", m.BaseSnapshot.RunsFrom)
	p.optionalULID("base_snapshot.partitions_from", m.BaseSnapshot.PartitionsFrom)
	p.check(len(m.BaseSnapshot.Files) <= maxFiles, "base_snapshot.files: %d files; at most %d are allowed", len(m.BaseSnapshot.Files), maxFiles)
	for i := range m.BaseSnapshot.Files {
		if known(TierBase, i, nil) {
			break // all files were validated together
		}
		validateFile(p, m.Domain(), func() string { return fmt.Sprintf("base_snapshot.files[%d]", i) }, &m.BaseSnapshot.Files[i], TierBase)
	}
	m.validateOrder(p)
	m.validateDeltas(p, "l1", m.L1, TierL1, known)
	m.validateDeltas(p, "l0_deltas", m.L0, TierL0, known)
	p.check(len(m.History) <= maxTables, "history: %d tables; at most %d are allowed", len(m.History), maxTables)
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		f := m.History[table]
		p.check(f.Table == table, "history: the index of %.100q belongs to table %.100q", table, f.Table)
		validateFile(p, m.Domain(), func() string { return "history." + f.Table }, &f, TierHistory)
	}
}

// validateOrder checks that each delta is newer than the one before it, and that the first delta is newer than the
// base. Readers and merges rely on this order: they treat a delta at or below the base's revision as merged into the
// base.
func (m *Manifest) validateOrder(p *problem) {
	last := m.BaseSnapshot.Revision
	for i, d := range slices.Concat(m.L1, m.L0) {
		p.check(d.Revision > last, "delta %d of l1 and l0_deltas: revision %d must be greater than %d, the revision of the previous delta or of the base", i, d.Revision, last)
		last = d.Revision
	}
}

func (m *Manifest) validateDeltas(p *problem, path string, deltas []Delta, tier string, known isKnown) {
	p.check(len(deltas) <= maxDeltas, "%s: %d deltas; at most %d are allowed", path, len(deltas), maxDeltas)
	for i := range deltas {
		d := &deltas[i]
		p.check(d.Revision >= 1 && d.Revision <= m.Revision, "%s[%d].revision: must be 1 to %d, got %d", path, i, m.Revision, d.Revision)
		if known(tier, i, d) {
			continue
		}
		here := fmt.Sprintf("%s[%d]", path, i)
		p.ulid(here+".id", d.ID)
		p.count(here+".rows", d.Rows)
		p.count(here+".bytes", d.Bytes)
		p.check(len(d.Files) <= maxTables, "%s.files: %d files; at most %d are allowed", here, len(d.Files), maxTables)
		for j := range d.Files {
			validateFile(p, m.Domain(), func() string { return fmt.Sprintf("%s.files[%d]", here, j) }, &d.Files[j], tier)
		}
		p.check(len(d.Inline) == 0 || tier == TierL0, "%s.inline: only L0 deltas may have inline rows", here)
		p.check(len(d.Inline) <= maxTables, "%s.inline: %d tables; at most %d are allowed", here, len(d.Inline), maxTables)
		for j, rows := range d.Inline {
			p.check(isTable(rows.Table), "%s.inline[%d].table: invalid table name %.100q", here, j, rows.Table)
			p.check(rows.JSON.IsValid(), "%s.inline[%d].rows: must be valid JSON", here, j)
			p.check(rows.Count >= 0, "%s.inline[%d].count: %d is negative", here, j, rows.Count)
			p.check(blob.CRC32C(rows.JSON) == rows.CRC32C, "%s.inline[%d].rows: checksum is not %d", here, j, rows.CRC32C)
		}
		if p.err != nil {
			return
		}
	}
}

// validateFile checks that a file belongs to the domain, so that no manifest leads a
// reader to the files of another tenant. It calls path, which describes the file, only if
// the file has a problem: a manifest names hundreds of files.
func validateFile(p *problem, d ids.Domain, path func() string, f *File, tier string) {
	name, below := strings.CutPrefix(f.Key, StatePrefix(d)+f.Table+"/"+tier+"/")
	id, _, _ := strings.Cut(name, ".")
	switch {
	case !isTable(f.Table):
		p.check(false, "%s.table: invalid table name %.100q", path(), f.Table)
	case !below || !ids.Valid(id) || strings.Contains(name, "/") || len(f.Key) > maxKeyLength:
		p.check(false, "%s.key: %.200q is not the key of a %s file of the table", path(), f.Key, tier)
	case f.Size < 0:
		p.count(path()+".size", f.Size)
	case f.Rows < 0:
		p.count(path()+".rows", f.Rows)
	case !optional(f.MinRun):
		p.ulid(path()+".min_run_id", f.MinRun)
	case !optional(f.MaxRun):
		p.ulid(path()+".max_run_id", f.MaxRun)
	case f.MinRun > f.MaxRun:
		p.check(false, "%s: min_run_id is greater than max_run_id", path())
	case !optional(f.MinEntry):
		p.ulid(path()+".min_entry_id", f.MinEntry)
	case !optional(f.MaxEntry):
		p.ulid(path()+".max_entry_id", f.MaxEntry)
	case f.MinEntry > f.MaxEntry:
		p.check(false, "%s: min_entry_id is greater than max_entry_id", path())
	case !optional(f.Run):
		p.ulid(path()+".sorted_run", f.Run)
	case f.Min.Compare(f.Max) > 0:
		p.check(false, "%s: min_key is greater than max_key", path())
	}
}

// optional reports whether an id is empty or a ULID.
func optional(id string) bool { return id == "" || ids.Valid(id) }

func isTable(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
