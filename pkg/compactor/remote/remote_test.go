package remote_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

const fuzzedEntry = "01KAJ2T0000000000000000000"

// push returns a Pub/Sub push of an object notification.
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

// post calls a route of a compactor. It returns the response and, if the request was accepted, the
// domain whose compactor was requested.
func post(t *testing.T, route string, body []byte) (*httptest.ResponseRecorder, *ids.Domain) {
	t.Helper()
	var asked *ids.Domain
	mux := http.NewServeMux()
	remote.Register(mux, func(_ context.Context, d ids.Domain) (*compactor.Compactor, error) {
		asked = &d
		return nil, errors.New("no compactor here")
	})
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, granted(httptest.NewRequest(http.MethodPost, route, bytes.NewReader(body))))
	if asked != nil {
		require.NoError(t, asked.Validate(), "no domain with an invalid name is opened")
		require.Equal(t, http.StatusInternalServerError, answer.Code)
		return answer, asked
	}
	if answer.Code != http.StatusNoContent {
		require.Equal(t, http.StatusBadRequest, answer.Code, "a malformed request must not be sent again")
		var problem contract.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.NotEmpty(t, problem.Detail)
	}
	return answer, nil
}

func FuzzNotifications(f *testing.F) {
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
		object, err := remote.NotifiedObject(bytes.NewReader(body))
		if errors.Is(err, remote.ErrNoObject) {
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
		require.Equal(t, err == nil, asked != nil, "other objects are acknowledged and ignored")
		if err == nil {
			require.Equal(t, domain, *asked)
		}
		for _, again := range [][]byte{push(map[string]string{"objectId": object}, ""), push(nil, `{"name":`+quote(object)+`}`)} {
			read, err := remote.NotifiedObject(bytes.NewReader(again))
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

func FuzzCompactRequests(f *testing.F) {
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
		require.NoError(t, json.Unmarshal(body, &named), "the whole body is decoded")
		require.Equal(t, ids.Domain{Tenant: named.Tenant, Workspace: named.Workspace}, *asked)
		for _, entry := range named.Entries {
			require.True(t, ids.Valid(entry))
		}
	})
}

// granted returns a request whose caller has all rights.
func granted(r *http.Request) *http.Request {
	return r.WithContext(remote.WithRights(r.Context(), remote.Rights{Data: true, Sweep: true}))
}

func TestNotifiedObjectDecodesEveryFormat(t *testing.T) {
	const key = "ledger/a/b.json"
	resource := `{"kind":"storage#object","bucket":"servo","name":"` + key + `","generation":"1795293180852345","size":"12"}`
	data := base64.StdEncoding.EncodeToString([]byte(resource))
	for name, body := range map[string]string{
		"Pub/Sub, payload NONE":        `{"message":{"attributes":{"bucketId":"servo","objectId":"` + key + `","eventType":"OBJECT_FINALIZE","payloadFormat":"NONE"},"messageId":"1","message_id":"1","publishTime":"2026-11-21T00:00:00Z"},"subscription":"projects/p/subscriptions/s"}`,
		"Pub/Sub, payload JSON_API_V1": `{"message":{"attributes":{"objectId":"` + key + `","eventType":"OBJECT_FINALIZE","payloadFormat":"JSON_API_V1"},"data":"` + data + `"}}`,
		"Pub/Sub, attributes dropped":  `{"message":{"data":"` + data + `"}}`,
		"CloudEvent, structured":       `{"specversion":"1.0","type":"google.cloud.storage.object.v1.finalized","source":"//storage.googleapis.com/projects/_/buckets/servo","subject":"objects/` + key + `","id":"1","data":` + resource + `}`,
		"CloudEvent, binary":           resource,
	} {
		got, err := remote.NotifiedObject(strings.NewReader(body))
		require.NoError(t, err, name)
		require.Equal(t, key, got, name)
	}
}

func TestNotificationsOfOtherEventsAreAcknowledged(t *testing.T) {
	for _, body := range []string{
		`{"message":{"attributes":{"objectId":"ledger/a/b.json","eventType":"OBJECT_DELETE"}}}`,
		`{"message":{"attributes":{"objectId":"ledger/a/b.json","eventType":"OBJECT_METADATA_UPDATE"}}}`,
		`{"specversion":"1.0","type":"google.cloud.storage.object.v1.deleted","data":{"name":"ledger/a/b.json"}}`,
		`{"message":{"messageId":"1","publishTime":"2026-11-21T00:00:00Z"},"subscription":"projects/p/subscriptions/s"}`,
		`{"message":{"data":"aGVsbG8=","messageId":"1"}}`,
		`{"message":{"attributes":{"eventType":"OBJECT_FINALIZE"}}}`,
		`{}`,
	} {
		_, err := remote.NotifiedObject(strings.NewReader(body))
		require.ErrorIs(t, err, remote.ErrNoObject, body)
		answer, asked := post(t, "/v1/notifications", []byte(body))
		require.Equal(t, 204, answer.Code, "it must not be delivered again")
		require.Nil(t, asked)
	}
}

func TestAmbiguousNotificationsAreRejected(t *testing.T) {
	for _, body := range []string{
		`{"bucket":"servo","name":"ledger/a/b.json","Name":"ledger/c/d.json"}`, `{"message":{},"Message":{}}`, `{"message":7}`, `hello`, ``,
	} {
		answer, asked := post(t, "/v1/notifications", []byte(body))
		require.Equal(t, 400, answer.Code, body)
		require.Nil(t, asked)
	}
}
