package binding_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/binding"
)

// The publisher sends an alert with its data and attributes, and keeps the connection for the next alert.
func TestPublisherPublishesAlerts(t *testing.T) {
	s := emulate(t)
	publish := binding.Publisher()
	for _, id := range []string{"one", "two"} {
		require.NoError(t, publish(t.Context(), topic, []byte(`{"id":"`+id+`"}`), map[string]string{"ce-id": id}))
	}
	messages := s.Messages()
	require.Len(t, messages, 2)
	for i, id := range []string{"one", "two"} {
		require.JSONEq(t, `{"id":"`+id+`"}`, string(messages[i].Data))
		require.Equal(t, map[string]string{"ce-id": id}, messages[i].Attributes)
	}
	require.ErrorContains(t, publish(t.Context(), "projects/p/topics/none", nil, nil), "publish to projects/p/topics/none")
}
