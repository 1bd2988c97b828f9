// Package plan turns assets into an execution plan: what a run will do, in
// which order, from which inputs. It is pure: assets and what is materialized
// already go in, a plan comes out.
package plan

import (
	"path"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Plan is an execution plan as it is stored, content-addressed, under
// plans/tenant={t}/workspace={w}/{sha256}.json. Workers read what a task does
// from it. What many tasks share (an asset's query, a group's members) is in it
// once, so that its size grows with tasks plus assets, never their product.
type Plan struct {
	SchemaVersion int `json:"schema_version"` // 1
	// Root is the absolute folder of the project's files, for workers on the same machine.
	Root string `json:"root,omitempty"`
	// Data are the folders, relative to Root, whose files queries may read; empty: "data".
	Data []string `json:"data,omitempty"`
	// SecretVariables are the variables of workers that the project's secrets are taken
	// from, of all its assets: no command inherits them.
	SecretVariables []string `json:"secret_variables,omitempty"`
	// Assets are what the tasks compute, by asset key.
	Assets map[string]Work `json:"assets"`
	// Tasks are in topological order.
	Tasks []Task `json:"tasks"`
	// Groups are inputs that many tasks share, by group key ("ns/name[*]"): the
	// members of the group node of that key, where the run has one, and what
	// earlier runs made.
	Groups map[string][]Input `json:"groups,omitempty"`
	// Sources are where the queries of assets are in the project's files, by asset key.
	Sources map[string]Source `json:"sources,omitempty"`
	// Incomplete are the upstreams of which assets read fewer partitions than there should be.
	Incomplete []Incomplete `json:"incomplete,omitempty"`
	// LeftOut are the selected assets that the run does not make, because their files have problems.
	LeftOut []string `json:"left_out,omitempty"`
	// Warnings say what the run may do differently from what the user expects.
	Warnings []string `json:"warnings,omitempty"`
}

// Source is where a query begins in a file of the project. Lines and columns count from 1.
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

// defaultDataFolder is the data folder of a project that does not say another.
const defaultDataFolder = "data"

// DataFolders are the folders, relative to Root, whose files queries may read.
func (p *Plan) DataFolders() []string {
	if len(p.Data) == 0 {
		return []string{defaultDataFolder}
	}
	return p.Data
}

// ValidDataFolder reports whether a name is one of a folder below the project's, or
// of the project itself ("."). It is written with slashes, without "..", and no part of it
// begins with a dot.
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

// Work is how an asset is computed: exactly one of SQL and Command.
type Work struct {
	SQL     string   `json:"sql,omitempty"`
	Command []string `json:"command,omitempty"`
	// InputFormat is how Command finds its inputs: as Parquet files ("parquet",
	// and "" too), or converted to one data.csv an input ("csv").
	InputFormat string `json:"input_format,omitempty"`
	// Output is [OutputNone] where Command leaves no files: what it does lies
	// elsewhere, in a warehouse for example. Its tasks need no commit marker, and
	// what depends on them waits for them, and reads nothing of them.
	Output string `json:"output,omitempty"`
	// Env are extra environment variables for Command.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are environment variables for Command whose values the worker finds, as
	// [ParseSecret] reads them: a plan has no value of a secret.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Dimensions are the partition dimensions and their types in SQL, for
	// example {"date": "DATE"}.
	Dimensions map[string]string `json:"dimensions,omitempty"`
}

// OutputNone is the output of an asset whose tasks leave no files.
const OutputNone = event.OutputNone

// HasFiles reports whether the asset's tasks leave files, which others may read.
func (w *Work) HasFiles() bool { return w.Output != OutputNone }

// Input formats of commands.
const (
	FormatParquet = "parquet"
	FormatCSV     = "csv"
)

// Task is a task and what it reads.
type Task struct {
	event.TaskDef
	// Inputs are what the task reads, by the asset key of the upstream.
	Inputs map[string]InputSet `json:"inputs,omitempty"`
}

// InputSet is what a task reads of one upstream asset.
type InputSet struct {
	// Group names an entry of Plan.Groups, for inputs that many tasks share.
	Group string `json:"group,omitempty"`
	// Items are the inputs, where they are not shared.
	Items []Input `json:"items,omitempty"`
}

// Input is one partition of an upstream asset: of this run, or of an earlier one.
type Input struct {
	PartitionKey string `json:"partition_key,omitempty"`
	// TaskKey is the task of this run that makes it.
	TaskKey string `json:"task_key,omitempty"`
	// MaterializationID and URI are those of an earlier run's output.
	MaterializationID string `json:"materialization_id,omitempty"`
	URI               string `json:"uri,omitempty"`
}

// Asset is a declared asset, as the project files have it.
type Asset struct {
	Key         ids.AssetKey
	Description string
	Owners      []string
	Tags        []string
	Deps        []ids.AssetKey // sorted, without duplicates
	Work        Work
	Partitions  *Partitions // nil: unpartitioned

	WorkerQueue string
	Pool        string
	Priority    int32
	TriggerRule string
	Retries     Retries
	TimeoutSec  int32
	// HeartbeatTimeoutSec: 0 is the default.
	HeartbeatTimeoutSec int32
	// Keep says which superseded versions of the asset's partitions are kept.
	Keep Keep
	// File is where the asset is declared, relative to the project.
	File string
	// Query is where the asset's query begins.
	Query Source
	// Broken says why no run can make the asset: its file has problems. Others read what
	// earlier runs made of it. "": it can be made.
	Broken string
}

// Keep says which superseded versions of a partition are kept. Zero: the defaults of the collector.
type Keep struct {
	// All keeps every version.
	All bool
	// Versions is how many versions are kept, the visible one included, and For how long superseded ones.
	Versions int
	For      time.Duration
}

// Retries is an asset's retry policy.
type Retries struct {
	MaxAttempts        int32
	InitialDelayMS     int64
	MaxDelayMS         int64
	MultiplierPermille int32
	JitterPermille     int32
	// UserErrors retries errors in the query, the command or the data, too.
	UserErrors bool
}

// Partitions says how an asset is partitioned: by days.
type Partitions struct {
	Dimension string // "date"
	Start     string // first day, "2012-01-01"
	End       string // last day, inclusive; "": no end
	Timezone  string // IANA name; "": UTC
}
