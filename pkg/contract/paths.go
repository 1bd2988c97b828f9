package contract

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// The object keys of a worker. A segment of a key consists of letters, digits and
// _ . - = , % ~, and a key is shorter than any store's limit. Keys of outputs contain no "=":
// DuckDB, Spark and others interpret a folder "a=b" as a column.

// markerName is the name of the commit marker in a materialization's folder.
const markerName = "_commit.json"

// quarantineName is the name of the marker of an output that a check has blocked. Such an output becomes the output of
// its materialization only if a decision publishes it.
const quarantineName = "_quarantine.json"

// batchSuffix is the suffix of the directory name of a batch execution. The directory has a folder for each partition
// of the batch. The commit marker is beside the directory, and lists all partitions.
const batchSuffix = ".cells"

// AssetsPrefix returns the prefix of all outputs of a domain: assets/{tenant}/{workspace}/.
func AssetsPrefix(d ids.Domain) string { return "assets/" + d.Tenant + "/" + d.Workspace + "/" }

// AssetPrefix returns the prefix of all outputs of one partition of an asset:
// assets/{tenant}/{workspace}/{namespace}/{name}/{partition}/.
func AssetPrefix(d ids.Domain, asset ids.AssetKey, partitionKey string) string {
	return AssetsPrefix(d) + asset.String() + "/" + PartitionSegment(partitionKey) + "/"
}

// PartitionSegment returns a partition as one segment of an object key: see [ids.PartitionSegment].
func PartitionSegment(partitionKey string) string { return ids.PartitionSegment(partitionKey) }

// MaterializationPrefix returns the prefix of one materialization. Below it are the commit marker and the directories
// of the executions.
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

// ExecutionPrefix returns the directory for the files of one execution. No two executions share a directory, not even
// two executions of the same attempt.
func ExecutionPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID, attemptID, nonce string) string {
	return MaterializationPrefix(d, asset, partitionKey, materializationID) + attemptID + "-" + nonce + "/"
}

// BatchPrefix returns the directory for the files of one execution of a batch. partitionKey is the first partition
// of the batch.
func BatchPrefix(d ids.Domain, asset ids.AssetKey, partitionKey, materializationID, attemptID, nonce string) string {
	return ExecutionPrefix(d, asset, partitionKey, materializationID, attemptID, nonce+batchSuffix)
}

// IsBatchURI reports whether uri is the directory of an execution of a batch.
func IsBatchURI(uri string) bool { return strings.HasSuffix(uri, batchSuffix+"/") }

// CellURI returns the folder of a partition in the directory of a batch. This folder is the URI of the partition's
// output.
func CellURI(batchURI, partitionKey string) string { return ids.CellURI(batchURI, partitionKey) }

// BatchOf returns the directory of the batch that contains the folder of a partition; ok is false if uri is not such
// a folder.
func BatchOf(uri string) (batch string, ok bool) {
	above := parentOf(uri)
	return above, IsBatchURI(above)
}

// IsExecutionURI reports whether uri is the directory of an execution of the materialization
// with this prefix. The URI of every output must be such a directory or, for one partition of a batch, a folder
// inside such a directory.
func IsExecutionURI(uri, materializationPrefix string) bool {
	rest, ok := strings.CutPrefix(uri, materializationPrefix)
	if !ok || len(rest) < 2 || len(rest) > ids.MaxSegment || !strings.HasSuffix(rest, "/") {
		return false
	}
	name := rest[:len(rest)-1]
	return name != "." && name != ".." && !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7e || !ids.IsPlain(byte(r)) })
}

// CommitMarkerKeyOf returns the key of the commit marker beside an execution's directory.
func CommitMarkerKeyOf(uri string) string { return besideOf(uri) + markerName }

// QuarantineMarkerKeyOf returns the key of the quarantine marker beside an execution's directory. This marker describes
// an output that is in quarantine, or that was approved.
func QuarantineMarkerKeyOf(uri string) string { return besideOf(uri) + quarantineName }

// besideOf returns the prefix of an output's materialization. The parameter uri is an execution's directory, or a
// folder in the directory of a batch.
func besideOf(uri string) string {
	above := parentOf(uri)
	if IsBatchURI(above) {
		return parentOf(above)
	}
	return above
}

// parentOf returns the prefix that contains a folder.
func parentOf(uri string) string {
	trimmed := strings.TrimSuffix(uri, "/")
	return trimmed[:strings.LastIndexByte(trimmed, '/')+1]
}

// IsMarker reports whether an object key is the key of a commit marker or of a marker in
// quarantine.
func IsMarker(key string) bool {
	name := key[strings.LastIndexByte(key, '/')+1:]
	return name == markerName || name == quarantineName
}

// LogsPrefix returns the prefix of all logs of a domain.
func LogsPrefix(d ids.Domain) string { return "logs/" + d.Path() + "/" }

// LogKey returns the object key of an attempt's log.
func LogKey(d ids.Domain, runID, taskKey string, attempt int32, attemptID string) string {
	task := ids.Segment(taskKey)
	return LogsPrefix(d) + runID + "/" + task + "/" + strconv.Itoa(int(attempt)) + "-" + attemptID + ".log"
}

// LogPartKey returns the object key of a part of the log of an execution that has not ended. Parts are numbered from
// 1. If an attempt is delivered again, its next execution has parts of its own.
func LogPartKey(logKey, nonce string, number int) string {
	return fmt.Sprintf("%s.%s.%06d", logKey, nonce, number)
}

// ParseLogPartKey splits the key of a part of a log.
func ParseLogPartKey(logKey, key string) (nonce string, number int, ok bool) {
	rest, ok := strings.CutPrefix(key, logKey+".")
	if !ok {
		return "", 0, false
	}
	nonce, digits, ok := strings.Cut(rest, ".")
	number, err := strconv.Atoi(digits)
	return nonce, number, ok && err == nil && number > 0 && nonce != ""
}
