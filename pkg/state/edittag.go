package state

import (
	"crypto/sha256"
	"encoding/hex"
)

// EditTag identifies what a person can change about a schedule: its definition, and the last command that paused or
// resumed it. Ticks do not change the tag.
func (r *Schedule) EditTag() string { return editTag(r.Version, r.CommandID) }

// EditTag identifies the last command about a backfill. The progress of the backfill does not change the tag.
func (r *Backfill) EditTag() string { return editTag(r.BackfillID, r.CommandID) }

func editTag(version, command string) string {
	const length = 8
	sum := sha256.Sum256([]byte(version + "\n" + command))
	return hex.EncodeToString(sum[:length])
}
