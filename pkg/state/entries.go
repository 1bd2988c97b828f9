package state

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// EntryHash is a hash of a set of ledger entries. It does not depend on the order in which entries are added.
type EntryHash uint64

// Add adds an entry to the set. The caller adds each entry once.
func (h *EntryHash) Add(entry string) {
	sum := sha256.Sum256([]byte(entry))
	*h += EntryHash(binary.BigEndian.Uint64(sum[:]))
}

// String formats the hash.
func (h EntryHash) String() string { return fmt.Sprintf("%016x", uint64(h)) }

// EntriesFrom returns the greatest recorded entry, and a hash of all recorded entries whose ids are not less than the
// parameter "through". It ignores entries in which a timer fired, and dead letters that wait.
func (s *State) EntriesFrom(through string) (last string, hash EntryHash) {
	s.Entries.Ascend(Key2{A: through}, func(row *Entry) bool {
		if row.Entry != last && !row.Timer && !row.Waits() {
			last = row.Entry
			hash.Add(last)
		}
		return true
	})
	return last, hash
}
