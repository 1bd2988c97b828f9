package compactor_test

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

	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

const fuzzedEntry = "01KAJ2T0000000000000000000"

// push is a Pub/Sub push of an object notification.
func push(attributes map[string]string, payload string) []byte {
	data, err := json.Marshal(map[string]any{
		"message":      map[string]any{"attributes": attributes, "data": []byte(payload), "messageId": "1"},
		"subscription": "projects/p/subscriptions/s",
	})
	if err != nil {
		panic(err)
	}
	return data
}

// post asks the compactor's routes. It gives the answer, and the domain that was
// looked for, if the request was taken.
func post(t *testing.T, route string, body []byte) (*httptest.ResponseRecorder, *ids.Domain) {
	t.Helper()
	var asked *ids.Domain
	mux := http.NewServeMux()
	compactor.Register(mux, func(_ context.Context, d ids.Domain) (*compactor.Compactor, error) {
		asked = &d
		return nil, errors.New("there is none here")
	})
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, granted(httptest.NewRequest(http.MethodPost, route, bytes.NewReader(body))))
	if asked != nil {
		require.NoError(t, asked.Validate(), "nobody opens a domain of that name")
		require.Equal(t, http.StatusInternalServerError, answer.Code)
		return answer, asked
	}
	if answer.Code != http.StatusNoContent {
		require.Equal(t, http.StatusBadRequest, answer.Code, "what is malformed is not to be sent again")
		var problem contract.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.NotEmpty(t, problem.Detail)
	}
	return answer, nil
}

func FuzzNotificationsNameAnObjectOrAreRefused(f *testing.F) {
	key := ledger.Key(foldtest.Domain, fuzzedEntry)
	for _, seed := range [][]byte{
		push(map[string]string{"objectId": key, "eventType": "OBJECT_FINALIZE"}, ""), push(nil, `{"name":"`+key+`"}`),
		push(map[string]string{"objectId": manifest.Key(foldtest.Domain, 7)}, "{}"), push(map[string]string{"objectId": ""}, "["),
		push(nil, `{"name":7}`), push(nil, ""), push(map[string]string{"objectId": strings.Replace(key, "acme", "../x", 1)}, ""),
		[]byte(`{"message":{"data":"?"}}`), []byte(`{"message":{"attributes":{"objectId":7}}}`), []byte(`{"message":null}`),
		[]byte("null"), []byte("[]"), []byte("{"), nil,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		answer, asked := post(t, "/v1/notifications", body)
		object, err := compactor.NotifiedObject(bytes.NewReader(body))
		if errors.Is(err, compactor.ErrNoObject) {
			require.Equal(t, http.StatusNoContent, answer.Code)
			return
		}
		if err != nil {
			require.ErrorContains(t, err, "push")
			require.Equal(t, http.StatusBadRequest, answer.Code)
			return
		}
		require.NotEmpty(t, object)
		domain, _, err := ledger.ParseKey(object)
		require.Equal(t, err == nil, asked != nil, "what is no ledger entry is acknowledged, and nothing is done")
		if err == nil {
			require.Equal(t, domain, *asked)
		}
		for _, again := range [][]byte{push(map[string]string{"objectId": object}, ""), push(nil, `{"name":`+quote(object)+`}`)} {
			read, err := compactor.NotifiedObject(bytes.NewReader(again))
			require.NoError(t, err)
			require.Equal(t, object, read)
		}
	})
}

func quote(s string) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func FuzzRequestsToCompactAreOfADomainOrRefused(f *testing.F) {
	for _, seed := range []string{
		`{"tenant":"acme","workspace":"prod","entries":["` + fuzzedEntry + `"],"barrier":true}`, `{"tenant":"acme","workspace":"prod"}`,
		`{"tenant":"acme","workspace":"prod","entries":["x"]}`, `{"tenant":"../x","workspace":"prod"}`, `{"tenant":"acme"}`,
		`{"tenant":"acme","workspace":"prod","entries":[` + strings.Repeat(`"x",`, 10_001) + `"x"]}`,
		`{"tenant":7}`, `{"entries":{}}`, "null", "[]", "{", "", `{"tenant":"acme","workspace":"prod"}{"barrier":true}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, asked := post(t, "/v1/compact", body)
		if asked == nil {
			return
		}
		var named struct {
			Tenant, Workspace string
			Entries           []string
		}
		require.NoError(t, json.Unmarshal(body, &named), "all of it counts")
		require.Equal(t, ids.Domain{Tenant: named.Tenant, Workspace: named.Workspace}, *asked)
		for _, entry := range named.Entries {
			require.True(t, ids.Valid(entry))
		}
	})
}

// A plan by reference is tasks that the fold takes, or the reason why it is none:
// never an error that would have the ledger wait for it.
func FuzzPlansByReferenceAreTasksOrAReason(f *testing.F) {
	type doc struct {
		Tasks []event.TaskDef `json:"tasks"`
	}
	good, err := json.Marshal(doc{[]event.TaskDef{foldtest.Task("a"), foldtest.Task("b", "a")}})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), string(good) + "x", `{"tasks":[{"task_key":"a","depends_on":["a"]}]}`,
		`{"tasks":[{"task_key":"a"},{"task_key":"a"}]}`, `{"tasks":[{"task_key":""}]}`, `{"tasks":[null]}`, `{"tasks":{}}`,
		`{"tasks":[{"task_key":"a","max_attempts":-1}]}`, "{}", "null", "[]", "",
	} {
		f.Add([]byte(seed))
	}
	ref := "plans/" + foldtest.Domain.Path() + "/x.json"
	f.Fuzz(func(t *testing.T, data []byte) {
		fetch := func(data []byte) fold.Plan {
			blobs := memblob.New(memblob.Options{})
			_, err := blobs.Create(t.Context(), ref, data)
			require.NoError(t, err)
			groups := []fold.Group{{Events: []*event.Envelope{{Payload: &event.PlanCreated{PlanRef: ref}}}}}
			require.NoError(t, compactor.FetchPlans(t.Context(), blobs, foldtest.Domain, groups))
			return groups[0].Plans[ref]
		}
		got := fetch(data)
		if got.Err != "" {
			require.Contains(t, got.Err, ref)
			require.Empty(t, got.Tasks)
			return
		}
		require.NoError(t, event.ValidateTasks(got.Tasks))
		stored, err := json.Marshal(doc{got.Tasks})
		require.NoError(t, err)
		again, err := json.Marshal(doc{fetch(stored).Tasks})
		require.NoError(t, err)
		require.Equal(t, string(stored), string(again))
	})
}
