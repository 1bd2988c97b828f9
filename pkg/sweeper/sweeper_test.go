package sweeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

var (
	one   = ids.Domain{Tenant: "acme", Workspace: "one"}
	two   = ids.Domain{Tenant: "acme", Workspace: "two"}
	three = ids.Domain{Tenant: "globex", Workspace: "three"}
)

// call is what the sweeper asked for, in order.
type call struct {
	what     string
	domain   ids.Domain
	revision int64
}

// world answers a sweeper.
type world struct {
	domains    []ids.Domain
	listing    error
	folded     map[ids.Domain]int
	compacting map[ids.Domain]error
	repairing  map[ids.Domain]error
	calls      []call
	swept      []sweeper.Result
}

func (w *world) sweeper(t *testing.T) *sweeper.Sweeper {
	t.Helper()
	return sweeper.New(sweeper.Config{
		Domains: func(context.Context) ([]ids.Domain, error) { return w.domains, w.listing },
		Compact: func(_ context.Context, d ids.Domain, r compactor.Request) (compactor.Result, error) {
			require.True(t, r.Barrier, "what nobody announced is found by listing")
			w.calls = append(w.calls, call{what: "compact", domain: d})
			return compactor.Result{Revision: 7, Folded: w.folded[d]}, w.compacting[d]
		},
		Repair: func(_ context.Context, d ids.Domain, revision int64) error {
			w.calls = append(w.calls, call{"repair", d, revision})
			return w.repairing[d]
		},
		OnSwept: func(r sweeper.Result, _ error) { w.swept = append(w.swept, r) },
		Logger:  slog.New(slog.DiscardHandler),
	})
}

func TestEachDomainIsFoldedFirstAndThenRepaired(t *testing.T) {
	w := &world{domains: []ids.Domain{one, two}, folded: map[ids.Domain]int{two: 3}}
	result, err := w.sweeper(t).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, sweeper.Result{Domains: 2, Folded: 3}, result)
	require.Equal(t, []call{{"compact", one, 0}, {"repair", one, 7}, {"compact", two, 0}, {"repair", two, 7}}, w.calls)
	require.Equal(t, []sweeper.Result{result}, w.swept)
}

func TestADomainThatFailsKeepsNoOtherFromBeingSwept(t *testing.T) {
	w := &world{
		domains: []ids.Domain{one, two, three}, folded: map[ids.Domain]int{two: 1, three: 2},
		compacting: map[ids.Domain]error{one: errors.New("store away")}, repairing: map[ids.Domain]error{two: errors.New("queue away")},
	}
	result, err := w.sweeper(t).Sweep(t.Context())
	require.ErrorContains(t, err, "sweep acme/one: store away")
	require.ErrorContains(t, err, "sweep acme/two: queue away")
	require.Equal(t, sweeper.Result{Domains: 3, Folded: 3, Failed: 2}, result)
	require.Equal(t, []call{{"compact", one, 0}, {"compact", two, 0}, {"repair", two, 7}, {"compact", three, 0}, {"repair", three, 7}}, w.calls,
		"a state that may lack something is not repaired")
}

func TestASweepOverHTTPSaysWhatItCameTo(t *testing.T) {
	w := &world{domains: []ids.Domain{one}, folded: map[ids.Domain]int{one: 2}}
	mux := http.NewServeMux()
	sweeper.Register(mux, w.sweeper(t))
	server := httptest.NewServer(mux)
	defer server.Close()
	post := func() (int, *json.Decoder) {
		res, err := http.Post(server.URL+"/v1/sweep", "", nil) //nolint:gosec // of this test
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.StatusCode, json.NewDecoder(res.Body)
	}
	status, body := post()
	var result sweeper.Result
	require.NoError(t, body.Decode(&result))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, sweeper.Result{Domains: 1, Folded: 2}, result)

	w.listing = errors.New("store away")
	status, body = post()
	var problem contract.Problem
	require.NoError(t, body.Decode(&problem))
	require.Equal(t, http.StatusInternalServerError, status)
	require.Equal(t, "list domains to sweep: store away", problem.Detail)
}
