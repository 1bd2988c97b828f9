package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Where a worker's objects are. All keys are made of segments of letters,
// digits and _ . - = , % ~ and are shorter than any store's limit. Keys of outputs
// have no "=": DuckDB, Spark and others take a folder "a=b" for a column.

// markerName is the commit marker's name below a materialization.
const markerName = "_commit.json"

// maxSegment is the longest segment that is spelled out, in bytes; what is
// longer is named by its hash. Files on a disk allow 255.
const maxSegment = 200

// AssetsPrefix is where all outputs of a domain are: assets/{tenant}/{workspace}/.
func AssetsPrefix(d ids.Domain) string { return "assets/" + d.Tenant + "/" + d.Workspace + "/" }

// AssetPrefix is where all outputs of one partition of an asset are:
// assets/{tenant}/{workspace}/{namespace}/{name}/{partition}/.
func AssetPrefix(d ids.Domain, asset ids.AssetKey, partitionKey string) string {
	return AssetsPrefix(d) + asset.String() + "/" + PartitionSegment(partitionKey) + "/"
}

// PartitionSegment is a partition as one segment of an object key, for example
// "date-2012-01-01,region-eu"; "_" for an unpartitioned asset. Different
// partition keys have different segments.
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

// MaterializationPrefix is where the executions of one materialization put
// their files, and its commit marker is.
func MaterializationPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID string) string {
	return AssetPrefix(d, asset, partitionKey) + materializationID + "/"
}

// MarkerKey is the object key of a materialization's commit marker.
func MarkerKey(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + markerName
}

// ExecutionPrefix is where one execution puts its files: attempts, and
// executions of one attempt, never share it.
func ExecutionPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID, attemptID, nonce string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + attemptID + "-" + nonce + "/"
}

// IsExecutionURI reports whether uri is the directory of an execution of the
// materialization with this prefix: what an output's URI must be.
func IsExecutionURI(uri, materializationPrefix string) bool {
	rest, ok := strings.CutPrefix(uri, materializationPrefix)
	if !ok || len(rest) < 2 || len(rest) > maxSegment || !strings.HasSuffix(rest, "/") {
		return false
	}
	name := rest[:len(rest)-1]
	return name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7e || !isPlain(byte(r)) })
}

// MarkerKeyOf is the key of the commit marker beside an execution's directory.
func MarkerKeyOf(uri string) string {
	trimmed := strings.TrimSuffix(uri, "/")
	return trimmed[:strings.LastIndexByte(trimmed, '/')+1] + markerName
}

// LogsPrefix is where all logs of a domain are.
func LogsPrefix(d ids.Domain) string { return "logs/" + d.Path() + "/" }

// LogKey is where what an attempt printed is kept.
func LogKey(d ids.Domain, runID, taskKey string, attempt int32, attemptID string) string {
	var b strings.Builder
	escapeTo(&b, taskKey)
	task := b.String()
	if len(task) > maxSegment || strings.Trim(task, ".") == "" {
		task = hashed(taskKey)
	}
	return LogsPrefix(d) + runID + "/" + task + "/" + strconv.Itoa(int(attempt)) + "-" + attemptID + ".log"
}

// hashed is a segment for what cannot be spelled out. No other begins with "~".
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "~" + hex.EncodeToString(sum[:])
}

// isPlain reports whether a byte stands for itself in a segment.
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
