package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// The object keys of a worker. A segment of a key consists of letters, digits and
// _ . - = , % ~, and a key is shorter than any store's limit. Keys of outputs contain no "=":
// DuckDB, Spark and others interpret a folder "a=b" as a column.

// markerName is the name of the commit marker in a materialization's folder.
const markerName = "_commit.json"

// quarantineName is the name of the marker of an output that a check has blocked. It is the output of
// its materialization only if a decision publishes it.
const quarantineName = "_quarantine.json"

// maxSegment bounds a segment, in bytes; a longer one is replaced by its hash. File systems
// allow 255.
const maxSegment = 200

// AssetsPrefix returns the prefix of all outputs of a domain: assets/{tenant}/{workspace}/.
func AssetsPrefix(d ids.Domain) string { return "assets/" + d.Tenant + "/" + d.Workspace + "/" }

// AssetPrefix returns the prefix of all outputs of one partition of an asset:
// assets/{tenant}/{workspace}/{namespace}/{name}/{partition}/.
func AssetPrefix(d ids.Domain, asset ids.AssetKey, partitionKey string) string {
	return AssetsPrefix(d) + asset.String() + "/" + PartitionSegment(partitionKey) + "/"
}

// PartitionSegment returns a partition as one segment of an object key, for example
// "date-2012-01-01,region-eu", or "_" for an unpartitioned asset. Different partition keys
// have different segments.
func PartitionSegment(partitionKey string) string {
	if partitionKey == "" {
		return "_"
	}
	p, err := ids.ParsePartition(partitionKey)
	if err != nil || len(p) == 0 {
		return hashed(partitionKey)
	}
	var b strings.Builder
	for i, dimension := range p.Dimensions() {
		if i > 0 {
			b.WriteByte(',')
		}
		var name strings.Builder
		escapeTo(&name, dimension)
		b.WriteString(strings.ReplaceAll(name.String(), "-", "%2D")) // the first "-" ends the dimension
		b.WriteByte('-')
		escapeTo(&b, p[dimension])
	}
	if b.Len() > maxSegment {
		return hashed(partitionKey)
	}
	return b.String()
}

// MaterializationPrefix returns the prefix of one materialization: the directories of its
// executions and its commit marker.
func MaterializationPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID string) string {
	return AssetPrefix(d, asset, partitionKey) + materializationID + "/"
}

// CommitMarkerKey returns the object key of a materialization's commit marker.
func CommitMarkerKey(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + markerName
}

// QuarantineMarkerKey returns the object key of the marker of a materialization in quarantine.
func QuarantineMarkerKey(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + quarantineName
}

// ExecutionPrefix returns the directory for the files of one execution. No two executions
// share one, not even two of the same attempt.
func ExecutionPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID, attemptID, nonce string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + attemptID + "-" + nonce + "/"
}

// IsExecutionURI reports whether uri is the directory of an execution of the materialization
// with this prefix. The URI of every output must be one.
func IsExecutionURI(uri, materializationPrefix string) bool {
	rest, ok := strings.CutPrefix(uri, materializationPrefix)
	if !ok || len(rest) < 2 || len(rest) > maxSegment || !strings.HasSuffix(rest, "/") {
		return false
	}
	name := rest[:len(rest)-1]
	return name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7e || !isPlain(byte(r)) })
}

// CommitMarkerKeyOf returns the key of the commit marker beside an execution's directory.
func CommitMarkerKeyOf(uri string) string { return besideOf(uri) + markerName }

// QuarantineMarkerKeyOf returns the key of the marker of an output in quarantine, or of an approved
// output, beside an execution's directory.
func QuarantineMarkerKeyOf(uri string) string { return besideOf(uri) + quarantineName }

// besideOf returns the prefix of the materialization of an execution's directory.
func besideOf(uri string) string {
	trimmed := strings.TrimSuffix(uri, "/")
	return trimmed[:strings.LastIndexByte(trimmed, '/')+1]
}

// IsMarker reports whether an object key is that of a commit marker or of a marker in quarantine.
func IsMarker(key string) bool {
	name := key[strings.LastIndexByte(key, '/')+1:]
	return name == markerName || name == quarantineName
}

// LogsPrefix returns the prefix of all logs of a domain.
func LogsPrefix(d ids.Domain) string { return "logs/" + d.Path() + "/" }

// LogKey returns the object key of an attempt's log.
func LogKey(d ids.Domain, runID, taskKey string, attempt int32, attemptID string) string {
	var b strings.Builder
	escapeTo(&b, taskKey)
	task := b.String()
	if len(task) > maxSegment || strings.Trim(task, ".") == "" {
		task = hashed(taskKey)
	}
	return LogsPrefix(d) + runID + "/" + task + "/" + strconv.Itoa(int(attempt)) + "-" + attemptID + ".log"
}

// hashed returns the segment for a text that is too long or not a valid segment. Only these
// segments begin with "~".
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "~" + hex.EncodeToString(sum[:])
}

// isPlain reports whether a byte needs no escape in a segment.
func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

func escapeTo(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		if isPlain(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
}
