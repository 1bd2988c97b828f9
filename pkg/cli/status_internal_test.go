package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine/view"
)

func TestStatusNamesRunKeysThatWereChosen(t *testing.T) {
	require.Equal(t, "manual, run key nightly", triggerText(&view.Status{Trigger: "manual", RunKey: "nightly"}))
	require.Equal(t, "manual", triggerText(&view.Status{Trigger: "manual", RunKey: api.IdempotentPrefix + "ada:TriggerRun:1f"}))
	require.Equal(t, "retry of r1", triggerText(&view.Status{Trigger: "retry", ParentRunID: "r1"}))
}
