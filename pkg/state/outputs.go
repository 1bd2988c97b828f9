package state

import (
	"cmp"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Qualities of an output. Empty: its asset has no check of severity CRITICAL or ERROR.
const (
	Passed   = "passed"
	Degraded = "degraded" // only checks of severity ERROR failed
	Approved = "approved" // a check of severity CRITICAL failed, and a decision has published the output
)

// CheckResult is a row of check_results: the result of a check of a task. The row contains the result of the last
// attempt that reported its end.
type CheckResult struct {
	RunID     string     `col:"run_id,key"`
	TaskKey   string     `col:"task_key,key"`
	Check     string     `col:"check_name,key"`
	Attempt   int32      `col:"attempt"`
	Phase     string     `col:"phase,null,dict"`
	Severity  string     `col:"severity,null,dict"`
	Passed    bool       `col:"passed"`
	Broken    bool       `col:"broken"`
	Failing   int64      `col:"failing"`
	Actual    string     `col:"actual,null"`
	Expected  string     `col:"expected,null,dict"`
	Message   string     `col:"message,null"`
	Sample    string     `col:"sample,null"`
	CheckedAt event.Time `col:"checked_at"`
	Meta
}

// Key returns the primary key.
func (r *CheckResult) Key() Key3 { return Key3{r.RunID, r.TaskKey, r.Check} }

func (*CheckResult) newTable() store { return new(rowTable[Key3, CheckResult, *CheckResult]) }

// AssetCheck is a row of asset_checks: how many results a check of an asset has had, and its last results.
type AssetCheck struct {
	AssetKey        string     `col:"asset_key,key,dict"`
	Check           string     `col:"check_name,key"`
	Phase           string     `col:"phase,null,dict"`
	Severity        string     `col:"severity,null,dict"`
	Passed          int64      `col:"passed"` // number of results that passed
	Failed          int64      `col:"failed"`
	LastRunID       string     `col:"last_run_id"`
	LastPartition   string     `col:"last_partition_key,null"`
	LastAt          event.Time `col:"last_at"`
	LastPassed      bool       `col:"last_passed"`
	FailedRunID     string     `col:"failed_run_id,null"`
	FailedPartition string     `col:"failed_partition_key,null"`
	FailedAt        event.Time `col:"failed_at,null"`
	FailedMessage   string     `col:"failed_message,null"`
	FailedSample    string     `col:"failed_sample,null"`
	Meta
}

// Key returns the primary key.
func (r *AssetCheck) Key() Key2 { return Key2{r.AssetKey, r.Check} }

func (*AssetCheck) newTable() store { return new(rowTable[Key2, AssetCheck, *AssetCheck]) }

// Materialized is the status of a partition with an output.
const Materialized = "MATERIALIZED"

// ChangedCode replaces the code fingerprint of an output if its task may have read different files than the plan
// names. It equals no fingerprint, so the output is stale under every release.
const ChangedCode = "changed"

// Partition is a row of partition_status: the current output of a partition. An unpartitioned
// asset has one row, with an empty partition key.
type Partition struct {
	AssetKey          string     `col:"asset_key,key,dict"`
	PartitionKey      string     `col:"partition_key,key"`
	Status            string     `col:"status,dict"` // MATERIALIZED
	MaterializationID string     `col:"last_materialization_id"`
	MaterializedAt    event.Time `col:"last_materialization_at"`
	RunID             string     `col:"run_id"`
	TaskKey           string     `col:"task_key"`
	OutputURI         string     `col:"output_uri,null"`
	RowCount          int64      `col:"row_count"`
	ByteSize          int64      `col:"byte_size"`
	SchemaHash        string     `col:"schema_hash,null,dict"`
	Quality           string     `col:"quality,null,dict"`
	// Code is the code fingerprint of the task that made the output; "": unknown. It may be
	// [ChangedCode].
	Code string `col:"code,null,dict"`
	// VersionSeq is the fold sequence at which the output became visible.
	VersionSeq int64 `col:"version_seq"`
	// These fields show which outputs the task could read. LeftOut is copied from the [Task], and RootRun from the
	// [Run] that made the output. InputsSeq is copied from the run if the LeftOut of the task is 0. Otherwise,
	// InputsSeq is 0.
	//
	// The VersionSeq of an approved output is that of the approval. Between the end of the task and the approval, other
	// runs of its chain of retries may have made outputs, which the task cannot have read. So if the LeftOut of the
	// task is 0, the approval sets LeftOut to the fold sequence at which the output was made.
	InputsSeq int64  `col:"inputs_seq"`
	RootRun   string `col:"root_run,null"`
	LeftOut   int64  `col:"left_out"`
	Meta
}

// Key returns the primary key.
func (r *Partition) Key() Key2 { return Key2{r.AssetKey, r.PartitionKey} }

func (*Partition) newTable() store { return new(rowTable[Key2, Partition, *Partition]) }

// Root returns the first run of the chain of retries that made the output.
func (r *Partition) Root() string { return cmp.Or(r.RootRun, r.RunID) }

// ReadIn returns the first run of the chain of retries that made the output. Tasks of this chain may have read the
// output before it became visible to other runs. For an approved output, ReadIn returns "", because no task reads an
// output in quarantine.
func (r *Partition) ReadIn() string {
	if r.Quality == Approved {
		return ""
	}
	return r.Root()
}

// Incomplete reports whether the task of the output has not read the visible outputs of all upstreams: see
// [Task.LeftOut]. The row does not say which upstream is missing. So the task counts as having read only the outputs of
// its own run.
//
// Incomplete also returns true for every approved output whose chain of retries was planned on an empty state. If its
// task has read the outputs of all upstreams, this result is wrong, but the rows of both cases look the same.
func (r *Partition) Incomplete() bool { return r.LeftOut > 0 && r.InputsSeq == 0 }
