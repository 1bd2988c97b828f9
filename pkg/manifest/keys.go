package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Tiers of state files.
const (
	TierL0      = "l0"      // changes of one fold, or merged inline deltas
	TierL1      = "l1"      // merged L0 deltas
	TierBase    = "base"    // the live state
	TierHistory = "history" // segments of closed rows, and their index
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

// Prefix returns the key prefix of a domain's manifests.
func Prefix(d ids.Domain) string { return manifests + d.Path() + "/" }

// Key returns the object key of a revision. Keys sort like revisions.
func Key(d ids.Domain, revision int64) string { return Prefix(d) + digits(revision) }

// PinPrefix returns the key prefix of a domain's pins.
func PinPrefix(d ids.Domain) string { return pins + d.Path() + "/" }

// PinKey returns the object key of a revision's pin.
func PinKey(d ids.Domain, revision int64) string { return PinPrefix(d) + digits(revision) }

// HintKey returns the object key of a domain's hint.
func HintKey(d ids.Domain) string { return hints + d.Path() + extension }

// BoundaryKey returns the object key of a domain's boundary.
func BoundaryKey(d ids.Domain) string { return boundaries + d.Path() + extension }

// StatePrefix returns the key prefix of a domain's state files.
func StatePrefix(d ids.Domain) string { return states + d.Path() + "/" }

// StateKey returns the object key of a state file.
func StateKey(d ids.Domain, table, tier, ulid string) string {
	return StatePrefix(d) + table + "/" + tier + "/" + ulid + ".parquet"
}

// IndexKey returns the object key of an index of a table's history.
func IndexKey(d ids.Domain, table, ulid string) string {
	return StatePrefix(d) + table + "/" + TierHistory + "/" + ulid + extension
}

func digits(revision int64) string { return fmt.Sprintf("%0*d%s", revisionDigits, revision, extension) }

// parseRevision returns the revision in a key of the form prefix + digits(revision).
func parseRevision(prefix, key string) (int64, error) {
	name, below := strings.CutPrefix(key, prefix)
	number, isJSON := strings.CutSuffix(name, extension)
	revision, err := strconv.ParseInt(number, 10, 64)
	if !below || !isJSON || err != nil || revision < 1 || digits(revision) != name {
		return 0, fmt.Errorf("key %.400q is not a revision key: expected %s{%d digits}%s", key, prefix, revisionDigits, extension)
	}
	return revision, nil
}
