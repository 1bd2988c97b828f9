package worker

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// If a check blocks an output and the asset has a quarantine, the output gets the marker _quarantine.json instead of
// the commit marker. Readers and other tasks look for commit markers, so they do not find the output until a decision
// publishes it.
//
// A check may have different results in two executions of a task. So one execution may create the commit marker, and
// the other one the quarantine marker. The report of the current attempt decides which of the two markers counts.

func (a *attempt) quarantineKey() string {
	return contract.QuarantineMarkerKey(a.domain, a.asset, a.env.PartitionKey, a.env.MaterializationID)
}

// finishedBefore returns the output that an existing marker names: the commit marker or, if there is none, the
// quarantine marker. The result found is false if there is neither.
func (a *attempt) finishedBefore(ctx context.Context, t *work) (output *event.Output, found bool, err error) {
	marker, err := a.existing(ctx, a.markerKey())
	if err != nil {
		return nil, false, err
	}
	if marker != nil {
		output, err = a.adopt(ctx, t, marker)
		return output, true, err
	}
	if t.Quarantine == nil {
		return nil, false, nil
	}
	if marker, err = a.existing(ctx, a.quarantineKey()); err != nil || marker == nil {
		return nil, false, err
	}
	output, err = a.adoptBlocked(marker)
	return output, true, err
}

// adoptBlocked returns the output that an existing quarantine marker names, and the error of its checks.
func (a *attempt) adoptBlocked(m *contract.CommitMarker) (*event.Output, error) {
	a.checkResults, a.codeChanged, a.overruled = slices.Clone(m.Checks), m.CodeChanged, true
	if err := a.gate(m.Checks, nil); err != nil {
		return m.Output(), err
	}
	return nil, permanent(CodeInvalidMarker, "marker %s has no check that blocks the output", a.quarantineKey())
}

// quarantine stores an output that a POST check has blocked, if the asset has a quarantine. It returns the output and
// the error of the checks. If the output could not be stored, but a retry may succeed, quarantine returns the error of
// the store. It then drops the results of the checks, because the next attempt repeats everything. If no retry can
// store the output, quarantine returns only the error of the checks.
func (a *attempt) quarantine(ctx context.Context, t *work, made []outputFile, blocked error) (*event.Output, error) {
	if t.Quarantine == nil || !t.HasFiles() || !slices.ContainsFunc(a.checkResults, blocksOutput) {
		return nil, blocked
	}
	marker, err := phase(ctx, a, "quarantine", func(ctx context.Context) (*contract.CommitMarker, error) {
		return a.commit(ctx, a.quarantineKey(), made)
	})
	if f, known := errors.AsType[*failure](err); known && !f.retryable {
		a.log.WarnContext(ctx, "could not store the output that a check has blocked", "error", a.masked(err))
		return nil, blocked
	}
	if err != nil {
		a.checkResults = nil
		return nil, err
	}
	if marker.AttemptID != a.env.AttemptID || marker.Nonce != a.nonce {
		return a.adoptBlocked(marker)
	}
	return marker.Output(), blocked
}

// blocksOutput reports whether a result of a POST check blocks the output.
func blocksOutput(r event.CheckResult) bool {
	return r.Phase == quality.Post && quality.Blocks(&r) && !r.Broken
}
