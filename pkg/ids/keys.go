package ids

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxTaskKey is the maximum length of a task key in bytes.
const MaxTaskKey = 512

// AssetKey names an asset: namespace and name, each of a-z, 0-9 and _.
type AssetKey struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (k AssetKey) String() string { return k.Namespace + "/" + k.Name }

// SQL returns the asset's name in SQL, "namespace.name".
func (k AssetKey) SQL() string { return k.Namespace + "." + k.Name }

// ParseAssetKey parses "namespace/name".
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

// Partition maps each dimension to a value. The zero value is the only partition of an
// unpartitioned asset.
type Partition map[string]string

// Key returns the partition's canonical form (RFC 8785), such as {"date":"2025-01-15"}, or
// "" for an unpartitioned asset.
func (p Partition) Key() string {
	if len(p) == 0 {
		return ""
	}
	if key, ok := p.plainKey(); ok {
		return key
	}
	raw, err := json.Marshal(map[string]string(p))
	canonical := jsontext.Value(raw)
	if err := cmp.Or(err, canonical.Canonicalize()); err != nil {
		panic(fmt.Sprintf("ids: a map of strings has no canonical JSON: %v", err))
	}
	return string(canonical)
}

// plainKey returns the key if its texts need no escapes. For such texts, the order of the bytes is the order that the
// canonical form requires.
func (p Partition) plainKey() (string, bool) {
	size := len("{}")
	for name, value := range p {
		if !isPlain(name) || !isPlain(value) {
			return "", false
		}
		size += len(name) + len(value) + len(`"":"",`)
	}
	key := append(make([]byte, 0, size), '{')
	for i, name := range p.Dimensions() {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(append(append(append(append(key, '"'), name...), `":"`...), p[name]...), '"')
	}
	return string(append(key, '}')), true
}

// isPlain reports whether canonical JSON writes each character of a text as itself.
func isPlain(text string) bool {
	for _, char := range []byte(text) {
		if char < ' ' || char >= 0x7f || char == '"' || char == '\\' {
			return false
		}
	}
	return true
}

// ParsePartition parses a partition key. It accepts only the canonical form.
func ParsePartition(key string) (Partition, error) {
	if key == "" {
		return nil, nil
	}
	if p, ok := parsePlain(key); ok {
		return p, nil
	}
	var p Partition
	if err := json.Unmarshal([]byte(key), &p); err != nil {
		return nil, fmt.Errorf("partition key %q is not a JSON object of strings: %w", key, err)
	}
	if p.Key() != key {
		return nil, fmt.Errorf("partition key %q is not canonical: write %q", key, p.Key())
	}
	return p, nil
}

// parsePlain parses a key in canonical form whose texts need no escapes. It reports false for every other key. Nearly
// all keys are plain, and parsing JSON takes more than ten times as long.
func parsePlain(key string) (Partition, bool) {
	p, last := Partition{}, ""
	rest, ok := strings.CutPrefix(key, "{")
	for ok {
		var name, value string
		if name, rest, ok = plainText(rest, ":"); !ok || len(p) > 0 && name <= last {
			return nil, false
		}
		if value, rest, ok = plainText(rest, ""); !ok {
			return nil, false
		}
		p[name], last = value, name
		if rest == "}" {
			return p, true
		}
		rest, ok = strings.CutPrefix(rest, ",")
	}
	return nil, false
}

// plainText parses a text in quotes at the beginning of an object in JSON. The text in the parameter "after" must
// follow. plainText returns the quoted text and the remainder of the object. It reports false if the object begins in
// another way, or if JSON could encode the text in another form.
func plainText(object, after string) (text, rest string, ok bool) {
	object, opened := strings.CutPrefix(object, `"`)
	text, rest, closed := strings.Cut(object, `"`)
	rest, followed := strings.CutPrefix(rest, after)
	return text, rest, opened && closed && followed && isPlain(text)
}

// Dimensions returns the partition's dimensions in ascending order.
func (p Partition) Dimensions() []string { return slices.Sorted(maps.Keys(p)) }

// Text formats the partition as a selection: "date=2025-01-15;region=eu".
func (p Partition) Text() string {
	texts := make([]string, 0, len(p))
	for _, dimension := range p.Dimensions() {
		texts = append(texts, dimension+"="+p[dimension])
	}
	return strings.Join(texts, ";")
}

// escaper encodes partition values for task keys, injectively.
var escaper = strings.NewReplacer("%", "%25", ",", "%2C", ";", "%3B", "]", "%5D", "[", "%5B", "=", "%3D", "/", "%2F", ":", "%3A")

// EscapeTaskKey encodes a value for use in a task key.
func EscapeTaskKey(value string) string { return escaper.Replace(value) }

// TaskKey returns the key of a task: the asset's key, with the partition in brackets, such as
// "raw/events[date=2025-01-15;region=eu]". If the key is too long, TaskKey returns the beginning of the partition and a
// hash: "raw/events[tenant=a…,5f3c…]". [ParseTaskKey] rejects such a key.
func TaskKey(asset AssetKey, p Partition) string {
	if len(p) == 0 {
		return asset.String()
	}
	var b strings.Builder
	b.WriteString(asset.String())
	for i, dim := range p.Dimensions() {
		b.WriteByte("[;"[min(i, 1)])
		b.WriteString(escaper.Replace(dim))
		b.WriteByte('=')
		b.WriteString(escaper.Replace(p[dim]))
	}
	b.WriteByte(']')
	if b.Len() > MaxTaskKey {
		return shortTaskKey(asset.String(), b.String())
	}
	return b.String()
}

// shortTaskKey returns a key of at most [MaxTaskKey] bytes for a task whose key would be longer.
func shortTaskKey(asset, key string) string {
	const shown = 100
	sum := sha256.Sum256([]byte(key))
	begin := key[len(asset):min(len(key), len(asset)+shown)]
	return fmt.Sprintf("%s%s…,%s]", asset, strings.ToValidUTF8(begin, ""), hex.EncodeToString(sum[:16]))
}

// ReadableKey returns the key of a task in the form in which people write partitions: with colons that are not escaped,
// such as "raw/hourly[hour=2025-03-30T08:00+02:00]". Different keys have different readable forms.
func ReadableKey(key string) string { return strings.ReplaceAll(key, "%3A", ":") }

// StoredKey returns the key of a task from its readable form. It does not change a key that [TaskKey] has returned.
func StoredKey(readable string) string { return strings.ReplaceAll(readable, ":", "%3A") }

// ParseTaskKey returns the asset and the partition that the key of a task names. It accepts a comma between dimensions
// as well as a semicolon, because people write both.
func ParseTaskKey(text string) (asset AssetKey, p Partition, err error) {
	name, rest, bracket := strings.Cut(text, "[")
	if asset, err = ParseAssetKey(name); err != nil || !bracket {
		return asset, nil, err
	}
	inside, closed := strings.CutSuffix(rest, "]")
	if !closed {
		return asset, nil, fmt.Errorf("task key %q: does not end in ]", text)
	}
	p = Partition{}
	for pair := range strings.FieldsFuncSeq(inside, func(r rune) bool { return r == ';' || r == ',' }) {
		dimension, value, found := strings.Cut(pair, "=")
		if _, twice := p[dimension]; !found || twice {
			return asset, nil, fmt.Errorf("task key %q: %q is not DIMENSION=VALUE", text, pair)
		}
		if unescaped, err := url.PathUnescape(value); err == nil {
			value = unescaped
		}
		p[dimension] = value
	}
	return asset, p, nil
}

// GroupKey returns the key of the node that represents all partitions of an asset in a run, so that
// M downstreams of N partitions need M+N edges instead of M×N.
func GroupKey(asset AssetKey) string { return asset.String() + "[*]" }

// OrderKey returns the key of the node that waits until all tasks of an asset in a run have
// ended, whatever their outcome. If the run has no task of the asset, the node waits for
// the asset's upstreams.
func OrderKey(asset AssetKey) string { return asset.String() + "[order]" }

var (
	errTaskKeyEmpty = errors.New("a task key is empty")
	errTaskKeyBytes = errors.New("a task key contains a control character")
)

// ValidateTaskKey returns an error that says why a task key is invalid. Any printable text of the right length is
// valid, not only a key that [TaskKey] can return.
func ValidateTaskKey(key string) error {
	switch {
	case key == "":
		return errTaskKeyEmpty
	case len(key) > MaxTaskKey:
		return fmt.Errorf("task key %.40q… has %d bytes: at most %d are allowed", key, len(key), MaxTaskKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '�' }):
		return fmt.Errorf("%w: %q", errTaskKeyBytes, key)
	}
	return nil
}
