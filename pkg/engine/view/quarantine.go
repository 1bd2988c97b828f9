package view

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Quarantined describes the output of a failed task that a check has blocked, and the decision about that output. A
// decision covers all outputs of a batch.
type Quarantined struct {
	State   state.CandidateState `json:"state"`
	Outputs int                  `json:"outputs"`
	// ExpiresAt is when the output is approved or rejected automatically, unless a person decides earlier.
	ExpiresAt       event.Time `json:"expires_at"`
	ApproveOnExpiry bool       `json:"approve_on_expiry"`
	// By is the person who decided. It is "" if the output has expired or was superseded.
	By     string     `json:"by,omitempty"`
	At     event.Time `json:"at,omitempty,omitzero"`
	Reason string     `json:"reason,omitempty"`
}

// QuarantineOf describes the outputs of a failed task in quarantine, or returns nil if there are none. If a later
// output has superseded some outputs of a batch, QuarantineOf describes the others.
func QuarantineOf(s *state.State, t *state.Task) *Quarantined {
	if t.State != state.TaskFailed || s.Candidates.Len() == 0 {
		return nil
	}
	made := ids.MaterializationID(s.Domain, t.RunID, t.TaskKey)
	var q *Quarantined
	s.Candidates.Ascend(state.Key3{A: t.AssetKey}, func(row *state.Candidate) bool {
		switch {
		case row.AssetKey != t.AssetKey:
			return false
		case row.MaterializationID != made:
		case q == nil, q.State == state.CandidateSuperseded && row.State != q.State:
			q = quarantined(row)
		case q.State == row.State:
			q.Outputs++
		}
		return true
	})
	return q
}

func quarantined(row *state.Candidate) *Quarantined {
	return &Quarantined{row.State, 1, row.ExpiresAt, row.ApproveOnExpiry, row.ResolvedBy, row.ResolvedAt, row.Reason}
}

// Pending reports whether the output waits for a decision.
func (q *Quarantined) Pending() bool { return q != nil && q.State == state.CandidatePending }

// Approved reports whether the output was published.
func (q *Quarantined) Approved() bool { return q != nil && q.State == state.CandidateApproved }

// String describes the decision: "approved by ana at 2025-01-15T08:00:00Z: see ticket 7".
func (q *Quarantined) String() string {
	var text string
	switch q.State {
	case state.CandidatePending:
		text = fmt.Sprintf("in quarantine until %s, then %s", stamp(q.ExpiresAt), onExpiry(q.ApproveOnExpiry))
	case state.CandidateSuperseded:
		return fmt.Sprintf("superseded at %s: %s", stamp(q.At), q.Reason)
	case state.CandidateApproved, state.CandidateRejected:
		text = fmt.Sprintf("%s by %s at %s", strings.ToLower(string(q.State)), q.decider(), stamp(q.At))
		if q.Reason != "" {
			text += ": " + OneLine(q.Reason)
		}
	}
	return text
}

func (q *Quarantined) decider() string {
	return cmp.Or(strings.TrimPrefix(q.By, "user:"), "its expiry")
}

func onExpiry(approve bool) string {
	if approve {
		return "approved"
	}
	return "rejected"
}
