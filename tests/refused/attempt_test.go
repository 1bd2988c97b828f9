package refused_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

var (
	acme   = ids.Domain{Tenant: "acme", Workspace: "prod"}
	globex = ids.Domain{Tenant: "globex", Workspace: "prod"}
)

type snap = state.State

// refusing is a cluster whose services receive invalid requests. Instead of executing tasks, its worker passes the
// pushed envelopes to the test.
type refusing struct {
	*clustertest.Cluster

	stranger *identitytest.Issuer // an issuer that the services do not trust
	pushed   chan *contract.Envelope
	ended    chan struct{}
	// worker is a real worker, to which only the tests push.
	worker *workerUnderTest
}

func start(t *testing.T) *refusing {
	t.Helper()
	c := &refusing{stranger: identitytest.New(t, clock.System{}.Now), pushed: make(chan *contract.Envelope, 2), ended: make(chan struct{})}
	t.Cleanup(func() { close(c.ended) })
	c.Cluster = clustertest.Start(t, clustertest.Options{Worker: http.HandlerFunc(c.execute)})
	c.worker = c.openWorker()
	return c
}

// execute receives an envelope and does not answer, so that its task stays running until the
// test ends it.
func (c *refusing) execute(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	env, err := contract.Open(body, c.WorkerKeys, event.At(clock.System{}.Now()))
	if err != nil {
		c.T.Errorf("pushed: %v", err)
		return
	}
	c.pushed <- env
	select {
	case <-c.ended:
	case <-r.Context().Done():
	}
}

func (c *refusing) sign(by *identitytest.Issuer, claims identitytest.Claims) string {
	token, err := by.Sign(claims)
	require.NoError(c.T, err)
	return token
}

// attempt is an attempt whose start was reported.
type attempt struct {
	env *contract.Envelope
	// The fields calls and issued contain the same callbacks: calls has them in the form of version 1.0 of the worker
	// contract, and issued in the form of version 1.1.
	calls, issued contract.Callbacks
}

// toLegacy moves the signatures of callbacks into their URLs, as in contract 1.0.
func toLegacy(c contract.Callbacks) contract.Callbacks {
	sign := func(url, authorization string) string {
		if url == "" {
			return ""
		}
		return url + "&sig=" + strings.TrimPrefix(authorization, contract.AuthScheme+" ")
	}
	return contract.Callbacks{
		Started: sign(c.Started, c.Authorization.Started), Heartbeat: sign(c.Heartbeat, c.Authorization.Heartbeat),
		Finished: sign(c.Finished, c.Authorization.Finished),
	}
}

// startAttempt begins a run of one task in a domain, reports the start of the task as a worker does, and waits until
// the services have nothing left to write.
func (c *refusing) startAttempt(d ids.Domain) *attempt {
	c.T.Helper()
	_, err := c.Engine(d).Run(c.T.Context(), engine.RunRequest{
		Plan: plan.Request{Root: c.T.TempDir(), All: true, Assets: []plan.Asset{{
			Key: ids.AssetKey{Namespace: "raw", Name: "a"}, Work: plan.Work{Command: []string{"true"}},
		}}},
		Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(c.T, err)
	a := &attempt{env: <-c.pushed}
	a.issued = a.env.Callbacks
	a.env.Callbacks = toLegacy(a.env.Callbacks)
	status, answer := c.send(c.T, request{url: a.env.Callbacks.Started, body: a.started()})
	require.Equal(c.T, http.StatusOK, status, answer)
	var started contract.StartedResponse
	require.NoError(c.T, json.Unmarshal([]byte(answer), &started))
	a.issued.Finished, a.issued.Authorization.Finished = started.Callbacks.Finished, started.Callbacks.Authorization.Finished
	a.calls = toLegacy(started.Callbacks)
	c.await(d, func(s *snap) bool {
		for row := range s.Outbox.All {
			if row.Status == state.DispatchPending {
				return false
			}
		}
		for row := range s.Timers.All {
			if row.State == state.TimerScheduled && row.EnqueuedAt == 0 {
				return false
			}
		}
		return s.Tasks.Get(state.Key2{A: a.env.RunID, B: a.env.TaskKey}).State == state.TaskRunning
	})
	return a
}

// await waits until the state of a domain satisfies a condition and all entries of the ledger are recorded in it.
func (c *refusing) await(d ids.Domain, holds func(*snap) bool) {
	c.T.Helper()
	reader := c.Reader(d)
	c.Eventually("the state of "+d.String(), func() bool {
		current, err := reader.Current(c.T.Context())
		if err != nil || !holds(current.State) {
			return false
		}
		for _, key := range c.ledger(d) {
			if _, entry, err := ledger.ParseKey(key); err != nil || !current.State.HasEntry(entry) {
				return false
			}
		}
		return true
	})
}

// prefix returns the folder of an execution of the attempt.
func (a *attempt) prefix() string {
	asset, err := ids.ParseAssetKey(a.env.AssetKey)
	if err != nil {
		panic(err)
	}
	return contract.ExecutionPrefix(a.env.Domain(), asset, a.env.PartitionKey, a.env.MaterializationID, a.env.AttemptID, "n")
}

func (a *attempt) started() *contract.Started {
	return &contract.Started{AttemptID: a.env.AttemptID, WorkerID: "w", StartedAt: event.At(clock.System{}.Now())}
}

func (a *attempt) beat() *contract.Heartbeat {
	return &contract.Heartbeat{AttemptID: a.env.AttemptID, WorkerID: "w", HeartbeatAt: event.At(clock.System{}.Now())}
}

func (a *attempt) finished() *contract.Finished {
	now := event.At(clock.System{}.Now())
	return &contract.Finished{
		AttemptID: a.env.AttemptID, WorkerID: "w", Outcome: event.Succeeded, MaterializationID: a.env.MaterializationID, StartedAt: now, CompletedAt: now,
		Output: &event.Output{URI: a.prefix()},
	}
}
