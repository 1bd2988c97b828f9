package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/api/rest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// overREST turns calls of a Connect client into REST requests, and REST responses into Connect
// responses.
type overREST struct{ client *http.Client }

func (o overREST) Do(r *http.Request) (*http.Response, error) {
	for _, route := range rest.Routes() {
		if route.Procedure == r.URL.Path && !strings.Contains(route.Path, "/tenants/") {
			return o.call(r, route)
		}
	}
	return nil, fmt.Errorf("no route of %s", r.URL.Path)
}

func (o overREST) call(r *http.Request, route *rest.Route) (*http.Response, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, err
	}
	method := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name))
	input, output := newMessage(method.Input()), newMessage(method.Output())
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(body, input); err != nil {
		return nil, err
	}
	answer, err := o.client.Do(restRequest(r, route, input))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/proto"}}
	if answer.StatusCode >= http.StatusBadRequest {
		header.Set("Content-Type", "application/json")
		return &http.Response{StatusCode: http.StatusBadRequest, Header: header, Body: io.NopCloser(bytes.NewReader(connectProblem(text)))}, nil
	}
	if err := jsonpb.Unmarshal(bytes.TrimSpace(text), output); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", route.Path, err, text)
	}
	raw, err := proto.Marshal(output)
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(bytes.NewReader(raw))}, err
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

// restRequest returns the REST request of a message: variables of the path, then the query or the body.
func restRequest(r *http.Request, route *rest.Route, m proto.Message) *http.Request {
	raw, err := jsonpb.Marshal(m)
	if err != nil {
		panic(err)
	}
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&members); err != nil {
		panic(err)
	}
	path := route.Path
	for name, value := range members {
		if variable := "{" + name + "}"; strings.Contains(path, variable) {
			path = strings.ReplaceAll(path, variable, url.PathEscape(fmt.Sprint(value)))
			delete(members, name)
		}
	}
	body := []byte(nil)
	query := url.Values{}
	if route.Body {
		body, _ = json.Marshal(members)
	} else {
		for name, value := range members {
			switch value := value.(type) {
			case []any:
				for _, one := range value {
					query.Add(name, fmt.Sprint(one))
				}
			default:
				query.Set(name, fmt.Sprint(value))
			}
		}
	}
	target := *r.URL
	request, err := http.NewRequestWithContext(r.Context(), route.Method, target.Scheme+"://"+target.Host+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"Idempotency-Key", "If-Match"} {
		if values := r.Header.Values(name); len(values) > 0 {
			request.Header[name] = values
		}
	}
	if route.Body {
		request.URL.RawQuery = ""
		request.Header.Set("Content-Type", "application/json")
	}
	return request
}

// connectProblem returns a problem document as an error of Connect.
func connectProblem(text []byte) []byte {
	p := &servov1.Problem{}
	if err := jsonpb.Unmarshal(bytes.TrimSpace(text), p); err != nil {
		panic(fmt.Sprintf("%v: %s", err, text))
	}
	raw, err := proto.Marshal(p)
	if err != nil {
		panic(err)
	}
	code := map[int32]string{400: "invalid_argument", 403: "permission_denied", 404: "not_found", 410: "aborted", 500: "internal", 503: "unavailable"}[p.GetStatus()]
	if p.GetStatus() == http.StatusConflict {
		code = map[bool]string{true: "already_exists", false: "failed_precondition"}[strings.HasSuffix(p.GetType(), ":conflict")]
	}
	out, err := json.Marshal(map[string]any{
		"code": code, "message": p.GetDetail(),
		"details": []any{map[string]string{"type": "servo.v1.Problem", "value": base64.RawStdEncoding.EncodeToString(raw)}},
	})
	if err != nil {
		panic(err)
	}
	return out
}

// calls returns calls that have no side effects and always get the same response.
func calls() map[string]func(context.Context, clients) (proto.Message, error) {
	type call = func(context.Context, clients) (proto.Message, error)
	run := func(id string) call {
		return func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.GetRun(ctx, &servov1.GetRunRequest{RunId: id})
		}
	}
	return map[string]call{
		"who am I": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.access.WhoAmI(ctx, &servov1.WhoAmIRequest{})
		},
		"run": run("latest"), "no such run": run("NONE"), "no id": run(""), "an id of another form": run("a b"), "a long id": run(strings.Repeat("A", 65)),
		"status": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.GetRunStatus(ctx, &servov1.GetRunStatusRequest{RunId: "latest"})
		},
		"runs": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListRuns(ctx, &servov1.ListRunsRequest{State: []servov1.RunState_Value{servov1.RunState_FAILED, servov1.RunState_SUCCEEDED}, Trigger: "manual"})
		},
		"runs of another tenant": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListRuns(ctx, &servov1.ListRunsRequest{TenantId: "other"})
		},
		"runs in words": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListRuns(ctx, &servov1.ListRunsRequest{Trigger: "by hand", PageSize: 1001})
		},
		"a page token": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListRuns(ctx, &servov1.ListRunsRequest{PageToken: "x"})
		},
		"tasks": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListTasks(ctx, &servov1.ListTasksRequest{RunId: "latest", AssetKey: "raw/days"})
		},
		"task": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.GetTask(ctx, &servov1.GetTaskRequest{RunId: "latest", TaskKey: "raw/days[date=2025-01-02]"})
		},
		"explanation": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ExplainTask(ctx, &servov1.ExplainTaskRequest{RunId: "latest", TaskKey: "report/bad"})
		},
		"attempts": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.ListAttempts(ctx, &servov1.ListAttemptsRequest{RunId: "latest", TaskKey: "report/bad"})
		},
		"gantt": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.GetGantt(ctx, &servov1.GetGanttRequest{RunId: "latest", FoldBy: "asset"})
		},
		"log": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.logs.ReadLog(ctx, &servov1.ReadLogRequest{RunId: "latest", TaskKey: "report/bad", Attempt: 1})
		},
		"a log before its beginning": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.logs.ReadLog(ctx, &servov1.ReadLogRequest{RunId: "latest", TaskKey: "report/bad", Attempt: 1, Offset: -1})
		},
		"cancel an ended run": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.CancelRun(ctx, &servov1.CancelRunRequest{RunId: "latest", Reason: "why"})
		},
		"run nothing": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.TriggerRun(ctx, &servov1.TriggerRunRequest{Labels: map[string]string{"why": "test"}})
		},
		"run an unknown asset": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.TriggerRun(ctx, &servov1.TriggerRunRequest{Assets: []string{"raw/dayz"}})
		},
		"run unknown partitions": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.TriggerRun(ctx, &servov1.TriggerRunRequest{Assets: []string{"raw/days"}, Partitions: []string{"date=2025-01-01", "=="}})
		},
		"a reserved run key": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.TriggerRun(ctx, &servov1.TriggerRunRequest{All: true, RunKey: "idem:x"})
		},
		"assets": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.assets.ListAssets(ctx, &servov1.ListAssetsRequest{Select: "raw/*"})
		},
		"asset": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.assets.GetAsset(ctx, &servov1.GetAssetRequest{Namespace: "raw", Name: "days"})
		},
		"partitions": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.partitions.ListPartitions(ctx, &servov1.ListPartitionsRequest{Namespace: "raw", Name: "days", Status: []string{"missing", "fresh"}})
		},
		"partitions of another status": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.partitions.ListPartitions(ctx, &servov1.ListPartitionsRequest{Namespace: "raw", Name: "days", Status: []string{"old"}})
		},
		"summary": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.partitions.GetPartitionSummary(ctx, &servov1.GetPartitionSummaryRequest{Namespace: "raw", Name: "days", Buckets: 2})
		},
		"partition": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.partitions.ExplainPartition(ctx, &servov1.ExplainPartitionRequest{Namespace: "raw", Name: "days", Partition: "date=2025-01-05"})
		},
		"schedules": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.schedules.ListSchedules(ctx, &servov1.ListSchedulesRequest{})
		},
		"pause no schedule": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.schedules.PauseSchedule(ctx, &servov1.PauseScheduleRequest{Schedule: "nightly"})
		},
		"plan of a backfill": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.backfills.PlanBackfill(ctx, &servov1.CreateBackfillRequest{Assets: []string{"raw/days"}, Only: "missing", Chunk: 2})
		},
		"backfills": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.backfills.ListBackfills(ctx, &servov1.ListBackfillsRequest{})
		},
		"requests": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.ListRequests(ctx, &servov1.ListRequestsRequest{Ended: true})
		},
		"deadlines": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.ListDeadlines(ctx, &servov1.ListDeadlinesRequest{})
		},
		"alerts": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.ListAlerts(ctx, &servov1.ListAlertsRequest{PageSize: 3})
		},
		"mute no rule": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.MuteAlertRule(ctx, &servov1.MuteAlertRuleRequest{Rule: "gold", ForSec: 60})
		},
		"mute for too long": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.MuteAlertRule(ctx, &servov1.MuteAlertRuleRequest{Rule: "gold", ForSec: 2592001})
		},
		"test no channel": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.automation.TestChannel(ctx, &servov1.TestChannelRequest{Channel: "log"})
		},
		"quarantine": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.quality.ListQuarantined(ctx, &servov1.ListQuarantinedRequest{})
		},
		"key sets": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.keySets.ListKeySets(ctx, &servov1.ListKeySetsRequest{})
		},
		"no key set": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.keySets.ListKeys(ctx, &servov1.ListKeysRequest{KeySet: "tenants"})
		},
		"numbers of runs": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.state.CountRuns(ctx, &servov1.CountRunsRequest{Hours: 2, AsOf: "2100-01-01T00:00:00Z"}) // without as_of, the counted hours would change
		},
		"runs of too many hours": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.state.CountRuns(ctx, &servov1.CountRunsRequest{Hours: 745})
		},
		"attention": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.state.ListAttention(ctx, &servov1.ListAttentionRequest{})
		},
	}
}

// repeatedCalls returns commands with the header Idempotency-Key. Each of them has the same response when it is
// repeated.
func repeatedCalls(run string) map[string]func(context.Context, clients) (proto.Message, error) {
	return map[string]func(context.Context, clients) (proto.Message, error){
		"cancel a run": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.execution.CancelRun(withKey(ctx, "k"), &servov1.CancelRunRequest{RunId: run, Reason: "why"})
		},
		"approve an output": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.quality.ApproveQuarantined(withKey(ctx, "k"), &servov1.ApproveQuarantinedRequest{MaterializationId: "q/one", Reason: "why"})
		},
		"reject an output": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.quality.RejectQuarantined(withKey(ctx, "k"), &servov1.RejectQuarantinedRequest{MaterializationId: "q/two"})
		},
		"approve another output with the same key": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.quality.ApproveQuarantined(withKey(ctx, "k"), &servov1.ApproveQuarantinedRequest{MaterializationId: "q/three"})
		},
		"reject nothing": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.quality.RejectQuarantined(withKey(ctx, "k2"), &servov1.RejectQuarantinedRequest{MaterializationId: "q/none"})
		},
		"add a key that the set has": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.keySets.ChangeKeys(withKey(ctx, "k"), &servov1.ChangeKeysRequest{KeySet: "tenants", Add: []string{"acme"}})
		},
		"remove a key that was added again": func(ctx context.Context, c clients) (proto.Message, error) {
			return c.keySets.ChangeKeys(withKey(ctx, "k2"), &servov1.ChangeKeysRequest{KeySet: "tenants", Remove: []string{"globex"}})
		},
		"backfill no schedule": func(ctx context.Context, c clients) (proto.Message, error) {
			at := timestamppb.New(time.Unix(0, 0))
			return c.schedules.BackfillSchedule(withKey(ctx, "k"), &servov1.BackfillScheduleRequest{Schedule: "nightly", From: at, To: timestamppb.New(at.AsTime().Add(time.Hour))})
		},
	}
}

// protocols returns clients of each protocol, and the clients with which they are compared.
func (f *fixture) protocols(t *testing.T) (reference clients, others map[string]clients) {
	t.Helper()
	http1 := f.owner.Client()
	t.Cleanup(http1.CloseIdleConnections)
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	http2 := &http.Client{Transport: authorized{f.owner.Token, h2}}
	return newClients(http1, f.owner.URL), map[string]clients{
		"Connect with JSON": newClients(http1, f.owner.URL, connect.WithProtoJSON()),
		"gRPC":              newClients(http2, f.owner.URL, connect.WithGRPC()),
		"gRPC-Web":          newClients(http1, f.owner.URL, connect.WithGRPCWeb()),
		"REST":              newClients(overREST{http1}, f.owner.URL),
		"in process":        newClients(api.InProcess{Handler: f.mux}, "http://servo.internal"),
	}
}

// requireAlike compares the responses of a call in two protocols.
func requireAlike(t *testing.T, want proto.Message, wantErr error, got proto.Message, err error) {
	t.Helper()
	if wantErr == nil {
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "want %v\n got %v", want, got)
		return
	}
	require.Equal(t, connect.CodeOf(wantErr), connect.CodeOf(err), "want %v\n got %v", wantErr, err)
	require.True(t, proto.Equal(problemIn(t, wantErr), problemIn(t, err)), "want %v\n got %v", wantErr, err)
	require.NotEqual(t, connect.CodeInternal, connect.CodeOf(err), err)
}

// The same request has the same response, or the same problem, in every protocol.
func TestProtocolsAnswerAlike(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "exit 0")), asset("report/bad", "echo ä broken; exit 3", "raw/days"))
	f.run(t, "date=2025-01-01..2025-01-03")
	reference, others := f.protocols(t)
	for protocol, c := range others {
		for name, call := range calls() {
			t.Run(protocol+"/"+name, func(t *testing.T) {
				want, wantErr := call(t.Context(), reference)
				got, err := call(t.Context(), c)
				if name == "no id" && protocol == "REST" { // without an id, the path is /v1/runs/, which is another route
					require.ErrorContains(t, err, "unknown route")
					return
				}
				requireAlike(t, want, wantErr, got, err)
			})
		}
	}
}

// quarantined returns an asset whose output a check blocks.
func quarantined(key string) plan.Asset {
	a := asset(key, "echo 1 > $SERVO_OUTPUT/rows.txt")
	a.Work.Checks = []quality.Check{{Name: "good", Kind: quality.Command, Command: []string{"sh", "-c", `echo '{"passed": false}' > $SERVO_VERDICT`}}}
	a.Work.Quarantine = &event.Quarantine{ExpiresSec: 3600}
	return a
}

// A command with a key takes effect once, and its repetition has the same response in every protocol.
func TestProtocolsRepeatCommandsAlike(t *testing.T) {
	f := serve(t, asset("raw/slow", "sleep 60"), quarantined("q/one"), quarantined("q/two"), quarantined("q/three"))
	reference, others := f.protocols(t)
	blocked, err := reference.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{Assets: []string{"q/*"}})
	require.NoError(t, err)
	f.await(t, blocked.GetRunId())
	slow, err := reference.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{Assets: []string{"raw/slow"}})
	require.NoError(t, err)
	_, err = reference.keySets.ChangeKeys(t.Context(), &servov1.ChangeKeysRequest{KeySet: "tenants", Add: []string{"acme", "globex"}})
	require.NoError(t, err)

	all := repeatedCalls(slow.GetRunId())
	first := map[string]proto.Message{}
	// The calls are made in the order of their names, so "approve an output" comes before the other approval, which has
	// the same key.
	for _, name := range slices.Sorted(maps.Keys(all)) {
		first[name], _ = all[name](t.Context(), reference)
	}
	f.await(t, slow.GetRunId())
	for change, keys := range map[string]*servov1.ChangeKeysRequest{
		"add": {KeySet: "tenants", Add: []string{"globex"}}, "remove": {KeySet: "tenants", Remove: []string{"acme"}},
	} {
		_, err = reference.keySets.ChangeKeys(t.Context(), keys)
		require.NoError(t, err, change)
	}
	for name, call := range all {
		want, wantErr := call(t.Context(), reference)
		switch name {
		case "cancel a run", "add a key that the set has", "remove a key that was added again":
			require.NoError(t, wantErr, name)
		case "approve an output", "reject an output":
			require.NoError(t, wantErr, name)
			require.True(t, proto.Equal(first[name], want), "%s: first %v\n then %v", name, first[name], want)
		case "approve another output with the same key":
			require.Equal(t, connect.CodeAlreadyExists, connect.CodeOf(wantErr), "%s: %v", name, wantErr)
		default:
			require.Equal(t, connect.CodeNotFound, connect.CodeOf(wantErr), "%s: %v", name, wantErr)
		}
		for protocol, c := range others {
			t.Run(protocol+"/"+name, func(t *testing.T) {
				got, err := call(t.Context(), c)
				requireAlike(t, want, wantErr, got, err)
			})
		}
	}
	keys, err := reference.keySets.ListKeys(t.Context(), &servov1.ListKeysRequest{KeySet: "tenants"})
	require.NoError(t, err)
	require.Equal(t, []string{"globex"}, keys.GetKeys(), "a repeated command does not undo what others have changed since")
}

// authorized sends a token with every request.
type authorized struct {
	token string
	inner http.RoundTripper
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return a.inner.RoundTrip(r)
}

// problemIn returns the problem of an error.
func problemIn(t *testing.T, err error) *servov1.Problem {
	t.Helper()
	var failed *connect.Error
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Details(), 1, err)
	value, err := failed.Details()[0].Value()
	require.NoError(t, err)
	p, ok := value.(*servov1.Problem)
	require.True(t, ok)
	return p
}
