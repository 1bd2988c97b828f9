package ids

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxTaskKey is the longest task key, in bytes.
const MaxTaskKey = 512

// AssetKey names an asset: namespace and name, each of a-z, 0-9 and _.
type AssetKey struct {
	Namespace string
	Name      string
}

// String is "namespace/name".
func (k AssetKey) String() string { return k.Namespace + "/" + k.Name }

// SQL is the asset's name in SQL, "namespace.name".
func (k AssetKey) SQL() string { return k.Namespace + "." + k.Name }

// ParseAssetKey reads "namespace/name".
func ParseAssetKey(s string) (AssetKey, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || !isWord(namespace) || !isWord(name) {
		return AssetKey{}, fmt.Errorf("invalid asset key %q: expected namespace/name using a-z, 0-9 and _", s)
	}
	return AssetKey{namespace, name}, nil
}

func isWord(s string) bool {
	if s == "" {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// Partition is one value a dimension. The zero value is the only partition of
// an unpartitioned asset.
type Partition map[string]string

// Key is the partition's canonical form (RFC 8785), for example
// {"date":"2025-01-15"}; empty for an unpartitioned asset.
func (p Partition) Key() string {
	if len(p) == 0 {
		return ""
	}
	raw, err := json.Marshal(map[string]string(p))
	canonical := jsontext.Value(raw)
	if err := cmp.Or(err, canonical.Canonicalize()); err != nil {
		panic(fmt.Sprintf("ids: a map of strings has no canonical JSON: %v", err))
	}
	return string(canonical)
}

// ParsePartition reads a partition key in its canonical form, and no other.
func ParsePartition(key string) (Partition, error) {
	if key == "" {
		return nil, nil
	}
	var p Partition
	if err := json.Unmarshal([]byte(key), &p); err != nil {
		return nil, fmt.Errorf("partition key %q is not a JSON object of strings: %w", key, err)
	}
	if p.Key() != key {
		return nil, fmt.Errorf("partition key %q is not canonical; write %q", key, p.Key())
	}
	return p, nil
}

// Dimensions are the partition's dimensions in order.
func (p Partition) Dimensions() []string { return slices.Sorted(maps.Keys(p)) }

// escaper makes partition values safe inside a task key, injectively.
var escaper = strings.NewReplacer("%", "%25", ",", "%2C", "]", "%5D", "[", "%5B", "=", "%3D", "/", "%2F", ":", "%3A")

// TaskKey names a task of a run: the asset's key, with the partition in
// brackets: "raw/events[date=2025-01-15,region=eu]".
func TaskKey(asset AssetKey, p Partition) string {
	if len(p) == 0 {
		return asset.String()
	}
	var b strings.Builder
	b.WriteString(asset.String())
	for i, dim := range p.Dimensions() {
		b.WriteByte("[,"[min(i, 1)])
		b.WriteString(escaper.Replace(dim))
		b.WriteByte('=')
		b.WriteString(escaper.Replace(p[dim]))
	}
	b.WriteByte(']')
	return b.String()
}

// GroupKey names the node that stands for all partitions of an asset in a run,
// so that M downstreams of N partitions need M+N edges, not M×N.
func GroupKey(asset AssetKey) string { return asset.String() + "[*]" }

// OrderKey names the node of a run that waits until all tasks of an asset have ended,
// whatever their outcome. For an asset that the run does not make, the node waits for the
// assets before it.
func OrderKey(asset AssetKey) string { return asset.String() + "[order]" }

var (
	errTaskKeyEmpty = errors.New("a task key is empty")
	errTaskKeyBytes = errors.New("a task key has a control character")
)

// ValidateTaskKey reports what is wrong with a task key. Any printable text of
// the right length is one; keys of assets are what [TaskKey] makes.
func ValidateTaskKey(key string) error {
	switch {
	case key == "":
		return errTaskKeyEmpty
	case len(key) > MaxTaskKey:
		return fmt.Errorf("task key %.40q… has %d bytes; at most %d are allowed", key, len(key), MaxTaskKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '�' }):
		return fmt.Errorf("%w: %q", errTaskKeyBytes, key)
	}
	return nil
}
