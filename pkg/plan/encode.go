package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxBytes is the maximum size of a stored plan.
const MaxBytes = event.MaxPlanBytes

// Ref returns the object key of a plan in a domain: its PlanRef.
func Ref(d ids.Domain, sha string) string { return "plans/" + d.Path() + "/" + sha + ".json" }

// Encode returns the plan as canonical JSON (RFC 8785), which is its stored form, and the
// hexadecimal SHA-256 of that JSON, which names the object.
func (p *Plan) Encode() (data []byte, sha string, err error) {
	data, err = canonical(p)
	if err != nil {
		return nil, "", fmt.Errorf("encode plan: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, "", fmt.Errorf("the plan has %d bytes; at most %d are allowed: select fewer partitions", len(data), MaxBytes)
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:]), nil
}

func canonical(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	text := jsontext.Value(data)
	err = text.Canonicalize()
	return text, err
}

// fingerprinted is the part of a plan that a fingerprint covers.
type fingerprinted struct {
	Assets map[string]Work `json:"assets"`
	Tasks  []event.TaskDef `json:"tasks"`
}

// Fingerprint returns the hexadecimal SHA-256 of what the plan requests: the tasks, their work and their
// dependencies. It ignores the folder of the project and the inputs from earlier runs. A request that is repeated
// after a crash therefore has the same fingerprint, even if other runs have committed outputs since.
func (p *Plan) Fingerprint() (string, error) {
	a := fingerprinted{Assets: p.Assets, Tasks: make([]event.TaskDef, len(p.Tasks))}
	for i := range p.Tasks {
		a.Tasks[i] = p.Tasks[i].TaskDef
	}
	return Hash(a)
}

// Hash returns the hexadecimal SHA-256 of a value's canonical JSON.
func Hash(v any) (string, error) {
	data, err := canonical(v)
	if err != nil {
		return "", fmt.Errorf("encode fingerprint: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Open works like Decode, and also compares the plan with its object key, which contains the hash of its content. A
// damaged plan can still be a valid plan with other code or other inputs.
func Open(ref string, data []byte) (*Plan, error) {
	sum := sha256.Sum256(data)
	if path.Base(ref) != hex.EncodeToString(sum[:])+".json" {
		return nil, errors.New("decode plan: its content does not match the hash in its name: it is damaged")
	}
	return Decode(data)
}

// Decode reads and validates a stored plan. It ignores unknown fields, because a newer Servo
// may have written them.
func Decode(data []byte) (*Plan, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("decode plan: it has %d bytes; at most %d are allowed", len(data), MaxBytes)
	}
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("decode plan: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("decode plan: %w", err)
	}
	return &p, nil
}
