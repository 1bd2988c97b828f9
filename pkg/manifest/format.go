package manifest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// SchemaVersion is the format version that this build writes, and the newest that it
// reads.
const SchemaVersion = 1

// Manifest is one revision of a domain's state: the files that hold it, and how much
// of the ledger is folded into them. A published manifest never changes.
type Manifest struct {
	SchemaVersion int    `json:"schema_version"`
	Tenant        string `json:"tenant_id"`
	Workspace     string `json:"workspace_id"`
	// Timeline is the ULID of the timeline: all revisions share it until a rebuild.
	Timeline string `json:"timeline"`
	Revision int64  `json:"revision"`
	// Nonce is a ULID that is unique to one publish. It identifies the writer that published the revision.
	Nonce string `json:"nonce"`
	// Parent is the preceding revision; nil for the first of a timeline.
	Parent *Ref `json:"parent,omitempty"`
	// Writer is the name of the process that published the manifest.
	Writer string `json:"writer"`
	// PublishedAt is later than the parent's by at least a millisecond.
	PublishedAt event.Time `json:"published_at"`

	// FoldSeq is the number of folded events.
	FoldSeq int64 `json:"fold_seq"`
	// FoldTime is the greatest timestamp of a folded event.
	FoldTime   event.Time `json:"fold_time,omitempty,omitzero"`
	Watermarks Watermarks `json:"watermarks"`
	Wakeup     Wakeup     `json:"wakeup,omitzero"`

	BaseSnapshot BaseSnapshot `json:"base_snapshot"`
	L0Count      int          `json:"l0_count"`
	L0Limits     L0Limits     `json:"l0_limits"`
	// History maps each table to the index file of its closed rows.
	History map[string]File `json:"history,omitempty"`

	// OrphanFloor is a ULID. A state file whose id is below the floor, and that no revision references, may be deleted at
	// any time.
	OrphanFloor string `json:"orphan_floor,omitempty"`
	// RowCounts maps each live table to its number of rows.
	RowCounts map[string]int64 `json:"row_counts,omitempty"`

	// L1 and L0 are the changes since the base, oldest first. They come last because
	// [texts.encode] appends them.
	L1 []Delta `json:"l1,omitempty"`
	L0 []Delta `json:"l0_deltas,omitempty"`
}

// Ref identifies a revision. The nonce distinguishes manifests that different writers have created for the same
// number.
type Ref struct {
	Revision int64  `json:"revision"`
	Nonce    string `json:"nonce"`
}

// Watermarks define how far the ledger is folded.
type Watermarks struct {
	// EventsProcessedThrough is the greatest ULID of a folded entry.
	EventsProcessedThrough string `json:"events_processed_through,omitempty"`
	// LastProcessedFile is the key of the last folded entry.
	LastProcessedFile string     `json:"last_processed_file,omitempty"`
	LastProcessedAt   event.Time `json:"last_processed_at,omitempty,omitzero"`
	// CompleteThrough is a ULID: every entry with a lower ULID is folded or abandoned.
	CompleteThrough string `json:"complete_through,omitempty"`
	// CaughtUpAt is when the ledger was last listed and then folded to the end.
	CaughtUpAt event.Time `json:"caught_up_at,omitempty,omitzero"`
}

// Wakeup names the wakeup (package wakeup) that makes a sweeper visit the domain. Two rules make wakeups as reliable as
// manifests, whatever writers and sweepers do concurrently, and at whatever point they die:
//
//   - The wakeup at the minute At was created before the manifest was published, and At is later than Through.
//   - A wakeup is deleted only if its minute is at or before the Through of a committed
//     revision. Through never decreases within a timeline.
//
// So a wakeup that the newest revision names is never deleted. If a writer's wakeup is deleted before the writer
// publishes, the writer cannot publish: its revision conflicts with the revision that raised Through.
type Wakeup struct {
	// At is the minute of the wakeup; 0: the domain needs none.
	At event.Time `json:"at,omitempty,omitzero"`
	// Through is the minute up to which wakeups may be deleted.
	Through event.Time `json:"through,omitempty,omitzero"`
}

// BaseSnapshot is the live state as of the last rewrite of the base.
type BaseSnapshot struct {
	ID string `json:"id,omitempty"` // a ULID; empty before the first rewrite
	// Revision is the revision whose state the base contains.
	Revision    int64      `json:"revision,omitzero"`
	PublishedAt event.Time `json:"published_at,omitempty,omitzero"`
	Files       []File     `json:"files,omitempty"`
	// FoldSeq and FoldTime are the fold sequence and the fold time of Revision. They form the history cutoff: rows
	// that were closed at this point are in history and not in the base. FoldTime is 0 if the base omits nothing.
	FoldSeq  int64      `json:"fold_seq,omitzero"`
	FoldTime event.Time `json:"fold_time,omitempty,omitzero"`
	// EntriesFrom is the ULID below which rows of ledger entries are in history.
	EntriesFrom string `json:"entries_from,omitempty"`
	// RunsFrom is a ULID. The state no longer contains closed runs with lower ids.
	RunsFrom string `json:"runs_from,omitempty"`
	// PartitionsFrom is a ULID. Rows of partition_status that runs with lower ids wrote may be in history only.
	PartitionsFrom string `json:"partitions_from,omitempty"`
}

// After reports whether the base may hold changes that are newer than a revision. It also returns true for a base of
// an earlier build, which does not record its revision.
func (b BaseSnapshot) After(revision int64) bool {
	return b.Revision > revision || b.Revision == 0 && b.ID != ""
}

// L0Limits define when deltas are merged.
type L0Limits struct {
	MaxCount int   `json:"max_count"` // how many L0 deltas in files are merged into one L1 delta
	MaxBytes int64 `json:"max_bytes"` // deltas whose total size in bytes is below this limit cause no rewrite of the base
}

// Delta holds the changes of one fold, or the merged changes of several folds: a file per table or, if the rows are
// few, the rows themselves.
type Delta struct {
	ID       string `json:"id"`       // a ULID
	Revision int64  `json:"revision"` // the last revision whose changes it holds
	Files    []File `json:"files,omitempty"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"` // total size of the files, or of the rows as JSON
	Inline   []Rows `json:"inline,omitempty"`
}

// Rows are inline rows of one table: too few to be worth a file.
type Rows struct {
	Table string `json:"table"`
	// CRC32C is the Castagnoli checksum of the bytes of JSON.
	CRC32C uint32 `json:"crc32c"`
	Count  int64  `json:"count"`
	// JSON is an array of objects in ascending order of their primary keys. It omits
	// columns that are zero.
	JSON jsontext.Value `json:"rows"`
}

// NewRows returns inline rows of a table with their checksum.
func NewRows(table string, count int64, json []byte) Rows {
	return Rows{Table: table, CRC32C: blob.CRC32C(json), Count: count, JSON: json}
}

// IsInline reports whether the manifest itself contains the delta's rows.
func (d Delta) IsInline() bool { return len(d.Inline) > 0 }

// SplitInline separates inline deltas from deltas in files, keeping their order.
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

// File refers to a state file. Readers verify its size and checksum.
type File struct {
	Table  string `json:"table"`
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	Rows   int64  `json:"rows"`
	CRC32C uint32 `json:"crc32c"`
	// MinRun and MaxRun are the least and greatest run id in the file, if any.
	MinRun string `json:"min_run_id,omitempty"`
	MaxRun string `json:"max_run_id,omitempty"`
	// MinEntry and MaxEntry are the least and greatest entry in a segment of
	// ledger_entries.
	MinEntry string `json:"min_entry_id,omitempty"`
	MaxEntry string `json:"max_entry_id,omitempty"`
	// Run is the ULID of the sorted run that a file of a paged table belongs to. The files of a sorted run are
	// neighbours in the index, sorted by key, and do not overlap. Min and Max are the least and the greatest key of the
	// file.
	Run string `json:"sorted_run,omitempty"`
	Min Cell   `json:"min_key,omitzero"`
	Max Cell   `json:"max_key,omitzero"`
}

// Cell is a key of a paged table.
type Cell struct {
	Asset     string `json:"asset_key"`
	Partition string `json:"partition_key,omitempty"`
}

// Compare returns the order of two cells: -1, 0 or 1.
func (c Cell) Compare(other Cell) int {
	return cmp.Or(strings.Compare(c.Asset, other.Asset), strings.Compare(c.Partition, other.Partition))
}

// Domain returns the domain that the manifest belongs to.
func (m *Manifest) Domain() ids.Domain { return ids.Domain{Tenant: m.Tenant, Workspace: m.Workspace} }

// Ref returns the manifest's identity.
func (m *Manifest) Ref() Ref { return Ref{m.Revision, m.Nonce} }

// LiveFiles returns the files of the base and the deltas.
func (m *Manifest) LiveFiles() []File {
	files := slices.Clone(m.BaseSnapshot.Files)
	for _, d := range slices.Concat(m.L1, m.L0) {
		files = append(files, d.Files...)
	}
	return files
}

// Files returns all state files that the manifest names: LiveFiles and the indexes of
// history, but not the segments that the indexes name.
func (m *Manifest) Files() []File {
	files := m.LiveFiles()
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		files = append(files, m.History[table])
	}
	return files
}

// First returns revision 1 of a new timeline, to be filled in and published.
func First(d ids.Domain, timeline, writer string) *Manifest {
	return &Manifest{
		SchemaVersion: SchemaVersion, Tenant: d.Tenant, Workspace: d.Workspace,
		Timeline: timeline, Revision: 1, Writer: writer,
	}
}

// Rebuilt returns the revision after m as the first one of a new timeline, to be filled in and published. It carries
// m's orphan floor, and must not reference a file whose id is below that floor.
func (m *Manifest) Rebuilt(timeline, writer string) *Manifest {
	next := First(m.Domain(), timeline, writer)
	next.Revision, next.PublishedAt = m.Revision+1, m.PublishedAt.Add(time.Millisecond)
	next.OrphanFloor, next.Wakeup, next.L0Limits = m.OrphanFloor, m.Wakeup, m.L0Limits
	return next
}

// Successor returns the revision after m, to be filled in and published. Its lists and
// maps are copies of m's.
func (m *Manifest) Successor(writer string) *Manifest {
	next := m.copied()
	parent := m.Ref()
	next.SchemaVersion, next.Revision, next.Nonce, next.Parent, next.Writer = SchemaVersion, m.Revision+1, "", &parent, writer
	next.PublishedAt = m.PublishedAt.Add(time.Millisecond)
	return next
}

// copied returns a copy whose lists and maps are its own.
func (m *Manifest) copied() *Manifest {
	next := *m
	next.BaseSnapshot.Files = slices.Clone(m.BaseSnapshot.Files)
	next.L1, next.L0 = slices.Clone(m.L1), slices.Clone(m.L0)
	next.History, next.RowCounts = maps.Clone(m.History), maps.Clone(m.RowCounts)
	return &next
}
