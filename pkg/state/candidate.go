package state

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// CandidateState is the state of a candidate in quarantine.
type CandidateState string

// Candidate states. All but the first one are final.
const (
	CandidatePending    CandidateState = "PENDING"    // waits for a decision
	CandidateApproved   CandidateState = "APPROVED"   // published
	CandidateRejected   CandidateState = "REJECTED"   // to be deleted
	CandidateSuperseded CandidateState = "SUPERSEDED" // a later run has made an output or a candidate of the same partition
)

// MaxCandidates is the maximum number of a domain's candidates that wait for a decision.
const MaxCandidates = 10_000

// Candidate is a row of quarantine: an output that a check of severity CRITICAL has blocked.
type Candidate struct {
	AssetKey          string         `col:"asset_key,key,dict"`
	PartitionKey      string         `col:"partition_key,key"`
	MaterializationID string         `col:"materialization_id,key"`
	State             CandidateState `col:"state,dict"`
	RunID             string         `col:"run_id"`
	TaskKey           string         `col:"task_key"`
	OutputURI         string         `col:"output_uri"`
	RowCount          int64          `col:"row_count"`
	ByteSize          int64          `col:"byte_size"`
	SchemaHash        string         `col:"schema_hash,null,dict"`
	Code              string         `col:"code,null,dict"`
	// InputsSeq, RootRun and LeftOut have the same meaning as in [Partition]. MadeSeq is the fold sequence number of the
	// event that reported the output.
	InputsSeq int64  `col:"inputs_seq"`
	RootRun   string `col:"root_run,null"`
	LeftOut   int64  `col:"left_out"`
	MadeSeq   int64  `col:"made_seq"`
	// FailedChecks are the first checks that blocked the output: a JSON list of [FailedCheck].
	FailedChecks string `col:"failed_checks"`
	// Measured are the values that checks have measured in the output: a JSON list of [MeasuredValue].
	Measured  string     `col:"measured,null"`
	BlockedAt event.Time `col:"blocked_at"`
	// ExpiresAt is when a candidate without a decision is rejected, or approved if ApproveOnExpiry is set.
	ExpiresAt       event.Time `col:"expires_at"`
	ApproveOnExpiry bool       `col:"approve_on_expiry"`
	// ResolvedAt, ResolvedBy and Reason say how a candidate got its final state. CommandID is the id of the command that
	// approved or rejected the candidate; "": no command did.
	ResolvedAt event.Time `col:"resolved_at,null"`
	ResolvedBy string     `col:"resolved_by,null,dict"`
	Reason     string     `col:"reason,null"`
	CommandID  string     `col:"command_id,null"`
	Meta
}

// MeasuredValue is a value that a check has measured in a candidate. It becomes part of the history of the check if
// the candidate is published.
type MeasuredValue struct {
	Check  string `json:"check"`
	Season string `json:"season,omitempty"`
	Metric string `json:"metric,omitempty"`
	Value  int64  `json:"value"`
}

// FailedCheck is a check that has blocked a candidate.
type FailedCheck struct {
	Check   string `json:"check"`
	Message string `json:"message,omitempty"`
	// Sample is the object key of a Parquet file with some of the failing rows.
	Sample string `json:"sample,omitempty"`
}

// Key returns the primary key.
func (r *Candidate) Key() Key3 { return Key3{r.AssetKey, r.PartitionKey, r.MaterializationID} }

func (*Candidate) newTable() store { return new(rowTable[Key3, Candidate, *Candidate]) }

func (r *Candidate) evictable(_ *State, c *cut) (closed, stop bool) {
	return r.State != CandidatePending && c.Time.Sub(r.ResolvedAt) >= ClosedAfter, false
}

func (r *Candidate) reindex(s *State, old *Candidate) {
	x := s.index
	if old != nil && old.State == CandidatePending {
		x.deadlines.Delete(old.deadline())
		x.candidates--
	}
	if !r.Deleted && r.State == CandidatePending {
		x.deadlines.Set(r.deadline())
		x.candidates++
	}
}

func (r *Candidate) deadline() Deadline {
	return Deadline{At: r.ExpiresAt, Kind: DeadlineCandidate, Candidate: r.Key(), Timeout: max(r.ExpiresAt.Sub(r.BlockedAt), time.Second)}
}

// PendingCandidates returns the number of candidates that wait for a decision.
func (s *State) PendingCandidates() int { return s.index.candidates }

// CandidatesOf calls yield for the pending candidates of a partition. A partition has at most one, unless several tasks
// materialize it.
func (s *State) CandidatesOf(asset, partition string, yield func(*Candidate) bool) {
	if s.index.candidates == 0 {
		return
	}
	s.Candidates.Ascend(Key3{A: asset, B: partition}, func(r *Candidate) bool {
		if r.AssetKey != asset || r.PartitionKey != partition {
			return false
		}
		return r.State != CandidatePending || yield(r)
	})
}
