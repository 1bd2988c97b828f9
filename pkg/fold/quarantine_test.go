package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

const hour = 3600

// guarded returns the definition of a task with a check and a quarantine.
func guarded(key string, q event.Quarantine) event.TaskDef {
	def := foldtest.Retrying(key, 3)
	def.Checks, def.Quarantine = []string{"c"}, &q
	return def
}

// blockedBy returns a worker's report that a check has blocked the output of an attempt.
func blockedBy(w *foldtest.World, run, key string) *event.TaskFinished {
	p := w.Finished(run, key, 1, event.Failed)
	p.Error = &event.Error{Code: fold.CodeCheckFailed, Message: "check c: it failed"}
	p.CheckResults = []event.CheckResult{{Name: "c", Phase: "POST", Message: "3 of 9 rows", Sample: "s.parquet"}}
	p.Output = &event.Output{URI: "assets/" + run + "/" + key + "/blocked/", RowCount: 9, ByteSize: 5, SchemaHash: "h"}
	return p
}

// published returns a worker's report that task a has succeeded and that its check has passed.
func published(w *foldtest.World, run string) *event.TaskFinished {
	p := w.Finished(run, "a", 1, event.Succeeded)
	p.CheckResults = []event.CheckResult{{Name: "c", Phase: "POST", Passed: true}}
	return p
}

func candidate(w *foldtest.World, run string) *state.Candidate {
	return w.State.Candidates.Get(state.Key3{A: "test/a", C: ids.MaterializationID(foldtest.Domain, run, "a")})
}

func decide(w *foldtest.World, run, decision string) fold.Result {
	return w.Fold(&event.QuarantineResolved{
		CommandID: w.ID(), Asset: "test/a", MaterializationID: ids.MaterializationID(foldtest.Domain, run, "a"), Decision: decision, Reason: "r",
	})
}

func visible(w *foldtest.World) *state.Partition {
	return w.State.Partitions.Get(state.Key2{A: "test/a"})
}

func TestQuarantineKeepsBlockedOutput(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, run, "a"))
	require.Equal(t, state.TaskFailed, w.Task(run, "a").State, "no attempt follows")
	require.Nil(t, visible(w))
	row := candidate(w, run)
	require.Equal(t, state.CandidatePending, row.State)
	require.Equal(t, event.At(w.Now.Add(time.Hour)), row.ExpiresAt)
	require.JSONEq(t, `[{"check": "c", "message": "3 of 9 rows", "sample": "s.parquet"}]`, row.FailedChecks)
	require.NotNil(t, w.Timer(event.TimerLiveness), "it expires although no run is live")
	require.Equal(t, 1, w.State.PendingCandidates())
}

func TestQuarantineNeedsSettingAndOutput(t *testing.T) {
	w := foldtest.New(t)
	plain := guarded("a", event.Quarantine{})
	plain.Quarantine = nil
	run := w.Run(plain, guarded("b", event.Quarantine{ExpiresSec: hour}), guarded("c", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, run, "a"))
	noOutput := blockedBy(w, run, "b") // a check blocks b before the task has made an output
	noOutput.Output = nil
	w.MustFold(noOutput)
	w.MustFold(&event.RunCancelRequested{RunID: run})
	w.Fold(blockedBy(w, run, "c"))
	require.Zero(t, w.State.Candidates.Len())
}

// TestApprovalShowsCandidate approves an output. The output becomes visible. Its version is the sequence number of
// the approval, but its inputs are those that its task read.
func TestApprovalShowsCandidate(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, run, "a"))
	made := w.State.FoldSeq
	w.Pass(time.Minute)
	require.Equal(t, state.Folded, decide(w, run, event.DecisionApprove).Row.Outcome)
	row := visible(w)
	require.Equal(t, state.Approved, row.Quality)
	require.Equal(t, blockedBy(w, run, "a").Output.URI, row.OutputURI)
	require.Equal(t, w.State.FoldSeq, row.VersionSeq)
	require.Equal(t, made, row.LeftOut, "it has read nothing that its chain made later")
	require.Equal(t, run, row.Root())
	require.Empty(t, row.ReadIn(), "no task of its chain has read it")
	require.Equal(t, state.CandidateApproved, candidate(w, run).State)
	require.Nil(t, w.Timer(event.TimerLiveness))
	require.Equal(t, state.Stale, decide(w, run, event.DecisionReject).Row.Outcome)
	require.NotNil(t, visible(w))
}

func TestRejectionKeepsVisibleOutput(t *testing.T) {
	w := foldtest.New(t)
	first := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(published(w, first))
	w.Pass(time.Second)
	second := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, second, "a"))
	require.Equal(t, state.Folded, decide(w, second, event.DecisionReject).Row.Outcome)
	require.Equal(t, first, visible(w).RunID)
	require.Equal(t, state.CandidateRejected, candidate(w, second).State)
	require.Equal(t, state.Stale, decide(w, second, event.DecisionApprove).Row.Outcome)
	require.Equal(t, first, visible(w).RunID)
}

func TestCandidateExpires(t *testing.T) {
	for _, approve := range []bool{false, true} {
		w := foldtest.New(t)
		run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour, Approve: approve}))
		w.MustFold(blockedBy(w, run, "a"))
		w.Pass(3 * time.Hour) // a late call delays only deadlines that depend on workers
		w.MustFold(w.Fire(w.Timer(event.TimerLiveness)))
		row := candidate(w, run)
		require.Equal(t, map[bool]state.CandidateState{true: state.CandidateApproved, false: state.CandidateRejected}[approve], row.State)
		require.Equal(t, "expired after 1h0m0s", row.Reason)
		require.Equal(t, approve, visible(w) != nil)
	}
}

// TestLateDecisionLosesToExpiry makes a decision after the expiry, but before the timer fires.
func TestLateDecisionLosesToExpiry(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, run, "a"))
	w.Pass(time.Hour)
	decide(w, run, event.DecisionApprove)
	require.Equal(t, state.CandidateRejected, candidate(w, run).State)
	require.Nil(t, visible(w))
}

func TestQuarantineLimit(t *testing.T) {
	w := foldtest.New(t)
	for i := range state.MaxCandidates {
		row := &state.Candidate{AssetKey: "test/x", PartitionKey: ids.Partition{"n": string(rune('A' + i))}.Key(), MaterializationID: "M", State: state.CandidatePending, FailedChecks: "[]"}
		row.ExpiresAt = event.At(w.Now.Add(time.Hour))
		w.State.Candidates.Put(row)
	}
	g := w.Group(w.Triggered(&event.RunTriggered{RunID: w.ID()}, guarded("a", event.Quarantine{ExpiresSec: hour}))...)
	fold.Apply(w.State, g)
	run := g.Events[0].Payload.(*event.RunTriggered).RunID
	fold.Apply(w.State, w.Group(blockedBy(w, run, "a")))
	require.Equal(t, state.CandidateRejected, candidate(w, run).State)
	require.Contains(t, candidate(w, run).Reason, "the quarantine is full: 10000 outputs")
}

// TestCheckFailedIsNeverRetried reports failed checks in the forms that workers without support for checks use.
func TestCheckFailedIsNeverRetried(t *testing.T) {
	for name, report := range map[string]func(*event.TaskFinished){
		"a retryable code":    func(p *event.TaskFinished) { p.Error.Code, p.Error.Retryable = fold.CodeCheckFailed, true },
		"a result of a check": func(p *event.TaskFinished) { p.CheckResults = []event.CheckResult{{Name: "c"}} },
		"a lost worker's code": func(p *event.TaskFinished) {
			p.Error.Code, p.CheckResults = fold.CodeWorkerInterrupted, []event.CheckResult{{Name: "c"}}
		},
	} {
		w := foldtest.New(t)
		def := guarded("a", event.Quarantine{ExpiresSec: hour})
		def.RetryOn = []string{"quality", fold.CodeCheckFailed}
		run := w.Run(def)
		p := w.Finished(run, "a", 1, event.Failed)
		report(p)
		w.MustFold(p)
		require.Equal(t, state.TaskFailed, w.Task(run, "a").State, name)
		require.Equal(t, fold.CodeCheckFailed, w.Task(run, "a").ErrorCode, name)
	}
	w := foldtest.New(t)
	run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	broken := w.Finished(run, "a", 1, event.Failed)
	broken.CheckResults = []event.CheckResult{{Name: "c", Broken: true}}
	w.MustFold(broken)
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State, "a broken check may work at the next attempt")
}

// TestI23VisibleOutputIsLatestAllowed runs a partition in several overlapping runs. Reports and decisions arrive in
// any order. The visible output always belongs to the latest run whose checks have passed or whose output was
// approved. Every pending candidate is later than this output.
func TestI23VisibleOutputIsLatestAllowed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := foldtest.New(r)
		n := rapid.IntRange(1, 4).Draw(r, "runs")
		runs := make([]string, n)
		for i := range runs {
			runs[i] = w.Run(guarded("a", event.Quarantine{ExpiresSec: hour, Approve: rapid.Bool().Draw(r, "approve")}))
			w.Pass(time.Second)
		}
		passed := make([]bool, n)
		for _, i := range rapid.Permutation(upTo(n)).Draw(r, "order") {
			if passed[i] = rapid.Bool().Draw(r, "passes"); passed[i] {
				w.MustFold(published(w, runs[i]))
			} else {
				w.MustFold(blockedBy(w, runs[i], "a"))
			}
			w.Pass(time.Second)
			switch j := rapid.IntRange(0, n-1).Draw(r, "which"); rapid.IntRange(0, 4).Draw(r, "then") {
			case 0:
				decide(w, runs[j], event.DecisionApprove)
			case 1:
				decide(w, runs[j], event.DecisionReject)
			case 2:
				w.Pass(2 * time.Hour)
				if timer := w.Timer(event.TimerLiveness); timer != nil {
					w.Fold(w.Fire(timer))
				}
			}
			want := ""
			for k, run := range runs {
				if c := candidate(w, run); c != nil && c.State == state.CandidateApproved || passed[k] && w.Task(run, "a").State == state.TaskSucceeded {
					want = run
				}
			}
			if row := visible(w); row == nil {
				require.Empty(r, want)
			} else {
				require.Equal(r, want, row.RunID)
			}
		}
	})
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestApprovalEndsAlerts approves an output of a partition. This ends the alert about the partition, as a success
// does.
func TestApprovalEndsAlerts(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(w *alerted, run string)
		open bool
	}{
		{"approved", func(w *alerted, run string) { decide(w.World, run, event.DecisionApprove) }, false},
		{"rejected", func(w *alerted, run string) { decide(w.World, run, event.DecisionReject) }, true},
		{"expired", func(w *alerted, _ string) {
			w.Pass(3 * time.Hour)
			w.MustFold(w.Fire(w.Timer(event.TimerLiveness)))
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newAlerted(t, rule("failures", event.CauseQuarantined), rule("over", event.CauseRecovered))
			run := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour, Approve: true}))
			w.MustFold(blockedBy(w.World, run, "a"))
			require.Len(t, w.send(event.NotificationSent), 1)
			test.end(w, run)
			alert := w.State.Alerts.Get(state.Key3{A: "asset:test/a", B: event.CauseQuarantined, C: "failures"})
			require.Equal(t, test.open, alert != nil && alert.Open(), "an alert that has been over for long is deleted")
			sent := w.send(event.NotificationSent)
			if test.open {
				require.Empty(t, sent, "the partition still has no new output")
				return
			}
			require.Len(t, sent, 1)
			require.Equal(t, event.CauseRecovered, sent[0].Cause)
			require.Equal(t, event.CauseQuarantined, sent[0].Code)
		})
	}
}
