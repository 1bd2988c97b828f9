package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// ErrNoObject means that a notification names no written object: it reports another event, such as a deletion, or
// comes from another topic. The receiver acknowledges the notification, because Pub/Sub would redeliver a rejected
// message until it expires.
var ErrNoObject = errors.New("the notification names no written object")

// notification is a notification of Google Cloud about an object, in one of these formats:
//
//   - a push of Pub/Sub: the attributes name the object (payload formats NONE and JSON_API_V1). If a proxy dropped the
//     attributes, the data is the object as JSON;
//   - a structured CloudEvent of Eventarc, whose data is the object;
//   - a binary CloudEvent of Eventarc: the body is the object. The header with the event
//     type is ignored.
type notification struct {
	Message struct {
		Attributes map[string]string `json:"attributes"`
		Data       []byte            `json:"data"`
	} `json:"message"`

	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`

	Bucket string `json:"bucket"`
	Name   string `json:"name"`
}

// NotifiedObject returns the key of the object in a notification. If the notification names no written object, the
// error is [ErrNoObject]. If the body is not a notification, NotifiedObject returns a different error.
func NotifiedObject(body io.Reader) (string, error) {
	var n notification
	if err := contract.ReadJSON(body, &n); err != nil {
		return "", fmt.Errorf("decode a push of Pub/Sub or Eventarc: %w", err)
	}
	switch {
	case n.Message.Attributes["eventType"] != "" && n.Message.Attributes["eventType"] != "OBJECT_FINALIZE",
		n.Type != "" && !strings.HasSuffix(n.Type, ".object.v1.finalized"):
		return "", ErrNoObject
	case n.Message.Attributes["objectId"] != "":
		return n.Message.Attributes["objectId"], nil
	case n.Bucket != "" && n.Name != "":
		return n.Name, nil
	}
	data := n.Message.Data
	if n.Type != "" {
		data = n.Data
	}
	var object struct {
		Name string `json:"name"`
	}
	if err := contract.ReadJSON(bytes.NewReader(data), &object); err != nil || object.Name == "" {
		return "", ErrNoObject
	}
	return object.Name, nil
}
