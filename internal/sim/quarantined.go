package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// Each check of an asset is named after its severity.
const (
	criticalCheck = "critical"
	errorCheck    = "error"
	warningCheck  = "warning"
)

// drawChecks gives checks to some assets of half of the worlds.
func (c *World) drawChecks() {
	if r := random(c.Seed, "checks", 0); r.IntN(2) == 0 {
		c.Checked = 1 + r.IntN(1000)
	}
}

// hasChecks reports whether an asset has checks.
func (l *workload) hasChecks(asset string) bool {
	return !l.bare(asset) && random(l.w.cfg.Seed, "checked "+asset, 0).IntN(1000) < l.w.cfg.Checked
}

// addChecks adds checks and a quarantine to some assets.
func (l *workload) addChecks(a *plan.Asset) {
	if !l.hasChecks(a.Key.String()) {
		return
	}
	check := func(name string, s quality.Severity) quality.Check {
		return quality.Check{Name: name, Kind: quality.SQL, SQL: "SELECT 1", Severity: s}
	}
	a.Work.Checks = []quality.Check{check(criticalCheck, ""), check(errorCheck, quality.Error), check(warningCheck, quality.Warning)}
	a.Work.Quarantine = l.quarantine(a.Key.String())
}

// quarantine returns the quarantine of an asset with checks, or nil.
func (l *workload) quarantine(asset string) *event.Quarantine {
	r := random(l.w.cfg.Seed, "quarantine "+asset, 0)
	if r.IntN(4) == 0 {
		return nil
	}
	return &event.Quarantine{ExpiresSec: int64(20 + r.IntN(1200)), Approve: r.IntN(3) == 0}
}

// fails reports whether a check of an attempt fails. For some assets, the results of checks differ between attempts.
func (l *workload) fails(runID, taskKey string, attempt int32, check string) bool {
	asset := assetOf(taskKey)
	if !l.hasChecks(asset) {
		return false
	}
	text := fmt.Sprintf("check %s of %s %s", check, runID, taskKey)
	if random(l.w.cfg.Seed, "flaky "+asset, 0).IntN(4) == 0 {
		text += fmt.Sprint(attempt)
	}
	return random(l.w.cfg.Seed, text, 0).IntN(4) == 0
}

// check executes a check of a task. It is a [worker.Checker].
func (l *workload) check(_ context.Context, e worker.Execution, c *quality.Check) (quality.Measured, error) {
	m := quality.Measured{Rows: 1}
	if l.fails(e.RunID, e.TaskKey, e.Attempt, c.Name) {
		m.Failing = 1
	}
	return m, nil
}

// drawDecisions inserts decisions about outputs in quarantine into the scripts.
func (l *workload) drawDecisions(span time.Duration) {
	if l.w.cfg.Checked == 0 {
		return
	}
	r := random(l.w.cfg.Seed, "decisions", 0)
	for range 1 + r.IntN(10) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askResolve, project: l.projects[r.IntN(len(l.projects))], force: r.IntN(3) > 0}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// resolve approves or rejects an output in quarantine.
func (c *client) resolve(ctx context.Context, e *engine.Engine, approve bool) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	all, err := engine.Candidates(snap.State)
	if err != nil || len(all) == 0 {
		return err
	}
	decision := event.DecisionReject
	if approve {
		decision = event.DecisionApprove
	}
	err = e.Resolve(ctx, all[c.rng.IntN(len(all))], decision, "because")
	if errors.Is(err, engine.ErrResolved) {
		return nil
	}
	c.p.machine.w.fault("output in quarantine: " + decision)
	return err
}

// noteApprovals remembers the approvals that a ledger entry contains.
func (f *followed) noteApprovals(data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.QuarantineResolved); ok && p.Decision == event.DecisionApprove {
				f.approved[p.MaterializationID] = true
			}
		}
	}
}

// markerOf returns the marker that names an output, or nil.
func (o *oracle) markerOf(uri string) *contract.CommitMarker {
	m, _, err := contract.FindMarker(uri, func(key string) ([]byte, error) {
		data, _, err := o.w.blobs.Get(context.Background(), key)
		return data, err
	}, func(err error) bool { return errors.Is(err, blob.ErrNotFound) })
	if err != nil || m.URI != uri {
		return nil
	}
	return m
}

// publishedByDecision reports whether a recorded decision published an output: a command of the ledger, or the expiry
// that its asset declares.
func (o *oracle) publishedByDecision(f *followed, m *contract.CommitMarker) bool {
	row := f.state.Candidates.Get(state.Key3{A: m.AssetKey, B: m.PartitionKey, C: m.MaterializationID})
	if row == nil || row.State != state.CandidateApproved {
		return false
	}
	q := o.w.load.quarantine(m.AssetKey)
	return f.approved[m.MaterializationID] || row.CommandID == "" && q != nil && q.Approve && row.ResolvedAt >= row.ExpiresAt
}

// checkAudits checks every output that became visible: either its checks have passed, or a decision has published it.
func (o *oracle) checkAudits(f *followed, before, after *state.State) {
	if o.w.cfg.Checked == 0 {
		return
	}
	const invariant = "I-23 published means audited"
	for row := range changed(f, after.Partitions) {
		if was := before.Partitions.Get(row.Key()); was == row || row.OutputURI == "" || was != nil && was.MaterializationID == row.MaterializationID {
			continue
		}
		m := o.markerOf(row.OutputURI)
		if m == nil {
			continue // other checks report the missing marker
		}
		if row.Quality == state.Approved {
			o.w.fault("output approved")
			if !o.publishedByDecision(f, m) {
				o.violation(invariant, "%s shows output %s of run %s, which nobody has approved", row.TaskKey, row.MaterializationID, row.RunID)
			}
			continue
		}
		l := o.w.load
		if l.fails(m.RunID, m.TaskKey, m.Attempt, criticalCheck) {
			o.violation(invariant, "%s shows output %s of run %s, which a check has blocked", row.TaskKey, row.MaterializationID, row.RunID)
		}
		if degraded := l.fails(m.RunID, m.TaskKey, m.Attempt, errorCheck); l.hasChecks(row.AssetKey) && degraded != (row.Quality == state.Degraded) {
			o.violation(invariant, "%s has the quality %q", row.TaskKey, row.Quality)
		}
	}
	for row := range changed(f, after.Candidates) {
		if before.Candidates.Get(row.Key()) == nil {
			o.w.fault("output in quarantine")
			if m := o.markerOf(row.OutputURI); m != nil && !o.w.load.fails(m.RunID, m.TaskKey, m.Attempt, criticalCheck) {
				o.violation(invariant, "output %s of run %s is in quarantine, but its checks have passed", row.MaterializationID, row.RunID)
			}
		}
	}
}

// auditInputs lets the oracle check the inputs of a task.
func (w *world) auditInputs(p *process, e worker.Execution) error {
	if w.cfg.Checked == 0 || len(e.Inputs) == 0 {
		return nil
	}
	k := &call{proc: p, label: fmt.Sprintf("audit %s %s/%d", e.RunID, e.TaskKey, e.Attempt)}
	k.begin = func() {
		for _, uri := range e.Inputs {
			w.oracle.auditInput(e, uri)
		}
		close(k.done)
	}
	return w.park(context.Background(), k)
}

// auditInput checks that a task reads no output that a check has blocked, unless a decision published
// it before the run was planned.
func (o *oracle) auditInput(e worker.Execution, uri string) {
	for _, f := range o.domains {
		if !strings.HasPrefix(uri, contract.AssetsPrefix(f.domain)) {
			continue
		}
		m := o.markerOf(uri)
		if m == nil || !o.w.load.fails(m.RunID, m.TaskKey, m.Attempt, criticalCheck) {
			return
		}
		o.w.fault("approved output read")
		if m.RunID == e.RunID || !o.publishedByDecision(f, m) && !f.broken {
			o.violation("I-23 published means audited", "attempt %d of task %s of run %s reads %s, which a check has blocked", e.Attempt, e.TaskKey, e.RunID, uri)
		}
	}
}

// explainedByCheck reports whether a failed check explains the failure of a task.
func (o *oracle) explainedByCheck(t *state.Task) bool {
	for attempt := int32(1); attempt <= t.Attempt; attempt++ {
		if o.w.load.fails(t.RunID, t.TaskKey, attempt, criticalCheck) {
			return true
		}
	}
	return false
}

// deletingCandidate checks that the collector deletes no object of an output in quarantine.
func (o *oracle) deletingCandidate(p *process, f *followed, key, materialization string) {
	for row := range f.state.Candidates.All {
		if row.State == state.CandidatePending && row.MaterializationID == materialization && !f.broken {
			o.violation("collection", "%s deletes %s, which is in quarantine", p.id, key)
		}
	}
}

// pendingOutputs returns the materializations in quarantine.
func pendingOutputs(s *state.State) map[string]bool {
	found := map[string]bool{}
	for row := range s.Candidates.All {
		if row.State == state.CandidatePending {
			found[row.MaterializationID] = true
		}
	}
	return found
}

// readOf returns the materialization of an input that a task has read, or "" if it was in
// quarantine when the task ran.
func (o *oracle) readOf(f *followed, runID string, in *plan.Input, visible *state.Partition) string {
	if in.TaskKey == "" {
		return in.MaterializationID
	}
	if visible != nil && visible.Quality == state.Approved {
		return ""
	}
	return ids.MaterializationID(f.domain, runID, in.TaskKey)
}
