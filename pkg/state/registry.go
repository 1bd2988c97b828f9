package state

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"reflect"
	"strings"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Tables declares the tables of a domain. To add one, add a field and its row type: all operations on states, files and
// history iterate over these fields. The order of the fields is the order of the files in manifests, and the order in
// which tables are loaded. Tasks precede heartbeats, because the deadline of a heartbeat depends on the timeout of its
// task.
//
// The tag has the table's name and these options:
//
//   - run=COLUMN: COLUMN contains the run of a row. Files record the bounds of the column.
//   - ulid=COLUMN: the same for another ULID of a row, in a table whose rows belong to no run.
//   - entry=COLUMN: the same for the ledger entry of a row.
//   - history: closed rows move from the live state to history. If the row type has a method
//     evictable, it defines which rows are closed. If not, a row is closed with its run, whose
//     id must be the first column of the key.
//   - reopens: the live state may get a newer version of a row in history.
//   - paged: like reopens. Rows in history are never deleted, and their files are sorted runs, which
//     readers search by key (ADR 076).
//   - large: [State.Bytes] counts a row as large.
type Tables struct {
	Runs       Table[string, Run]          `table:"runs,history,run=run_id,large"`
	Tasks      Table[Key2, Task]           `table:"tasks,history,run=run_id,large"`
	Batches    Table[Key2, Batch]          `table:"task_partitions,history,run=run_id"`
	Deps       Table[Key3, Dep]            `table:"dep_satisfaction,history,run=run_id"`
	Timers     Table[string, Timer]        `table:"timers"`
	Outbox     Table[string, Dispatch]     `table:"dispatch_outbox"`
	Attempts   Table[AttemptKey, Attempt]  `table:"attempts,history,run=run_id"`
	Heartbeats Table[Key2, Heartbeat]      `table:"heartbeats,run=run_id"`
	RunKeys    Table[string, RunKey]       `table:"run_keys"`
	Conflicts  Table[Key2, RunKeyConflict] `table:"run_key_conflicts,history,reopens,run=run_id"`
	Limits     Table[Key2, Limit]          `table:"limits"`
	Partitions Table[Key2, Partition]      `table:"partition_status,history,paged"`

	Deployments   Table[string, Deployment] `table:"deployments,history,ulid=deploy_id"`
	AcceptedCodes Table[Key2, AcceptedCode] `table:"accepted_codes"`

	KeySets Table[Key2, KeyBlock] `table:"key_sets,large"`

	CheckResults Table[Key3, CheckResult] `table:"check_results,history,run=run_id"`
	AssetChecks  Table[Key2, AssetCheck]  `table:"asset_checks"`
	Candidates   Table[Key3, Candidate]   `table:"quarantine,history,run=run_id"`

	Entries Table[Key2, Entry] `table:"ledger_entries,history,entry=entry"`

	Marks     Table[Key3, Mark]         `table:"partition_marks"`
	Requests  Table[string, RunRequest] `table:"run_requests"`
	Schedules Table[string, Schedule]   `table:"schedules"`
	Ticks     Table[string, Tick]       `table:"ticks,history,ulid=tick_id"`

	CheckHistory Table[Key3, CheckHistory] `table:"check_history"`

	Pins Table[string, Pin] `table:"revision_pins"`

	Forgotten Table[string, ForgottenAsset] `table:"forgotten_assets"`

	Statistics Table[string, AssetStatistics] `table:"asset_statistics"`

	Backfills Table[string, Backfill] `table:"backfills,history,ulid=backfill_id"`
	Chunks    Table[ChunkKey, Chunk]  `table:"backfill_chunks,history,ulid=backfill_id"`

	AlertRules    Table[string, AlertRule]       `table:"alert_rules"`
	Alerts        Table[Key3, Alert]             `table:"alerts"`
	AlertItems    Table[AlertItemKey, AlertItem] `table:"alert_items"`
	AlertChannels Table[string, AlertChannel]    `table:"alert_channels"`
	Notifications Table[string, Notification]    `table:"notifications,history,ulid=notification_id"`

	Promises       Table[string, Promise]      `table:"deadlines"`
	DeadlineMisses Table[string, DeadlineMiss] `table:"deadline_misses,history,ulid=miss_id"`
}

// Declaration describes a table of [Tables]. Lists of its rows have type any: a list is nil or
// a []*R of the table's row type R.
type Declaration struct {
	*table.Schema
	// Run and Entry are the columns with the run and the ledger entry of a row, or nil. If noRun is set, Run is a column
	// with another ULID.
	Run, Entry *table.Column
	// noRun means that the ULIDs in Run are not ids of runs.
	noRun bool
	// History means that closed rows move to history.
	History bool
	// Reopens means that the live state may get a newer version of a row in history.
	Reopens bool
	// Paged means that history holds the rows in sorted runs of files with at most [PageRows] rows.
	Paged bool
	large bool
	lists
}

// lists are the operations on lists of one table. [declared] implements them for each row type.
type lists interface {
	// Len returns the number of rows.
	Len(list any) int
	// Each yields every row.
	Each(list any) iter.Seq[Record]
	// Encode returns the rows as a file.
	Encode(f table.Format, list any) ([]byte, error)
	// Decode returns the rows of a file.
	Decode(f table.Format, data []byte) (any, error)
	// DecodePart returns some ranges of the rows in a part of a file.
	DecodePart(p table.Parts, part int, within []table.Range) (any, error)
	// Merge returns, for each key, the row with the greatest sequence number. It keeps tombstones.
	Merge(lists []any) (any, error)
	// Hash returns the sum of the hashes of the rows, which does not depend on their order.
	Hash(seed maphash.Seed, list any) uint64

	only(list any, keep func(Record) bool) any
	cut(list any, n int) (head, tail any)
	without(list, newer any) any
	diff(want, got any) iter.Seq[string]
}

// Record is a row of any table.
type Record interface{ RowMeta() *Meta }

// Text returns the value of a text column of a row.
func (d *Declaration) Text(c *table.Column, row Record) string {
	return c.Of(reflect.ValueOf(row).Elem()).String()
}

// Bounds returns the least and the greatest value of a text column. Both are empty if there is no column or no row.
// Bounds visits every row, because not all lists are sorted by the column.
func (d *Declaration) Bounds(c *table.Column, list any) (least, greatest string) {
	if c == nil {
		return "", ""
	}
	first := true
	for row := range d.Each(list) {
		text := d.Text(c, row)
		if first {
			least, greatest, first = text, text, false
		}
		least, greatest = min(least, text), max(greatest, text)
	}
	return least, greatest
}

// OfRun reports whether the rows of the table belong to runs, and move to history with them.
func (d *Declaration) OfRun() bool {
	return d.History && d.Run != nil && !d.noRun && d.Run.Name == d.Columns[0].Name
}

// declarations are the tables of [Tables], in its order.
var declarations, positions = declare(reflect.TypeFor[Tables]())

// Declarations returns all tables in the order of their files. Callers must not modify them.
func Declarations() []*Declaration { return declarations }

// declare returns the declarations of a struct of tables, and their positions by row type.
func declare(tables reflect.Type) (all []*Declaration, byRow map[reflect.Type]int) {
	byRow = map[reflect.Type]int{}
	for i := range tables.NumField() {
		field := tables.Field(i)
		row := rowTypeOf(field)
		d := newTable(row).declare(field.Tag.Get("table"))
		byRow[row] = i
		all = append(all, d)
	}
	return all, byRow
}

// rowTypeOf returns the row type of a field of type [Table].
func rowTypeOf(field reflect.StructField) reflect.Type {
	last, ok := field.Type.MethodByName("Last")
	if !ok {
		panic("state: field " + field.Name + " is not a table")
	}
	return last.Type.Out(0).Elem()
}

// newTable returns a zero table of a row type.
func newTable(row reflect.Type) store {
	s, ok := reflect.TypeAssert[stored](reflect.New(row))
	if !ok {
		panic("state: row type " + row.Name() + " has no method newTable")
	}
	return s.newTable()
}

// setOptions sets the options of a tag.
func (d *Declaration) setOptions(options string) {
	for option := range strings.SplitSeq(options, ",") {
		name, column, _ := strings.Cut(option, "=")
		switch name {
		case "run":
			d.Run = d.Column(column)
		case "ulid":
			d.Run, d.noRun = d.Column(column), true
		case "entry":
			d.Entry = d.Column(column)
		case "history":
			d.History = true
		case "reopens":
			d.Reopens = true
		case "paged":
			d.Reopens, d.Paged = true, true
		case "large":
			d.large = true
		case "":
		default:
			panic(fmt.Sprintf("state: table %s has unknown option %q", d.Name, option))
		}
	}
}

// Key2 is a primary key of two columns.
type Key2 struct{ A, B string }

// Key3 is a primary key of three columns.
type Key3 struct{ A, B, C string }

// AttemptKey is the primary key of attempts.
type AttemptKey struct {
	RunID, TaskKey string
	Attempt        int32
}

// keyType contains the functions of a type of primary keys.
type keyType[K any] struct {
	compare func(a, b K) int
	// from returns the least key whose first column is not less than the given text.
	from func(text string) K
}

// keyTypes are the types that a primary key can have.
var keyTypes = []any{
	keyType[string]{strings.Compare, func(text string) string { return text }},
	keyType[Key2]{compare2, func(text string) Key2 { return Key2{A: text} }},
	keyType[Key3]{compare3, func(text string) Key3 { return Key3{A: text} }},
	keyType[AttemptKey]{compareAttempt, func(text string) AttemptKey { return AttemptKey{RunID: text} }},
	keyType[AlertItemKey]{compareAlertItem, func(text string) AlertItemKey { return AlertItemKey{Subject: text} }},
	keyType[ChunkKey]{compareChunk, func(text string) ChunkKey { return ChunkKey{BackfillID: text} }},
}

func keyTypeOf[K any]() keyType[K] {
	for _, known := range keyTypes {
		if t, ok := known.(keyType[K]); ok {
			return t
		}
	}
	panic(fmt.Sprintf("state: %v is not a type of primary keys: add it to keyTypes", reflect.TypeFor[K]()))
}

func compare2(a, b Key2) int {
	if order := strings.Compare(a.A, b.A); order != 0 {
		return order
	}
	return strings.Compare(a.B, b.B)
}

func compare3(a, b Key3) int {
	if order := strings.Compare(a.A, b.A); order != 0 {
		return order
	}
	return compare2(Key2{a.B, a.C}, Key2{b.B, b.C})
}

func compareAlertItem(a, b AlertItemKey) int {
	if order := compare2(Key2{a.Subject, a.Cause}, Key2{b.Subject, b.Cause}); order != 0 {
		return order
	}
	return compare2(Key2{a.Rule, a.Item}, Key2{b.Rule, b.Item})
}

func compareAttempt(a, b AttemptKey) int {
	if order := compare2(Key2{a.RunID, a.TaskKey}, Key2{b.RunID, b.TaskKey}); order != 0 {
		return order
	}
	return cmp.Compare(a.Attempt, b.Attempt)
}
