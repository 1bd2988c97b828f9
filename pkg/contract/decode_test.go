package contract_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
)

// withField encodes object as JSON. It replaces the field at a dotted path by raw JSON, or removes it if raw is empty.
func withField(t testing.TB, object any, field, raw string) []byte {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(data, &fields))
	at := fields
	path := strings.Split(field, ".")
	for _, name := range path[:len(path)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	if last := path[len(path)-1]; raw == "" {
		delete(at, last)
	} else {
		at[last] = json.RawMessage(raw)
	}
	data, err = json.Marshal(fields)
	require.NoError(t, err)
	return data
}

func requireField(t *testing.T, err error, field string) {
	t.Helper()
	var wrong *contract.FieldError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, field, wrong.Field, "%v", err)
	require.NotEmpty(t, wrong.Msg)
}

func TestDecodeEnvelopeNamesInvalidField(t *testing.T) {
	env := envelope()
	_, err := contract.Seal(env, keys, hour)
	require.NoError(t, err)
	for _, c := range []struct{ field, raw, named string }{
		{"contract_version", `"2.0"`, ""},
		{"contract_version", ``, ""},
		{"tenant_id", `"Acme"`, "tenant_id, workspace_id"},
		{"tenant_id", `7`, ""},
		{"run_id", `"x"`, ""},
		{"run_id", ``, ""},
		{"task_key", `""`, ""},
		{"task_key", `"other"`, "attempt_id"},
		{"attempt", `0`, ""},
		{"attempt", `"1"`, ""},
		{"attempt", `1e40`, ""},
		{"attempt_id", `"01KAJ2T0000000000000000000"`, ""},
		{"materialization_id", ``, ""},
		{"plan_ref", ``, ""},
		{"plan_ref", `"` + strings.Repeat("x", 3000) + `"`, ""},
		{"asset_key", `"raw"`, ""},
		{"partition_key", `"{ }"`, ""},
		{"timeout_sec", `-1`, ""},
		{"auth.expires_at", `"yesterday"`, ""},
		{"auth.expires_at", `7`, ""},
		{"auth.expires_at", ``, ""},
		{"auth.key_id", ``, ""},
		{"auth.signature", ``, ""},
		{"auth", `7`, ""},
		{"callbacks.started", `"file:///etc/passwd"`, ""},
		{"callbacks.started", ``, ""},
	} {
		_, err := contract.DecodeEnvelope(withField(t, env, c.field, c.raw))
		named := c.named
		if named == "" {
			named = c.field
		}
		requireField(t, err, named)
	}
	_, err = contract.DecodeEnvelope(withField(t, env, "novelty", `{"x":1}`))
	require.NoError(t, err, "unknown fields are ignored")
}

func TestDecodeRejectsNonObject(t *testing.T) {
	for _, body := range []string{"", "null", "[]", "7", `"x"`, "{", "{} {}", strings.Repeat(" ", contract.MaxCallbackBytes+1)} {
		_, err := contract.DecodeStarted([]byte(body))
		requireField(t, err, "")
	}
}

func TestDecodeCallbacksNameInvalidField(t *testing.T) {
	attempt := envelope().AttemptID
	started := contract.Started{AttemptID: attempt, WorkerID: "w", StartedAt: start}
	heartbeat := contract.Heartbeat{AttemptID: attempt, WorkerID: "w", HeartbeatAt: start, Progress: 5, Message: "m"}
	finished := contract.Finished{
		AttemptID: attempt, WorkerID: "w", Outcome: event.Succeeded, MaterializationID: attempt,
		Error:        &event.Error{Code: "X", Message: "m"},
		Output:       &event.Output{URI: "assets/x/", RowCount: 1},
		CheckResults: []event.CheckResult{{Name: "c"}}, Metrics: map[string]int64{"ms": 1},
		StartedAt: start, CompletedAt: hour,
	}
	long := `"` + strings.Repeat("x", contract.MaxErrorMessage+1) + `"`
	many := map[string]int{}
	for i := range contract.MaxMetrics + 1 {
		many[strings.Repeat("m", i+1)] = i
	}
	tooMany, err := json.Marshal(many)
	require.NoError(t, err)

	decodeStarted := func(b []byte) error { _, err := contract.DecodeStarted(b); return err }
	decodeHeartbeat := func(b []byte) error { _, err := contract.DecodeHeartbeat(b); return err }
	decodeFinished := func(b []byte) error { _, err := contract.DecodeFinished(b); return err }
	for _, c := range []struct {
		body       any
		decode     func([]byte) error
		field, raw string
		named      string
	}{
		{started, decodeStarted, "attempt_id", ``, "attempt_id"},
		{started, decodeStarted, "started_at", `""`, "started_at"},
		{started, decodeStarted, "started_at", `"noon"`, "started_at"},
		{started, decodeStarted, "started_at", `"1950-01-01T00:00:00Z"`, "started_at"},
		{heartbeat, decodeHeartbeat, "heartbeat_at", ``, "heartbeat_at"},
		{heartbeat, decodeHeartbeat, "progress", `101`, "progress"},
		{heartbeat, decodeHeartbeat, "message", long, "message"},
		{finished, decodeFinished, "outcome", ``, "outcome"},
		{finished, decodeFinished, "outcome", `"done"`, "outcome"},
		{finished, decodeFinished, "error.message", long, "error.message"},
		{finished, decodeFinished, "output.uri", `""`, "output.uri"},
		{finished, decodeFinished, "output.row_count", `-1`, "output.row_count"},
		{finished, decodeFinished, "output", `[]`, "output"},
		{finished, decodeFinished, "metrics", string(tooMany), "metrics (count)"},
		{finished, decodeFinished, "metrics", `{"x":0.5}`, "metrics"},
		{finished, decodeFinished, "check_results", `[{"name":""}]`, "check_results[0].name"},
		{finished, decodeFinished, "completed_at", `"x"`, "completed_at"},
	} {
		require.NoError(t, c.decode(withField(t, c.body, "novelty", `1`)))
		requireField(t, c.decode(withField(t, c.body, c.field, c.raw)), c.named)
	}
}

func marker() *contract.CommitMarker {
	env := envelope()
	return &contract.CommitMarker{
		MaterializationID: env.MaterializationID, RunID: runID, TaskKey: taskKey, AssetKey: env.AssetKey,
		AttemptID: env.AttemptID, Attempt: 1, Nonce: "n",
		URI:   contract.ExecutionPrefix(domain, asset, env.PartitionKey, env.MaterializationID, env.AttemptID, "n"),
		Files: []contract.CommitMarkerFile{{Name: "a/data.parquet", Size: 3}}, CommittedAt: hour, StartedAt: start,
	}
}

func TestDecodeMarkerRoundTrips(t *testing.T) {
	data, err := json.Marshal(marker())
	require.NoError(t, err)
	m, err := contract.DecodeCommitMarker(data)
	require.NoError(t, err)
	require.Equal(t, marker(), m)
}

func TestDecodeMarkerRejectsForeignPaths(t *testing.T) {
	for _, c := range []struct{ field, raw string }{
		{"uri", `"assets/tenant=other/x/"`},
		{"uri", `""`},
		{"materialization_id", `"x"`},
		{"nonce", ``},
	} {
		_, err := contract.DecodeCommitMarker(withField(t, marker(), c.field, c.raw))
		requireField(t, err, c.field)
	}
	many, err := json.Marshal(make([]contract.CommitMarkerColumn, contract.MaxColumns+1))
	require.NoError(t, err)
	_, err = contract.DecodeCommitMarker(withField(t, marker(), "columns", string(many)))
	requireField(t, err, "columns (count)")
	_, err = contract.DecodeCommitMarker(withField(t, marker(), "columns", `[{"name":"`+strings.Repeat("x", contract.MaxColumnBytes+1)+`"}]`))
	requireField(t, err, "columns[0].name")
	for _, name := range []string{"", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".", "..", "a\\b", "a\x00", "a\n"} {
		quoted, err := json.Marshal([]contract.CommitMarkerFile{{Name: name}})
		require.NoError(t, err)
		_, err = contract.DecodeCommitMarker(withField(t, marker(), "files", string(quoted)))
		requireField(t, err, "files[0].name")
	}
}

func TestDecodeRejectsNamesThatDifferInCase(t *testing.T) {
	attempt := envelope().AttemptID
	finished := contract.Finished{AttemptID: attempt, WorkerID: "w", Outcome: event.Succeeded, Error: &event.Error{Code: "X"}}
	for _, c := range []struct{ field, raw, named string }{
		{"Outcome", `"failed"`, "Outcome"},
		{"outcome", `"succeeded","OUTCOME":"failed"`, "OUTCOME"},
		{"error", `{"code":"X","Code":"Y"}`, "error.Code"},
		{"check_results", `[{"name":"a"},{"name":"b","Name":"c"}]`, "check_results[1].Name"},
		{"wor\u212aer_id", `"x"`, "wor\u212aer_id"}, // case folding turns the Kelvin sign into k
		{"novelty", `1,"Novelty":2`, "Novelty"},
		{"Outcome", `"failed","novelty":"` + "\xff" + `"`, "Outcome"}, // not UTF-8: tolerated
	} {
		body := strings.Replace(string(withField(t, finished, c.field, "")), "{", `{"`+c.field+`":`+c.raw+",", 1)
		_, err := contract.DecodeFinished([]byte(body))
		requireField(t, err, c.named)
	}
	for _, raw := range []string{`{"rows":1,"Rows":2}`, `{"Outcome":1}`} {
		_, err := contract.DecodeFinished(withField(t, finished, "metrics", raw))
		require.NoError(t, err, "names of metrics are data")
	}
	_, err := contract.DecodeFinished(withField(t, finished, "novelty", `{"x":1,"X":2}`))
	require.NoError(t, err, "the value of an unknown field is not read")
}

func TestReadJSONRejectsNamesThatDifferOnlyInCase(t *testing.T) {
	type inner struct {
		Name string `json:"name"`
	}
	var body struct {
		Tenant string            `json:"tenant"`
		List   []inner           `json:"list"`
		Map    map[string]string `json:"map"`
	}
	for _, text := range []string{
		`{"tenant":"a","Tenant":"b"}`, `{"Tenant":"b"}`, `{"tenant":"a","tenant":"b"}`, `{"list":[{"name":"a","NAME":"b"}]}`, `{"x":1,"X":2}`,
		`{"tenant":"a"}{}`, `[]`, ``,
	} {
		require.Error(t, contract.ReadJSON(strings.NewReader(text), &body), text)
	}
	for _, text := range []string{`{"tenant":"a","new":[1,{"y":2}],"map":{"k":"1","K":"2"}}`, `{}`} {
		require.NoError(t, contract.ReadJSON(strings.NewReader(text), &body), text)
	}
	require.Equal(t, "a", body.Tenant)
	require.Equal(t, map[string]string{"k": "1", "K": "2"}, body.Map)
}
