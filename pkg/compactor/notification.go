package compactor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// ErrOtherEvent says that a notification is not of an object that was written. It
// is to be acknowledged, and nothing to be done: a bucket that notifies of more than
// it should costs requests, and no errors.
var ErrOtherEvent = errors.New("the push is of another event than that an object was finalized")

// notification is what Google Cloud sends of an object, in one of these forms:
//
//   - a push of Pub/Sub whose attributes name the object (payload format NONE, and
//     JSON_API_V1), or, where a proxy dropped those, whose data is the object as JSON;
//   - a CloudEvent of Eventarc, structured, whose data is the object;
//   - a CloudEvent of Eventarc, binary: the body is the object, and its type is in a
//     header that is not looked at.
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

// NotifiedObject is the key of the object that a notification is of.
func NotifiedObject(body io.Reader) (string, error) {
	var n notification
	if err := contract.ReadJSON(body, &n); err != nil {
		return "", fmt.Errorf("the body is not a push of Pub/Sub or Eventarc: %w", err)
	}
	switch {
	case n.Message.Attributes["eventType"] != "" && n.Message.Attributes["eventType"] != "OBJECT_FINALIZE",
		n.Type != "" && !strings.HasSuffix(n.Type, ".object.v1.finalized"):
		return "", ErrOtherEvent
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
	if err := json.Unmarshal(data, &object); err != nil || object.Name == "" {
		return "", errors.New("the push names no object: neither attributes.objectId nor a payload with a name")
	}
	return object.Name, nil
}
