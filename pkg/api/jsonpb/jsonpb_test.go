package jsonpb_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

func TestMessagesHaveOneForm(t *testing.T) {
	for want, m := range map[string]proto.Message{
		`{"revision":4712,"runs":[],"next_page_token":""}`: &servov1.ListRunsResponse{Revision: 4712},
		`{"run_id":"","state":"RUNNING","from":"2025-01-15T10:30:00.5Z","rows":[],"critical_path":["a/<b>"],` +
			`"unlimited_duration":"1.5s","folded_by":"","rows_left_out":0,"revision":9007199254740991}`: &servov1.Gantt{
			State: servov1.RunState_RUNNING, From: timestamppb.New(time.Date(2025, 1, 15, 10, 30, 0, 5e8, time.UTC)), CriticalPath: []string{"a/<b>"},
			UnlimitedDuration: durationpb.New(1500 * time.Millisecond), Revision: math.MaxInt64 >> 10,
		},
		`{"partitions":0,"chunks":0,"stages":0,"stop_at":0,"assets":{"a":1,"b":2},"warnings":["ä\n\""]}`: &servov1.BackfillPlan{
			Assets: map[string]int32{"b": 2, "a": 1}, Warnings: []string{"ä\n\""},
		},
	} {
		got, err := jsonpb.Marshal(m)
		require.NoError(t, err)
		require.Equal(t, want, string(got))

		ours, standard := m.ProtoReflect().New().Interface(), m.ProtoReflect().New().Interface()
		require.NoError(t, jsonpb.Unmarshal(got, ours))
		require.True(t, proto.Equal(m, ours), "%v", ours)
		require.NoError(t, protojson.Unmarshal(got, standard), "a standard parser")
		require.True(t, proto.Equal(m, standard), "%v", standard)
		theirs, err := protojson.Marshal(m) // camelCase names, and 64-bit integers as strings
		require.NoError(t, err)
		require.NoError(t, jsonpb.Unmarshal(theirs, ours), "%s", theirs)
		require.True(t, proto.Equal(m, ours), "%v", ours)
	}
}

func TestLargeIntegersAreNotRounded(t *testing.T) {
	_, err := jsonpb.Marshal(&servov1.ListRunsResponse{Revision: 1 << 53})
	require.ErrorContains(t, err, "revision: 9007199254740992 has more than 53 bits")
}

// An earlier version read 0.032184 s as 32,183,999 ns.
func TestDurationsAreReadAsTheyWereWritten(t *testing.T) {
	for d := 32_184 * time.Microsecond; d < time.Hour; d += 997_001 * time.Microsecond {
		want := &servov1.Gantt{UnlimitedDuration: durationpb.New(d)}
		text, err := jsonpb.Marshal(want)
		require.NoError(t, err)
		var got servov1.Gantt
		require.NoError(t, jsonpb.Unmarshal(text, &got))
		require.Equal(t, want.GetUnlimitedDuration().AsDuration(), got.GetUnlimitedDuration().AsDuration())
	}
}

func TestWrongFieldsAreNamedInWords(t *testing.T) {
	for body, want := range map[string]string{
		`{"all":"yes"}`:                   `"all" must be true or false, got a string`,
		`{"assets":"a/b"}`:                `"assets" must be a list of strings, got a string`,
		`{"assets":[1]}`:                  `"assets[0]" must be a string, got a number`,
		`{"partitions":{"date":"x"}}`:     `"partitions" must be a list of strings, got an object`,
		`{"run_key":7}`:                   `"run_key" must be a string, got a number`,
		`{"labels":["a"]}`:                `"labels" must be an object, got a list`,
		`{"labels":{"why":1}}`:            `"labels[why]" must be a string, got a number`,
		`[]`:                              `it must be an object, got a list`,
		`{"asets":[]}`:                    `"asets" is unknown`,
		`{"run_key":"a","runKey":"b"}`:    `"runKey" is given twice`,
		`{"all":true`:                     `unexpected EOF`,
		`{"all":true}{}`:                  `trailing data after the JSON object`,
		`{"all":true,"all":false}`:        `invalid JSON`,
		strings.Repeat(`{"labels":`, 100): `"labels[labels]" must be a string`,
	} {
		err := jsonpb.Unmarshal([]byte(body), &servov1.TriggerRunRequest{})
		require.ErrorContains(t, err, want, body)
	}
	for body, want := range map[string]string{
		`{"from":"yesterday"}`: `"from" must be a time such as "2025-01-15T10:30:00Z", got "yesterday"`,
		`{"from":null}`:        `"from" must be a string, got null`,
		`{"from":1}`:           `"from" must be a string, got a number`,
		`{"pixels":1.5}`:       `"pixels" must be a whole number, got "1.5"`,
		`{"pixels":1e99}`:      `"pixels" must be a whole number`,
		`{"pixels":true}`:      `"pixels" must be a whole number, got true or false`,
	} {
		err := jsonpb.Unmarshal([]byte(body), &servov1.GetGanttRequest{})
		require.ErrorContains(t, err, want, body)
	}
	err := jsonpb.Unmarshal([]byte(`{"state":["FAILD"]}`), &servov1.ListRunsRequest{})
	require.ErrorContains(t, err, `"state[0]" is unknown: "FAILD"; choose from PENDING, RUNNING`)
	require.NoError(t, jsonpb.Unmarshal([]byte(` {"pixels": 1.0, "from": "2025-01-15T10:30:00+01:00"} `), &servov1.GetGanttRequest{}))
}

// A request is either decoded completely or rejected. Misspelt fields and trailing data are errors, and are never
// ignored.
func FuzzAcceptedRequestsAreDecodedCompletely(f *testing.F) {
	good, err := jsonpb.Marshal(&servov1.TriggerRunRequest{
		Assets: []string{"raw/events"}, Partitions: []string{"date=2025-01-01..2025-01-31"}, RunKey: "k", Labels: map[string]string{"why": "x"},
	})
	require.NoError(f, err)
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), string(good) + `{"all":true}`, string(good) + "]", `{"all":true}`, `{"asets":[]}`,
		`{"all":"yes"}`, `{"labels":{"a":1}}`, `{"all":true,"all":false}`, "null", "[]", "", " ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		first, second := &servov1.TriggerRunRequest{}, &servov1.TriggerRunRequest{}
		if err := jsonpb.Unmarshal(body, first); err != nil {
			if field, ok := errors.AsType[*jsonpb.FieldError](err); ok {
				require.NotEmpty(t, field.Problem)
			}
			return
		}
		standard := &servov1.TriggerRunRequest{}
		require.NoError(t, protojson.Unmarshal(body, standard), "%s", body)
		require.True(t, proto.Equal(first, standard), "%s", body)
		stored, err := jsonpb.Marshal(first)
		require.NoError(t, err)
		require.NoError(t, jsonpb.Unmarshal(stored, second))
		require.True(t, proto.Equal(first, second))
	})
}
