package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxBytes is the most bytes that a stored plan may have.
const MaxBytes = event.MaxPlanBytes

// Ref is the object key of a plan in a domain: its PlanRef.
func Ref(d ids.Domain, sha string) string { return "plans/" + d.Path() + "/" + sha + ".json" }

// Encode is the plan as it is stored, canonical JSON (RFC 8785), and the SHA-256
// of it in hexadecimal, which names it.
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

// asked is what a fingerprint is of.
type asked struct {
	Assets map[string]Work `json:"assets"`
	Tasks  []event.TaskDef `json:"tasks"`
}

// Fingerprint is the SHA-256, in hexadecimal, of what was asked for: the tasks,
// what they do, and how they depend on each other. It leaves out what earlier
// runs made, and where the project is: a run that is asked for again, after a
// crash, has the same fingerprint, whatever was made in between.
func (p *Plan) Fingerprint() (string, error) {
	a := asked{Assets: p.Assets, Tasks: make([]event.TaskDef, len(p.Tasks))}
	for i := range p.Tasks {
		a.Tasks[i] = p.Tasks[i].TaskDef
	}
	return Hash(a)
}

// Hash is the SHA-256, in hexadecimal, of a value's canonical JSON.
func Hash(v any) (string, error) {
	data, err := canonical(v)
	if err != nil {
		return "", fmt.Errorf("encode fingerprint: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Decode reads a stored plan and checks it. Fields that it does not know are
// ignored: a newer Servo may have written them.
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
