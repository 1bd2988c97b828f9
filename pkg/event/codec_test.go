package event_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/eventtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	runID     = "01JHK4W2ZS4T9M3Q6V8X0YB1CD"
	planID    = "01JHK4W2ZT0000000000000001"
	attemptID = "01JHK4W2ZS0000000000000002"
	eventID   = "01JHK4W300000000000000000A"
)

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

func wrap(p event.Payload) *event.Envelope {
	return &event.Envelope{
		ID: eventID, Time: 1_736_937_000_000_001, Domain: domain, Source: domain.Source(), Payload: p,
	}
}

func finished() *event.TaskFinished {
	return &event.TaskFinished{
		AttemptRef: event.AttemptRef{RunID: runID, TaskKey: "raw/events", Attempt: 1, AttemptID: attemptID},
		Outcome:    event.Succeeded,
	}
}

func encode(t *testing.T, e *event.Envelope) []byte {
	t.Helper()
	out, err := event.Encode(nil, e)
	require.NoError(t, err)
	return out
}

// refused returns the [event.DecodeError] in err.
func refused(t *testing.T, err error) *event.DecodeError {
	t.Helper()
	var e *event.DecodeError
	require.ErrorAs(t, err, &e)
	return e
}

func TestEncodeMatchesFormatPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/ledger.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```json\n")
	require.True(t, found)
	example, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	var want bytes.Buffer
	require.NoError(t, json.Compact(&want, []byte(example)))
	p := finished()
	p.Output = &event.Output{URI: "assets/acme/prod/raw/events/", RowCount: 3}
	p.Metrics = map[string]int64{"scan_ms": 4, "rows": 3}
	p.CompletedAt = 1_736_937_000_000_000
	e := wrap(p)
	e.CorrelationID = runID
	e.Actor = "o'neil <o@example.com>"

	require.Equal(t, want.String()+"\n", string(encode(t, e)))
}

func TestEncodeRoundTrips(t *testing.T) {
	for _, p := range event.Payloads() {
		t.Run(p.Type(), rapid.MakeCheck(func(t *rapid.T) {
			e := eventtest.Envelope().Draw(t, "event")
			e.Payload = eventtest.PayloadLike(p).Draw(t, "payload")
			require.NoError(t, event.Validate(e))

			out, err := event.Encode(nil, e)
			require.NoError(t, err)
			require.Equal(t, 1, bytes.Count(out, []byte("\n")))
			got, err := event.DecodeLine(out)
			require.NoError(t, err)
			require.Equal(t, e, got)

			again, err := event.Encode([]byte("before"), got)
			require.NoError(t, err)
			require.Equal(t, "before"+string(out), string(again), "equal events have equal bytes")
		}))
	}
}

func TestDecodeLineNamesReasonAndPath(t *testing.T) {
	line := strings.TrimSuffix(string(encode(t, wrap(finished()))), "\n")
	for name, c := range map[string]struct{ from, to, reason, detail string }{
		"not JSON":             {line, `{"event_id"`, event.ReasonMalformed, "not a JSON object"},
		"an array":             {line, `[]`, event.ReasonMalformed, "not a JSON object"},
		"null":                 {line, `null`, event.ReasonMalformed, "null"},
		"not UTF-8":            {`raw/events`, "raw/\xff", event.ReasonMalformed, "UTF-8"},
		"an unknown type":      {`"TaskFinished"`, `"TaskAbandoned"`, event.ReasonUnsupported, "event_type"},
		"a newer version":      {`"event_version":1`, `"event_version":2`, event.ReasonUnsupported, "event_version: 2"},
		"version zero":         {`"event_version":1`, `"event_version":0`, event.ReasonInvalid, "event_version"},
		"no type":              {`"event_type":"TaskFinished",`, ``, event.ReasonInvalid, "event_type: is required"},
		"no source":            {`"source":"servo/acme/prod",`, ``, event.ReasonInvalid, "source: is required"},
		"another case":         {`"source"`, `"Source"`, event.ReasonInvalid, "source: is required"},
		"no attempt":           {`"attempt":1,`, ``, event.ReasonInvalid, "payload.attempt: is required"},
		"a null attempt":       {`"attempt":1`, `"attempt":null`, event.ReasonInvalid, "payload.attempt: is null"},
		"attempt zero":         {`"attempt":1`, `"attempt":0`, event.ReasonInvalid, "payload.attempt: 0"},
		"a fractional attempt": {`"attempt":1`, `"attempt":1.5`, event.ReasonInvalid, "payload.attempt"},
		"an attempt too large": {`"attempt":1`, `"attempt":2147483648`, event.ReasonInvalid, "payload.attempt"},
		"a text for a number":  {`"attempt":1`, `"attempt":"1"`, event.ReasonInvalid, "payload.attempt"},
		"an unknown outcome":   {`"succeeded"`, `"won"`, event.ReasonInvalid, "payload.outcome"},
		"an invalid run id":    {`"run_id":"01`, `"run_id":"xx`, event.ReasonInvalid, "payload.run_id"},
		"another key":          {`finished:`, `started:`, event.ReasonInvalid, "idempotency_key"},
		"an upper-case tenant": {`"acme"`, `"Acme"`, event.ReasonInvalid, "tenant"},
		"a local time":         {`.000001Z`, `.000001+01:00`, event.ReasonInvalid, "timestamp"},
		"another time format":  {`.000001Z`, `Z`, event.ReasonInvalid, "timestamp"},
		"a size but no group":  {`"payload"`, `"group_size":2,"payload"`, event.ReasonInvalid, "group_size"},
		"a number as payload":  {`"payload":{`, `"payload":3,"x":{`, event.ReasonInvalid, "payload: is not an object"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(line, c.from, c.to, 1)
			require.NotEqual(t, line, changed)
			_, err := event.DecodeLine([]byte(changed))
			got := refused(t, err)
			require.Equal(t, c.reason, got.Reason)
			require.Contains(t, got.Detail, c.detail)
			if got.Reason != event.ReasonMalformed {
				require.Equal(t, eventID, got.EventID)
			}
		})
	}
}

func TestDecodeLineRejectsLargeLine(t *testing.T) {
	_, err := event.DecodeLine(bytes.Repeat([]byte(" "), event.MaxGroupBytes+1))
	require.Equal(t, event.ReasonTooLarge, refused(t, err).Reason)
}

func TestDecodeLineIgnoresUnknownFields(t *testing.T) {
	line := encode(t, wrap(finished()))
	more := bytes.Replace(line, []byte(`"payload":{`), []byte(`"new":[1],"payload":{"newer":{"a":null},`), 1)
	got, err := event.DecodeLine(more)
	require.NoError(t, err)
	require.Equal(t, wrap(finished()), got)
}

func TestDecodeErrorDetailIsBounded(t *testing.T) {
	long := strings.Repeat("é", 100_000)
	quoted, err := json.Marshal(long)
	require.NoError(t, err)
	line := bytes.Replace(encode(t, wrap(finished())), []byte(`"raw/events"`), quoted, 1)
	_, err = event.DecodeLine(line)
	require.LessOrEqual(t, len(refused(t, err).Detail), 2048)
}

func TestValidateNamesReasonAndPath(t *testing.T) {
	task := func(key string, deps ...string) event.TaskDef { return event.TaskDef{TaskKey: key, DependsOn: deps} }
	plan := func(tasks ...event.TaskDef) *event.PlanCreated {
		return &event.PlanCreated{RunID: runID, PlanID: planID, PlanRef: "plans/x.json", Tasks: tasks}
	}
	many := map[string]string{}
	for i := range event.MaxLabels + 1 {
		many[string(rune('a'+i))] = ""
	}
	for name, c := range map[string]struct {
		payload        event.Payload
		reason, detail string
	}{
		"no payload":          {nil, event.ReasonInvalid, "payload"},
		"a cycle":             {plan(task("a", "b"), task("b", "a")), event.ReasonBadPlan, "payload.tasks[0]: \"a\" depends on a cycle"},
		"a task on itself":    {plan(task("a", "a")), event.ReasonBadPlan, "itself"},
		"a duplicate":         {plan(task("a"), task("a")), event.ReasonBadPlan, "payload.tasks[1].task_key"},
		"an unknown upstream": {plan(task("a", "b")), event.ReasonBadPlan, "payload.tasks[0].depends_on[0]"},
		"an edge twice":       {plan(task("a"), task("b", "a", "a")), event.ReasonBadPlan, "duplicate"},
		"a task with no key":  {plan(task("")), event.ReasonBadPlan, "task_key"},
		"another total": {
			&event.PlanCreated{RunID: runID, PlanID: planID, TasksTotal: 2, Tasks: []event.TaskDef{task("a")}}, event.ReasonBadPlan, "tasks_total",
		},
		"an unknown rule":  {plan(event.TaskDef{TaskKey: "a", TriggerRule: "any"}), event.ReasonInvalid, "payload.tasks[0].trigger_rule"},
		"no plan at all":   {&event.PlanCreated{RunID: runID, PlanID: planID}, event.ReasonInvalid, "plan_ref"},
		"too many labels":  {&event.RunTriggered{RunID: runID, PlanID: planID, Trigger: event.Trigger{Type: "manual"}, Labels: many}, event.ReasonInvalid, "labels"},
		"a long run key":   {&event.RunTriggered{RunID: runID, PlanID: planID, Trigger: event.Trigger{Type: "manual"}, RunKey: strings.Repeat("k", 257)}, event.ReasonInvalid, "run_key"},
		"an empty trigger": {&event.RunTriggered{RunID: runID, PlanID: planID}, event.ReasonInvalid, "trigger.type"},
		"a long reason":    {&event.RunCancelRequested{RunID: runID, Reason: strings.Repeat("r", event.MaxMessage+1)}, event.ReasonInvalid, "reason"},
		"broken UTF-8":     {&event.RunCancelRequested{RunID: runID, Reason: "\xff"}, event.ReasonInvalid, "reason"},
		"a nameless pool":  {&event.LimitSet{CommandID: eventID, Scope: event.ScopePool}, event.ReasonInvalid, "payload.name"},
		"negative slots":   {&event.LimitSet{CommandID: eventID, Scope: event.ScopeWorkspace, Slots: -1}, event.ReasonInvalid, "slots"},
		"another dispatch": {
			&event.DispatchEnqueued{DispatchID: "dispatch:x", RunID: runID, TaskKey: "a", Attempt: 1, QueueTaskName: "d_x"},
			event.ReasonInvalid, "dispatch_id",
		},
		"a bad queue task":     {&event.TimerEnqueued{TimerID: "timer:x", QueueTaskName: "t/x"}, event.ReasonInvalid, "queue_task_name"},
		"a schedule's timer":   {&event.TimerRequested{TimerID: "timer:x", TimerType: "CRON", FireAt: 1}, event.ReasonInvalid, "payload.timer_type"},
		"a deadline's timer":   {&event.TimerRequested{TimerID: "timer:x", TimerType: "SLA_CHECK", FireAt: 1}, event.ReasonInvalid, "payload.timer_type"},
		"a timer with no time": {&event.TimerRequested{TimerID: "timer:x", TimerType: event.TimerLiveness}, event.ReasonInvalid, "fire_at"},
		"a timer with text": {
			&event.TimerRequested{TimerID: "timer:x", TimerType: event.TimerLiveness, FireAt: 1, Payload: []byte(`"x"`)}, event.ReasonInvalid, "payload.payload",
		},
		"a time too late": {&event.TimerFired{TimerID: "timer:x", FiredAt: 1 << 62}, event.ReasonInvalid, "fired_at"},
		"progress over 100 %": {
			&event.TaskHeartbeat{AttemptRef: finished().AttemptRef, HeartbeatAt: 1, Progress: 101}, event.ReasonInvalid, "progress",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := refused(t, event.Validate(wrap(c.payload)))
			require.Equal(t, c.reason, got.Reason)
			require.Contains(t, got.Detail, c.detail)
			require.Equal(t, eventID, got.EventID)
		})
	}
}

func TestULIDsReturnsAllIDsOfEvent(t *testing.T) {
	e := wrap(finished())
	e.CausationID = planID
	e.CorrelationID = "not a ULID"
	require.Equal(t, []string{eventID, planID, runID, attemptID}, event.ULIDs(e))
}
