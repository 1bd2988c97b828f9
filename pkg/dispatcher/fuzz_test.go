package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// blind returns errors instead of snapshots, and counts the requests that read a snapshot.
type blind struct{ looked int }

var errBlind = errors.New("no snapshots")

func (b *blind) Current(context.Context) (*snapshot.Snapshot, error) {
	b.looked++
	return nil, errBlind
}

func (b *blind) Await(ctx context.Context, _ int64) (*snapshot.Snapshot, error) {
	return b.Current(ctx)
}

// asked is the result of a request: whether it was accepted, and the domain whose dispatcher was
// looked up.
type asked struct {
	accepted bool
	acme     *ids.Domain
}

// ask serves a request. A rejected request gets a status from 400 to 499, with a reason.
func ask(t *testing.T, r *http.Request) asked {
	t.Helper()
	var a asked
	see := &blind{}
	d := dispatcher.New(dispatcher.Config{
		Handle:    domain.Open(domain.Handle{Domain: acme, Clock: &tick{now: foldtest.Epoch}}),
		Keys:      keys,
		Snapshots: see,
		Appender:  ledger.NewAppender(ledger.Config{Domain: acme, Clock: &tick{now: foldtest.Epoch}}),
	})
	find := func(_ context.Context, named ids.Domain) (*dispatcher.Dispatcher, error) {
		a.acme = &named
		require.NoError(t, named.Validate())
		return d, nil
	}
	mux := http.NewServeMux()
	dispatcher.Register(mux, find, keys, &tick{now: foldtest.Epoch})
	control := http.NewServeMux()
	dispatcher.RegisterControl(control, find)
	mux.Handle("/v1/reconcile", control)
	mux.Handle("/v1/notifications", control)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, r.WithContext(remote.WithRights(r.Context(), remote.Rights{Sweep: true})))
	if a.accepted = see.looked > 0; a.accepted {
		require.Equal(t, http.StatusInternalServerError, answer.Code)
		require.Contains(t, answer.Body.String(), errBlind.Error())
	} else if answer.Code != http.StatusNoContent {
		require.GreaterOrEqual(t, answer.Code, http.StatusBadRequest)
		require.Less(t, answer.Code, http.StatusInternalServerError, "%s", answer.Body)
		var problem contract.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.NotEmpty(t, problem.Detail)
	}
	return a
}

func FuzzCallbackAcceptsOnlyItsAttempt(f *testing.F) {
	run, task := "01KAJ2T0000000000000000000", "raw/events"
	c := contract.Callback{
		Domain: acme, RunID: run, TaskKey: task, Attempt: 1, AttemptID: ids.AttemptID(acme, run, task, 1),
		Expires: event.At(foldtest.Epoch) + 1, Revision: 1,
	}
	other := ids.AttemptID(acme, run, task, 2)
	for _, id := range []string{c.AttemptID, other, ""} {
		for _, v := range []any{
			contract.Started{AttemptID: id, WorkerID: "w", StartedAt: 1},
			contract.Heartbeat{AttemptID: id, WorkerID: "w", HeartbeatAt: 1},
			contract.Finished{AttemptID: id, WorkerID: "w", Outcome: event.Succeeded},
		} {
			data, err := json.Marshal(v)
			require.NoError(f, err)
			f.Add(data)
		}
	}
	for _, seed := range []string{"", "null", "[]", "{", `{"attempt_id":7}`, `{"attempt_id":"` + c.AttemptID + `"}{}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, verb := range []string{contract.VerbStarted, contract.VerbHeartbeat, contract.VerbFinished} {
			c := c
			c.Verb = verb
			url := contract.CallbackURL("http://dispatcher", c, keys)
			got := ask(t, httptest.NewRequest(http.MethodPost, url, bytes.NewReader(body)))
			require.Equal(t, acme, *got.acme)
			if got.accepted {
				require.True(t, json.Valid(body))
				var about struct {
					AttemptID string `json:"attempt_id"`
				}
				require.NoError(t, json.Unmarshal(body, &about))
				require.Equal(t, c.AttemptID, about.AttemptID)
			}
			url = contract.CallbackURL("http://dispatcher", c, forged)
			require.False(t, ask(t, httptest.NewRequest(http.MethodPost, url, bytes.NewReader(body))).accepted)
		}
	})
}

func FuzzFireRequest(f *testing.F) {
	for _, seed := range []string{
		`{"timer_id":"timer:retry:x:y:1:2","generation":1}`, `{"timer_id":""}`, `{"timer_id":7}`, `{"timer_id":"x","generation":"1"}`,
		`{"timer_id":"x","generation":1e40}`, `{"timer_id":"x"}{"timer_id":"y"}`, `{"timer_id":"x"}]`, "null", "[]", "{", "",
	} {
		f.Add([]byte(seed))
	}
	url := "/v1/tenants/" + acme.Tenant + "/workspaces/" + acme.Workspace + "/timers/fire"
	f.Fuzz(func(t *testing.T, body []byte) {
		got := ask(t, httptest.NewRequest(http.MethodPost, url, bytes.NewReader(body)))
		require.Equal(t, acme, *got.acme)
		if !got.accepted {
			return
		}
		require.True(t, json.Valid(body), "text behind the body is rejected, not ignored")
		var named struct {
			TimerID string `json:"timer_id"`
		}
		require.NoError(t, json.Unmarshal(body, &named))
		require.NotEmpty(t, named.TimerID)
	})
}

func FuzzReconcileRequest(f *testing.F) {
	for _, seed := range []string{
		`{"tenant":"acme","workspace":"prod","revision":7,"sweep":true}`, `{"tenant":"acme","workspace":"prod"}`,
		`{"tenant":"acme","workspace":"prod","revision":-1}`, `{"tenant":"acme","workspace":"prod","revision":1e3}`,
		`{"tenant":"../x","workspace":"prod"}`, `{"tenant":"acme","workspace":"prod"}x`, `{"tenant":7}`, "null", "[]", "{", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := ask(t, httptest.NewRequest(http.MethodPost, "/v1/reconcile", bytes.NewReader(body)))
		if !got.accepted {
			return
		}
		require.True(t, json.Valid(body), "text behind the body is rejected, not ignored")
		var named struct {
			Tenant    string `json:"tenant"`
			Workspace string `json:"workspace"`
			Revision  int64  `json:"revision"`
		}
		require.NoError(t, json.Unmarshal(body, &named))
		require.Equal(t, ids.Domain{Tenant: named.Tenant, Workspace: named.Workspace}, *got.acme)
		require.GreaterOrEqual(t, named.Revision, int64(0))
	})
}

func FuzzManifestNotification(f *testing.F) {
	for _, key := range []string{
		manifest.Key(acme, 7), manifest.Key(acme, 1<<62), manifest.PinKey(acme, 7), "", "x",
		strings.Replace(manifest.Key(acme, 7), acme.Tenant, "..", 1),
	} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		body, err := json.Marshal(map[string]any{"message": map[string]any{"attributes": map[string]string{"objectId": key}}})
		require.NoError(t, err)
		got := ask(t, httptest.NewRequest(http.MethodPost, "/v1/notifications", bytes.NewReader(body)))
		d, _, err := manifest.ParseKey(key)
		require.Equal(t, err == nil, got.accepted)
		if err == nil {
			require.Equal(t, d, *got.acme)
		}
	})
}
