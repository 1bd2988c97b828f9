package compactor_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/compactor"
)

// Each form in which Google Cloud tells of an object.
func TestNotificationsOfEveryFormNameTheirObject(t *testing.T) {
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
		got, err := compactor.NotifiedObject(strings.NewReader(body))
		require.NoError(t, err, name)
		require.Equal(t, key, got, name)
	}
}

func TestNotificationsOfOtherEventsAreForNobody(t *testing.T) {
	for _, body := range []string{
		`{"message":{"attributes":{"objectId":"ledger/a/b.json","eventType":"OBJECT_DELETE"}}}`,
		`{"message":{"attributes":{"objectId":"ledger/a/b.json","eventType":"OBJECT_METADATA_UPDATE"}}}`,
		`{"specversion":"1.0","type":"google.cloud.storage.object.v1.deleted","data":{"name":"ledger/a/b.json"}}`,
	} {
		_, err := compactor.NotifiedObject(strings.NewReader(body))
		require.ErrorIs(t, err, compactor.ErrOtherEvent, body)
		answer, asked := post(t, "/v1/notifications", []byte(body))
		require.Equal(t, 204, answer.Code, "it is not to come again")
		require.Nil(t, asked)
	}
}
