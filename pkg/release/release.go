// Package release describes releases. A release is a project as it is deployed: immutable, and named by the hash of
// its content. The package computes the fingerprints of assets and the differences between releases. It is pure. This
// package is not a stable API.
package release

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// SchemaVersion is the version of the stored objects.
const SchemaVersion = 1

// Limits of the objects of a release, uncompressed.
const (
	MaxBytes       = 32 << 20
	MaxCodeBytes   = 256 << 20
	MaxSourceBytes = 256 << 20
	MaxSourceFiles = 100_000
)

// Release is a compiled project, stored as releases/{domain}/{sha256}.json in canonical JSON. Its queries and
// commands are in its code object.
type Release struct {
	SchemaVersion int `json:"schema_version"`
	Settings
	// Assets are sorted by key.
	Assets []Asset `json:"assets"`
	// Code is the SHA-256 of the code object, uncompressed.
	Code string `json:"code"`
	// Source is the SHA-256 of the archive of the project's files, uncompressed. Empty: the release
	// has none, and its tasks execute in the project's folder.
	Source string `json:"source,omitempty"`
}

// Settings are the settings of a project in its environment.
type Settings struct {
	Project            string              `json:"project"`
	Environment        string              `json:"environment,omitempty"`
	Pools              map[string]int32    `json:"pools,omitempty"`
	MaxConcurrentTasks int32               `json:"max_concurrent_tasks,omitempty"`
	MaxParallelism     int32               `json:"max_parallelism,omitempty"`
	Data               []string            `json:"data,omitempty"`
	Vars               map[string]plan.Var `json:"vars,omitempty"`
	// Publish names the places where outputs are published. Nil: there are none.
	Publish *Places `json:"publish,omitempty"`
	// Schedules are sorted by name.
	Schedules []event.Schedule `json:"schedules,omitempty"`
	// Channels are sorted by name. Alerts are in the order of the project.
	Channels []Channel         `json:"channels,omitempty"`
	Alerts   []event.AlertRule `json:"alerts,omitempty"`
	// Watched are the deadlines, freshness and SLAs of assets, sorted by asset.
	Watched []event.WatchedAsset `json:"watched,omitempty"`
}

// Places are the published places: their paths as in servo.yaml, relative to the project.
type Places struct {
	Folder string `json:"folder,omitempty"`
	DuckDB string `json:"duckdb,omitempty"`
}

// Asset is an asset of a release.
type Asset struct {
	Key  string   `json:"key"`
	Kind string   `json:"kind"` // sql or command
	Deps []string `json:"deps,omitempty"`
	// Code, Gate, Policy and Space are fingerprints: see [Fingerprints].
	Fingerprints
}

// Code holds the definitions of a release's assets, stored as code/{domain}/{sha256}.json.zst.
type Code struct {
	SchemaVersion int `json:"schema_version"`
	// Parser is the version of the parser that parsed the queries into syntax trees.
	Parser string `json:"parser"`
	// Assets are sorted by key. [plan.Asset.Code] is the fingerprint.
	Assets []plan.Asset `json:"assets"`
}

// Compiled is a release with its code object.
type Compiled struct {
	*Release
	SHA     string // the hash that names the release
	Data    []byte // the canonical JSON of the release
	Code    *Code
	Encoded []byte // the code object's canonical JSON
}

// Ref returns the object key of a release in a domain.
func Ref(d ids.Domain, sha string) string { return "releases/" + d.Path() + "/" + sha + ".json" }

// CodeRef returns the object key of a code object in a domain.
func CodeRef(d ids.Domain, sha string) string { return "code/" + d.Path() + "/" + sha + ".json.zst" }

// SourceRef returns the object key of a source archive in a domain.
func SourceRef(d ids.Domain, sha string) string { return "source/" + d.Path() + "/" + sha + ".tar.zst" }

// Hash returns the hexadecimal SHA-256 of an object.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// shortDigits is the number of digits of a hash that messages show. They are enough to identify a release of a
// domain.
const shortDigits = 12

// Short returns the first digits of a release's hash, as messages show them.
func Short(sha string) string { return sha[:min(len(sha), shortDigits)] }

// ValidHash reports whether a text is the hexadecimal SHA-256 of an object.
func ValidHash(s string) bool {
	data, err := hex.DecodeString(s)
	return err == nil && len(data) == sha256.Size && hex.EncodeToString(data) == s
}

// Decode reads a release whose hash is sha.
func Decode(data []byte, sha string) (*Release, error) {
	var r Release
	if err := decode(data, sha, &r); err != nil {
		return nil, fmt.Errorf("decode release: %w", err)
	}
	if r.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("decode release: unsupported format version %d: this program reads version %d", r.SchemaVersion, SchemaVersion)
	}
	return &r, nil
}

// DecodeCode reads a code object whose hash is sha.
func DecodeCode(data []byte, sha string) (*Code, error) {
	var c Code
	if err := decode(data, sha, &c); err != nil {
		return nil, fmt.Errorf("decode the code of a release: %w", err)
	}
	if c.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("decode the code of a release: unsupported format version %d: this program reads version %d", c.SchemaVersion, SchemaVersion)
	}
	return &c, nil
}

func decode(data []byte, sha string, to any) error {
	if got := Hash(data); got != sha {
		return fmt.Errorf("its content has the hash %s instead of %s: it is damaged", got, sha)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(to)
}

// canonical returns canonical JSON (RFC 8785).
func canonical(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	text := jsontext.Value(data)
	err = text.Canonicalize()
	return text, err
}

// find returns the asset with a key in a sorted list, or nil.
func find(assets []plan.Asset, key ids.AssetKey) *plan.Asset {
	i, ok := slices.BinarySearchFunc(assets, key, func(a plan.Asset, key ids.AssetKey) int { return plan.CompareKeys(a.Key, key) })
	if !ok {
		return nil
	}
	return &assets[i]
}
