package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Tiers of state files.
const (
	TierL0      = "l0"      // the changes of one compaction
	TierL1      = "l1"      // many L0 deltas merged
	TierBase    = "base"    // everything live
	TierHistory = "history" // closed runs, and the index that finds them
)

const (
	manifests  = "manifests/orchestration/"
	hints      = "hints/orchestration/"
	boundaries = "boundary/orchestration/"
	pins       = "pins/orchestration/"
	states     = "state/orchestration/"
	extension  = ".json"

	revisionDigits = 20
)

// Prefix is what the keys of a domain's manifests begin with.
func Prefix(d ids.Domain) string { return manifests + d.Path() + "/" }

// Key is the object key of a revision. Keys sort as revisions do.
func Key(d ids.Domain, revision int64) string { return Prefix(d) + digits(revision) }

// PinPrefix is what the keys of a domain's pins begin with.
func PinPrefix(d ids.Domain) string { return pins + d.Path() + "/" }

// PinKey is the object key of the copy of a revision that outlives collection.
func PinKey(d ids.Domain, revision int64) string { return PinPrefix(d) + digits(revision) }

// HintKey is the object key of the domain's hint.
func HintKey(d ids.Domain) string { return hints + d.Path() + extension }

// BoundaryKey is the object key of the domain's boundary.
func BoundaryKey(d ids.Domain) string { return boundaries + d.Path() + extension }

// StatePrefix is what the keys of a domain's state files begin with.
func StatePrefix(d ids.Domain) string { return states + d.Path() + "/" }

// StateKey is the object key of a state file.
func StateKey(d ids.Domain, table, tier, ulid string) string {
	return StatePrefix(d) + table + "/" + tier + "/" + ulid + ".parquet"
}

// IndexKey is the object key of the index of a table's history.
func IndexKey(d ids.Domain, table, ulid string) string {
	return StatePrefix(d) + table + "/" + TierHistory + "/" + ulid + extension
}

func digits(revision int64) string { return fmt.Sprintf("%0*d%s", revisionDigits, revision, extension) }

// parseRevision is the revision in a key below a prefix.
func parseRevision(prefix, key string) (int64, error) {
	name, below := strings.CutPrefix(key, prefix)
	number, isJSON := strings.CutSuffix(name, extension)
	revision, err := strconv.ParseInt(number, 10, 64)
	if !below || !isJSON || err != nil || revision < 1 || digits(revision) != name {
		return 0, fmt.Errorf("key %.400q is not that of a revision, %s{%d digits}%s", key, prefix, revisionDigits, extension)
	}
	return revision, nil
}
