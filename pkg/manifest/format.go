package manifest

import (
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// SchemaVersion is the version of the format that this build writes, and the
// newest that it reads.
const SchemaVersion = 1

// Manifest is one revision of a domain's state: which files hold it, and how far
// the ledger is folded into them. It is never changed once it is published.
type Manifest struct {
	SchemaVersion int    `json:"schema_version"`
	Tenant        string `json:"tenant_id"`
	Workspace     string `json:"workspace_id"`
	// Lineage is a ULID that every revision shares until the state is rebuilt.
	Lineage  string `json:"lineage"`
	Revision int64  `json:"revision"`
	// Nonce is a ULID of this very publish: it tells who holds a revision.
	Nonce string `json:"nonce"`
	// Parent is the revision that this one follows; nil for the first of a lineage.
	Parent *Ref `json:"parent,omitempty"`
	// Writer names the process that published.
	Writer string `json:"writer"`
	// PublishedAt is later than the parent's by at least a millisecond.
	PublishedAt event.Time `json:"published_at"`

	// FoldSeq is the number of events folded so far.
	FoldSeq int64 `json:"fold_seq"`
	// FoldTime is the greatest timestamp of an event folded so far.
	FoldTime   event.Time `json:"fold_time,omitempty,omitzero"`
	Watermarks Watermarks `json:"watermarks"`
	Due        Due        `json:"due,omitzero"`

	BaseSnapshot BaseSnapshot `json:"base_snapshot"`
	L0Count      int          `json:"l0_count"`
	L0Limits     L0Limits     `json:"l0_limits"`
	// History is the index of a table's closed rows, by table.
	History map[string]File `json:"history,omitempty"`

	// OrphanFloor is a ULID: a state file that is named below it, and that no
	// revision refers to, may be deleted at any time.
	OrphanFloor string `json:"orphan_floor,omitempty"`
	// RowCounts are the current rows of each live table.
	RowCounts map[string]int64 `json:"row_counts,omitempty"`

	// L1 and L0 are the changes since the base, oldest first. They come last, as
	// [texts.encode] has it.
	L1 []Delta `json:"l1,omitempty"`
	L0 []Delta `json:"l0_deltas,omitempty"`
}

// Ref names a revision, and which of those that were ever put in its place.
type Ref struct {
	Revision int64  `json:"revision"`
	Nonce    string `json:"nonce"`
}

// Watermarks say how far the ledger is folded.
type Watermarks struct {
	// EventsProcessedThrough is the greatest ULID of an entry that was folded.
	EventsProcessedThrough string `json:"events_processed_through,omitempty"`
	// LastProcessedFile is the key of the entry that was folded last.
	LastProcessedFile string     `json:"last_processed_file,omitempty"`
	LastProcessedAt   event.Time `json:"last_processed_at,omitempty,omitzero"`
	// CompleteThrough is a ULID: every entry that is named below it is folded.
	CompleteThrough string `json:"complete_through,omitempty"`
	// CaughtUpAt is when the ledger was last listed and then folded to the end.
	CaughtUpAt event.Time `json:"caught_up_at,omitempty,omitzero"`
}

// Due says by which marker of the index of package due somebody looks after the
// domain. Two rules make that as sure as the manifests themselves are, whatever writers
// and sweepers do at the same time, and wherever they die:
//
//   - The marker of At was there before the manifest was published, and At is later
//     than Through.
//   - A marker is deleted only if it is of a minute up to the Through of a revision that
//     is committed. Through never falls along a lineage.
//
// So no marker that the newest revision names is ever deleted; and who is about to
// publish one that was deleted meanwhile loses the race for its revision, to the one
// that has the Through.
type Due struct {
	// At is the minute of the marker; 0: the domain needs none.
	At event.Time `json:"at,omitempty,omitzero"`
	// Through is a minute: markers up to it may be deleted.
	Through event.Time `json:"through,omitempty,omitzero"`
}

// BaseSnapshot is the state as of the last rewrite.
type BaseSnapshot struct {
	ID string `json:"id,omitempty"` // a ULID; empty before the first rewrite
	// Revision is the one whose state it is.
	Revision    int64      `json:"revision,omitzero"`
	PublishedAt event.Time `json:"published_at,omitempty,omitzero"`
	Files       []File     `json:"files,omitempty"`
	// FoldSeq and FoldTime are those of that state. What was closed in it is in
	// history and not in the base; FoldTime is 0 where nothing was left out.
	FoldSeq  int64      `json:"fold_seq,omitzero"`
	FoldTime event.Time `json:"fold_time,omitempty,omitzero"`
	// EntriesFrom is the ULID below which entries of the ledger are in history.
	EntriesFrom string `json:"entries_from,omitempty"`
	// RunsFrom is the ULID below which closed runs are not kept.
	RunsFrom string `json:"runs_from,omitempty"`
}

// After reports whether the base may hold changes after a revision. Those of
// earlier builds do not say which revision's state they are.
func (b BaseSnapshot) After(revision int64) bool {
	return b.Revision > revision || b.Revision == 0 && b.ID != ""
}

// L0Limits say when the deltas are merged.
type L0Limits struct {
	MaxCount int   `json:"max_count"` // L0 deltas in files that merge into one L1 delta
	MaxBytes int64 `json:"max_bytes"` // least size of all deltas at which the base is rewritten
}

// Delta is what one compaction, or a merge of several, changed: a file for each
// table or, where there are few rows, the rows themselves.
type Delta struct {
	ID       string `json:"id"`       // a ULID
	Revision int64  `json:"revision"` // the last revision whose changes it holds
	Files    []File `json:"files,omitempty"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"` // of the files, or of the JSON of the rows
	Inline   []Rows `json:"inline,omitempty"`
}

// Rows are rows of a table for which a file of their own would cost more than
// they do.
type Rows struct {
	Table string `json:"table"`
	// CRC32C is the Castagnoli checksum of JSON, byte for byte.
	CRC32C uint32 `json:"crc32c"`
	Count  int64  `json:"count"`
	// JSON is an array of objects, in ascending order of their primary keys, with the
	// columns that are not zero.
	JSON jsontext.Value `json:"rows"`
}

// NewRows are rows to be put in a manifest.
func NewRows(table string, count int64, json []byte) Rows {
	return Rows{Table: table, CRC32C: blob.CRC32C(json), Count: count, JSON: json}
}

// IsInline reports whether the manifest itself holds the delta's rows.
func (d Delta) IsInline() bool { return len(d.Inline) > 0 }

// SplitInline parts deltas that are in the manifest from those in files.
func SplitInline(deltas []Delta) (inline, files []Delta) {
	for _, d := range deltas {
		if d.IsInline() {
			inline = append(inline, d)
		} else {
			files = append(files, d)
		}
	}
	return inline, files
}

// File is a state file. Whoever reads it verifies its size and checksum.
type File struct {
	Table  string `json:"table"`
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	Rows   int64  `json:"rows"`
	CRC32C uint32 `json:"crc32c"`
	// MinRun and MaxRun bound the run ids in the file; empty where it has none.
	MinRun string `json:"min_run_id,omitempty"`
	MaxRun string `json:"max_run_id,omitempty"`
	// MinEntry and MaxEntry bound the entries of the ledger in a segment of ledger_entries.
	MinEntry string `json:"min_entry_id,omitempty"`
	MaxEntry string `json:"max_entry_id,omitempty"`
}

// Domain is whose state it is.
func (m *Manifest) Domain() ids.Domain { return ids.Domain{Tenant: m.Tenant, Workspace: m.Workspace} }

// Ref names the manifest.
func (m *Manifest) Ref() Ref { return Ref{m.Revision, m.Nonce} }

// LiveFiles are the files of the live state.
func (m *Manifest) LiveFiles() []File {
	files := slices.Clone(m.BaseSnapshot.Files)
	for _, d := range slices.Concat(m.L1, m.L0) {
		files = append(files, d.Files...)
	}
	return files
}

// Files are all state files that the manifest refers to: those of the live state,
// and the indexes of history.
func (m *Manifest) Files() []File {
	files := m.LiveFiles()
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		files = append(files, m.History[table])
	}
	return files
}

// First is revision 1 of a new lineage, to be filled in and published.
func First(d ids.Domain, lineage, writer string) *Manifest {
	return &Manifest{
		SchemaVersion: SchemaVersion, Tenant: d.Tenant, Workspace: d.Workspace,
		Lineage: lineage, Revision: 1, Writer: writer,
	}
}

// Successor is the revision after m, to be filled in and published. It shares
// nothing with m that can be changed.
func (m *Manifest) Successor(writer string) *Manifest {
	next := *m
	parent := m.Ref()
	next.SchemaVersion, next.Revision, next.Nonce, next.Parent, next.Writer = SchemaVersion, m.Revision+1, "", &parent, writer
	next.PublishedAt = m.PublishedAt.Add(time.Millisecond)
	next.BaseSnapshot.Files = slices.Clone(m.BaseSnapshot.Files)
	next.L1, next.L0 = slices.Clone(m.L1), slices.Clone(m.L0)
	next.History, next.RowCounts = maps.Clone(m.History), maps.Clone(m.RowCounts)
	return &next
}
