// Package plan builds the execution plan of a run: its tasks, their order and their inputs. The
// package is pure: it takes assets and existing materializations and returns a plan. This package
// is not a stable API.
package plan

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Plan is the execution plan of a run, stored content-addressed under plans/tenant={t}/workspace={w}/{sha256}.json.
// It tells a worker how to execute each task. Data that many tasks share, for example an asset's query or a group's
// members, is stored once. So the size grows with the number of tasks plus assets, not with their product.
type Plan struct {
	SchemaVersion int `json:"schema_version"` // 1
	// Root is the absolute folder of the project's files, for workers on the same machine.
	Root string `json:"root,omitempty"`
	// Source is the SHA-256 of the archive of the project's files, which workers unpack. Empty: they
	// use Root.
	Source string `json:"source,omitempty"`
	// Data lists the folders whose files queries may read: data folders relative to Root, for which [ValidDataFolder]
	// holds, and folders outside of Root, for which [ValidSourcePath] holds. If it lists no data folder, the data folder
	// is "data".
	Data []string `json:"data,omitempty"`
	// SecretVariables are the worker's environment variables that contain secrets of assets of the project. No command
	// inherits them.
	SecretVariables []string `json:"secret_variables,omitempty"`
	// Assets holds the work of the tasks, by asset key.
	Assets map[string]Work `json:"assets"`
	// Tasks is in topological order.
	Tasks []Task `json:"tasks"`
	// Groups contains inputs that many tasks share, by group key ("ns/name[*]"). The inputs are the
	// members of the run's group node with this key, if there is one, and materializations of earlier
	// runs.
	Groups map[string][]Input `json:"groups,omitempty"`
	// PartitionColumns maps an asset key to the columns that readers of the asset get in addition to those of its files:
	// the dimensions of its partitions. An asset without an entry has no such columns.
	PartitionColumns map[string][]space.Column `json:"partition_columns,omitempty"`
	// NoMerge are the upstream assets with merge: false. Readers read each of their files, and make no merged copies.
	NoMerge []string `json:"no_merge,omitempty"`
	// Sources says where in the project's files the query of each asset begins, by asset key.
	Sources map[string]Source `json:"sources,omitempty"`
	// Schemas are the schemas that the newest outputs of assets had when the run was planned, by asset key. Checks and
	// the report of the run compare new outputs with them.
	Schemas map[string]Schema `json:"schemas,omitempty"`
	// Incomplete lists the upstream assets from which a reader gets fewer partitions than expected.
	Incomplete []Incomplete `json:"incomplete,omitempty"`
	// Selected are the selections of partitions. Words such as latest are replaced by the dates that they meant.
	Selected []string `json:"selected,omitempty"`
	// LeftOut lists the selected assets that the run skips because their files have problems.
	LeftOut []string `json:"left_out,omitempty"`
	// Warnings describes how the run may differ from what the user expects.
	Warnings []string `json:"warnings,omitempty"`
}

// Schema identifies the columns of an output.
type Schema struct {
	Hash string `json:"hash"`
	// URI is the folder of the output. The commit marker of the output lists its columns.
	URI string `json:"uri"`
}

// Source is the position of a query in a file of the project. Lines and columns count from 1.
type Source struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

func (p *Plan) setSource(asset string, source Source) {
	if p.Sources == nil {
		p.Sources = map[string]Source{}
	}
	p.Sources[asset] = source
}

// defaultDataFolder is the data folder of a project that does not set one.
const defaultDataFolder = "data"

// DataFolders returns the folders, relative to Root, whose files queries may read.
func (p *Plan) DataFolders() []string {
	inside := slices.DeleteFunc(slices.Clone(p.Data), ValidSourcePath)
	if len(inside) == 0 {
		return []string{defaultDataFolder}
	}
	return inside
}

// SourcePaths returns the folders outside of Root whose files queries may read.
func (p *Plan) SourcePaths() []string {
	return slices.DeleteFunc(slices.Clone(p.Data), func(name string) bool { return !ValidSourcePath(name) })
}

// ValidDataFolder reports whether a path leads to a folder below the project's folder, or is "." for that folder
// itself. The path must use slashes, must not contain "..", and must have no part that begins with a dot.
func ValidDataFolder(name string) bool {
	if name == "." {
		return true
	}
	if name == "" || path.IsAbs(name) || path.Clean(name) != name || strings.ContainsAny(name, "*?[\\") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") {
			return false
		}
	}
	return true
}

// Work says how to compute an asset. Exactly one of SQL and Command is set.
type Work struct {
	SQL     string   `json:"sql,omitempty"`
	Command []string `json:"command,omitempty"`
	// InputFormat is the format of Command's inputs: Parquet files ("parquet" or ""), or one
	// data.csv for each input ("csv").
	InputFormat string `json:"input_format,omitempty"`
	// ExitCodes maps exit statuses of Command to categories of errors, for example "75" to
	// transient.
	ExitCodes map[string]string `json:"exit_codes,omitempty"`
	// Output is [OutputNone] if Command leaves no files because its result is elsewhere, for
	// example in a warehouse. Such tasks need no commit marker. Downstream tasks wait for them
	// and read nothing.
	Output string `json:"output,omitempty"`
	// Text is the format of the text files that Command writes. The worker makes the table of the asset from these
	// files. Nil: the names of the files determine the format.
	Text *TextOutput `json:"text,omitempty"`
	// Env are extra environment variables for Command.
	Env map[string]string `json:"env,omitempty"`
	// Secrets maps environment variables of Command to references for [ParseSecret]. The worker
	// fetches the values; a plan never contains them.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Checks decide whether the output is published. Samples is the number of failing rows that the worker keeps for
	// each check.
	Checks  []quality.Check `json:"checks,omitempty"`
	Samples int             `json:"samples,omitempty"`
	// Quarantine says how long an output that a check has blocked waits for a decision. Nil: such an output is deleted.
	Quarantine *event.Quarantine `json:"quarantine,omitempty"`
	// SchemaDrift is the severity, in lower case, of the check that compares the columns with the columns of the newest
	// output. "off": there is no such check. "": the report of the run describes differences, but there is no check.
	SchemaDrift string `json:"schema_drift,omitempty"`
	// Resources are the resources of one task; nil: the worker's default share.
	Resources *Resources `json:"resources,omitempty"`
	// Batch means that a task may materialize several partitions. Its query gets lists of partition values, and must
	// return the dimensions as columns.
	Batch bool `json:"batch,omitempty"`
	// Dimensions maps partition dimensions to their SQL types, for example {"date": "DATE"}.
	Dimensions map[string]string `json:"dimensions,omitempty"`
	// Files maps paths of project files to the hashes of the files. The code fingerprint covers these hashes: see
	// [Text.Files]. Files is set only in the Work of a plan.
	Files map[string]string `json:"files,omitempty"`
	// Vars are the project's variables that the query or the command reads, by name.
	Vars map[string]Var `json:"vars,omitempty"`
	// External are the extensions of DuckDB that the query uses, sorted by name.
	External []External `json:"external,omitempty"`
}

// Resources are the resources that one task may use. A value of 0 is the default share of the
// worker.
type Resources struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	Threads     int   `json:"threads,omitempty"`
}

// TextOutput describes the text files that a command writes.
type TextOutput struct {
	Format string `json:"format"` // csv, json, ndjson or [TextNone]
	// Delimiter is one character. "": a tab for files that end in .tsv, and a comma for other files.
	Delimiter string   `json:"delimiter,omitempty"`
	NoHeader  bool     `json:"no_header,omitempty"`
	Nulls     []string `json:"nulls,omitempty"`
	// DateFormat is the format of declared columns of type DATE, in the syntax of strptime; "": ISO 8601.
	DateFormat string `json:"date_format,omitempty"`
}

// TextNone is the format of an output whose text files do not become a table.
const TextNone = "none"

// TextFormats are the formats of text files.
var TextFormats = []string{"csv", "json", "ndjson"}

// OutputNone is the value of output for an asset whose tasks write no files.
const OutputNone = event.OutputNone

// HasFiles reports whether the asset's tasks write files, which other assets may read.
func (w *Work) HasFiles() bool { return w.Output != OutputNone }

// Input formats of commands.
const (
	FormatParquet = "parquet"
	FormatCSV     = "csv"
)

// Task is a task and its inputs.
type Task struct {
	event.TaskDef
	// Period is the time interval of the task's partition; nil if the asset has no dimension of time.
	Period *Period `json:"period,omitempty"`
	// Inputs maps the key of each upstream asset to the partitions that the task reads of it.
	Inputs map[string]InputSet `json:"inputs,omitempty"`
	// PreviousRows is the number of rows of the partition's visible output when the run was planned.
	// Nil: there was none, or the asset has no checks.
	PreviousRows *int64 `json:"previous_rows,omitempty"`
	// Past contains, for each check of the kind anomaly, the earlier values with which the check compares the new value,
	// the newest last. Season is the partition's day of the week, for checks that compare only values of the same day of
	// the week.
	Past   map[string][]int64 `json:"past,omitempty"`
	Season string             `json:"season,omitempty"`
	// Checked is the output that a task of the kind check examines; nil if the asset has no files.
	Checked *Input `json:"checked,omitempty"`
}

// InputSet contains the inputs of a task from one upstream asset.
type InputSet struct {
	// Group names an entry of Plan.Groups, if many tasks share the inputs.
	Group string `json:"group,omitempty"`
	// Items are the inputs, if they are not shared.
	Items []Input `json:"items,omitempty"`
}

// Input is one partition of an upstream asset, from this run or an earlier one.
type Input struct {
	PartitionKey string `json:"partition_key,omitempty"`
	// TaskKey is the key of the task of this run that materializes the partition.
	TaskKey string `json:"task_key,omitempty"`
	// MaterializationID and URI identify the output of an earlier run.
	MaterializationID string `json:"materialization_id,omitempty"`
	URI               string `json:"uri,omitempty"`
	// Rows is the number of rows of that output. Degraded means that a check of severity ERROR has failed for it. Plans
	// do not store these two fields.
	Rows     int64 `json:"-"`
	Degraded bool  `json:"-"`
	// Schema is the hash of the columns of that output. Version is greater for each later output of the asset.
	Schema  string `json:"-"`
	Version int64  `json:"-"`
}

// Asset is an asset as declared in the project files.
type Asset struct {
	Key         ids.AssetKey
	Description string
	Owners      []string
	Tags        []string
	Deps        []ids.AssetKey // sorted, without duplicates
	// CheckDeps are the assets in Deps that only checks read.
	CheckDeps []ids.AssetKey
	// Requires is [RequiresComplete] or [RequiresAvailable]; "": RequiresComplete. It applies to each dependency whose
	// own [Dep.Requires] is empty.
	Requires string
	// Reads contains the settings of those dependencies for which the asset declares settings.
	Reads      []Dep
	Work       Work
	Partitions *space.Space // nil: unpartitioned
	// Batch is the maximum number of partitions of a task, if Work.Batch is set.
	Batch int `json:"batch,omitempty"`
	// NoPartitionColumns means that readers do not get the dimensions as columns.
	NoPartitionColumns bool `json:"no_partition_columns,omitempty"`
	// NoMerge means that small outputs of the asset are not copied to merged files.
	NoMerge bool `json:"no_merge,omitempty"`

	WorkerQueue string
	Pool        string
	Priority    int32
	TriggerRule string
	Retries     Retries
	TimeoutSec  int32
	// HeartbeatTimeoutSec is 0 for the default.
	HeartbeatTimeoutSec int32
	// Keep says which superseded versions of the asset's partitions to keep.
	Keep Keep
	// Publish says how the outputs are published. Nil: they are not published.
	Publish *Publish `json:"publish,omitempty"`
	// Code is the fingerprint of everything that affects the bytes of the asset's outputs. Empty:
	// unknown.
	Code string
	// Text contains the parts of the code that are not in Work.
	Text Text
	// File declares the asset. Its path is relative to the project.
	File string
	// Query is the position of the asset's query.
	Query Source
	// Broken describes problems of the asset's file that prevent runs from materializing the asset; "": there are none.
	// Other assets still read the existing materializations of a broken asset.
	Broken string
}

// PartitionColumns returns the columns that readers of the asset get from the keys of its partitions.
func (a *Asset) PartitionColumns() []space.Column {
	if a.NoPartitionColumns || !a.Work.HasFiles() {
		return nil
	}
	return a.Partitions.Columns()
}

// Keep says which superseded versions of a partition to keep. Zero: the collector's defaults.
type Keep struct {
	// All means that every version is kept.
	All bool
	// Versions says how many versions to keep, including the visible one. The field For says how long to keep
	// superseded versions.
	Versions int
	For      time.Duration
}

// Publish says how the outputs of an asset are published.
type Publish struct {
	// Name is namespace/name at the published places.
	Name string `json:"name"`
	// Copy means that a published folder contains copies of the files instead of links.
	Copy bool `json:"copy,omitempty"`
}

// Retries is an asset's retry policy.
type Retries struct {
	MaxAttempts        int32
	InitialDelayMS     int64
	MaxDelayMS         int64
	MultiplierPermille int32
	JitterPermille     int32
	// UserErrors means that an attempt is also retried if the query, the command or the data made it fail.
	UserErrors bool
	// On lists codes and categories of errors that are always retried. Never lists those that are never retried. An
	// item that is in both lists is never retried.
	On, Never []string
}
