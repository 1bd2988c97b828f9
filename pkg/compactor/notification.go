package compactor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// ErrNoObject says that a notification names no object that was written: it is of another
// event, or of another topic. The receiver acknowledges it. A refused message would be
// delivered again until it expires, and would be refused each time.
var ErrNoObject = errors.New("the notification names no object that was written")

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

// NotifiedObject returns the key of the object that a notification is of. The error is
// [ErrNoObject] for a notification of something else, and another one for a body that is
// not a notification.
func NotifiedObject(body io.Reader) (string, error) {
	var n notification
	if err := contract.ReadJSON(body, &n); err != nil {
		return "", fmt.Errorf("read a push of Pub/Sub or Eventarc: %w", err)
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
