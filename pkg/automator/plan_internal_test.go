package automator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A message that was cut within a character is not valid UTF-8. Its event would be rejected, so the refusal would
// never be recorded.
func TestRefusalMessageIsCutBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		message := strings.Repeat("x", shift) + strings.Repeat("€", maxMessage)
		cut := refusal(errors.New(message)).Message
		require.True(t, utf8.ValidString(cut), "shifted by %d", shift)
		require.LessOrEqual(t, len(cut), maxMessage+len("…"))
		require.Greater(t, len(cut), maxMessage-len("€"))
	}
	require.Equal(t, "file \uFFFD", refusal(errors.New("file \xff")).Message)
}

func TestDamagedDocumentHasCodeOfItsOwn(t *testing.T) {
	err := fmt.Errorf("plan a chunk: %w", &engine.DamagedError{Err: errors.New("the list is damaged")})
	cause := refusal(err)
	require.Equal(t, fold.DocumentDamaged, cause.Code)
	require.True(t, cause.Retryable, "a tick waits until somebody restores the release")
}

func TestOvertakenRequestIsPlannedAgain(t *testing.T) {
	cause := refusal(fmt.Errorf("plan a chunk: %w", engine.ErrOvertaken))
	require.Equal(t, "OVERTAKEN", cause.Code)
	require.True(t, cause.Retryable)
}

func TestMissingInputHasItsCode(t *testing.T) {
	cause := refusal(fmt.Errorf("%w: no selected partition can run", engine.ErrMissingInput))
	require.Equal(t, plan.CodeMissingInput, cause.Code)
}

// When the request is planned, the run that will materialize the input has not started yet: it was requested for the
// same minute.
func TestMissingInputWaitsForRequestedRuns(t *testing.T) {
	row := &state.RunRequest{RequestID: "at:reader", State: state.RequestPending}
	again := &state.RunRequest{RequestID: "at:reader", State: state.RequestPending, Generation: 1, ErrorCode: plan.CodeMissingInput}
	maker := &state.RunRequest{RequestID: "tick:maker", State: state.RequestPending}
	lacking := &state.RunRequest{RequestID: "tick:other", State: state.RequestPending, Generation: 3, ErrorCode: plan.CodeMissingInput}
	tomorrow := &state.RunRequest{RequestID: "at:tomorrow", State: state.RequestWaiting, NextAt: 1}
	started := &state.RunRequest{RequestID: "at:started", State: state.RequestStarted}
	live := &state.Run{RunID: "01M8DTSM05YAG24P4KXNARZC3B", State: state.RunRunning}
	for name, c := range map[string]struct {
		row    *state.RunRequest
		others []*state.RunRequest
		runs   []*state.Run
		want   bool
	}{
		"the first try":              {row, nil, nil, true},
		"nothing else":               {again, nil, nil, false},
		"a request to be planned":    {again, []*state.RunRequest{maker}, nil, true},
		"a live run":                 {again, nil, []*state.Run{live}, true},
		"another that lacks inputs":  {again, []*state.RunRequest{lacking}, nil, false},
		"one that waits for its day": {again, []*state.RunRequest{tomorrow, started}, nil, false},
	} {
		s := state.New(foldtest.Domain)
		s.Load(state.Set(&state.Rows{}, append(c.others, c.row)))
		s.Load(state.Set(&state.Rows{}, c.runs))
		require.Equal(t, c.want, mayArrive(s, c.row), name)
	}
}

// A retry would be useless: the ledger would reject the invalid event again.
func TestRejectedEventIsNotRetried(t *testing.T) {
	cause := refusal(fmt.Errorf("append to the ledger: %w", &event.DecodeError{Reason: event.ReasonInvalid, Detail: "payload.labels: too many"}))
	require.Equal(t, unplannable, cause.Code)
	require.False(t, cause.Retryable)
}

func TestTriggerOfManualTickIsManual(t *testing.T) {
	for request, want := range map[string]string{"manual:01J": "manual", "tick:nightly:1": "cron", "backfill:nightly:1": "cron"} {
		trigger := triggerOf(&state.RunRequest{RequestID: request, ScheduleID: "nightly", TickID: "01K", Actor: "user:ann"})
		require.Equal(t, want, trigger.Type)
		require.Equal(t, "nightly", trigger.ScheduleID)
		require.Equal(t, "ann", trigger.UserID)
	}
	require.Equal(t, "manual", triggerOf(&state.RunRequest{RequestID: "at:01J"}).Type)
}

func TestRefusalOfTickNamesFieldsOfSchedule(t *testing.T) {
	require.Equal(t, plan.Schedule, formOf(&state.RunRequest{ScheduleID: "nightly"}))
	require.Equal(t, plan.Fields, formOf(&state.RunRequest{}), "a command or a request to the API has recorded it")
}
