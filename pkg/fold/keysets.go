package fold

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of all key sets of a domain together. Removed keys count, because they stay in the state.
const (
	MaxSetKeys  = 1_000_000
	MaxSetBytes = 64 << 20
	MaxKeySets  = 1000
)

// checkKeys rejects a command that would exceed the limits of key sets.
func (f *folder) checkKeys(p *event.PartitionsChanged, c *checked) verdict {
	more := unknownKeys(f.st, p.KeySet, slices.Concat(p.Add, p.Remove))
	c.added.Keys += more.Keys
	c.added.Bytes += more.Bytes
	if more.Keys == 0 {
		return verdict{}
	}
	if detail := exceeds(f.st, p.KeySet, c.added); detail != "" {
		return verdict{outcome: state.Conflict, detail: detail}
	}
	return verdict{}
}

// KeyLimit describes the limit that a key set would exceed with more keys, or returns "".
func KeyLimit(s *state.State, set string, keys []string) string {
	if more := unknownKeys(s, set, keys); more.Keys > 0 {
		return exceeds(s, set, more)
	}
	return ""
}

// unknownKeys counts the given keys that a set has never had.
func unknownKeys(s *state.State, set string, keys []string) (more state.KeySet) {
	for _, key := range keys {
		if _, known := s.SetKey(set, key); !known {
			more.Keys++
			more.Bytes += len(key) + len("\n")
		}
	}
	return more
}

// exceeds describes the limit that would be exceeded if keys were added to a set, or returns "". The argument more
// contains the number and the size of these keys.
func exceeds(s *state.State, set string, more state.KeySet) string {
	sets := s.ListKeySets()
	exists := false
	for _, other := range sets {
		more.Keys += other.Keys + other.Removed
		more.Bytes += other.Bytes
		exists = exists || other.Name == set
	}
	switch {
	case more.Keys > MaxSetKeys:
		return fmt.Sprintf("the key sets would have %d keys, removed ones included: at most %d are allowed", more.Keys, MaxSetKeys)
	case more.Bytes > MaxSetBytes:
		return fmt.Sprintf("the keys of all sets would have %d bytes, removed ones included: at most %d are allowed", more.Bytes, MaxSetBytes)
	case !exists && len(sets) >= MaxKeySets:
		return fmt.Sprintf("the workspace has %d key sets: at most %d are allowed", len(sets), MaxKeySets)
	}
	return ""
}

// partitionsChanged adds and removes keys. It changes no partition.
func (f *folder) partitionsChanged(p *event.PartitionsChanged) verdict {
	changes := make([]keyChange, 0, len(p.Add)+len(p.Remove))
	for _, key := range p.Add {
		changes = append(changes, keyChange{key, false})
	}
	for _, key := range p.Remove {
		changes = append(changes, keyChange{key, true})
	}
	changed, late := f.changeKeys(p.KeySet, changes)
	switch {
	case changed:
		return folded
	case late:
		return stale("a later command has changed the keys")
	}
	return noChange
}

// keyChange adds or removes a key.
type keyChange struct {
	key    string
	remove bool
}

// changeKeys applies changes to a key set, block by block. Adding an existing key and removing a removed key have no
// effect. The result late is true if a key stays unchanged because a later event has already changed it in the opposite
// way.
func (f *folder) changeKeys(set string, changes []keyChange) (changed, late bool) {
	slices.SortFunc(changes, func(a, b keyChange) int { return cmp.Compare(a.key, b.key) })
	changes = slices.CompactFunc(changes, func(a, b keyChange) bool { return a.key == b.key })
	for len(changes) > 0 {
		block, next := f.st.KeyBlockOf(set, changes[0].key)
		n := len(changes)
		if next != "" {
			n, _ = slices.BinarySearchFunc(changes, next, func(c keyChange, key string) int { return cmp.Compare(c.key, key) })
		}
		blockChanged, blockLate := f.changeBlock(set, block, changes[:n])
		changed, late = changed || blockChanged, late || blockLate
		changes = changes[n:]
	}
	return changed, late
}

// changeBlock applies sorted changes to a block of a key set, or to a set that has no blocks yet. It splits the block
// if it becomes too large.
func (f *folder) changeBlock(set string, block *state.KeyBlock, changes []keyChange) (changed, late bool) {
	var keys []state.SetKey
	first := ""
	if block != nil {
		first = block.First
		keys = slices.Collect(block.All())
	}
	merged := make([]state.SetKey, 0, len(keys)+len(changes))
	for _, c := range changes {
		n, known := slices.BinarySearchFunc(keys, c.key, func(k state.SetKey, key string) int { return cmp.Compare(k.Key, key) })
		merged, keys = append(merged, keys[:n]...), keys[n:]
		if !known {
			k := state.SetKey{Key: c.key, Removed: c.remove}
			if c.remove {
				k.Version = f.ev.ID // a later addition must win, even if this command is delivered again
			}
			merged, changed = append(merged, k), true
			continue
		}
		k := keys[0]
		switch {
		case k.Removed == c.remove:
		case k.Version > f.ev.ID:
			late = true
		default:
			if c.remove || k.ChangedSeq > 0 {
				k.ChangedSeq = f.seq
			}
			k.Removed, k.Version, changed = c.remove, f.ev.ID, true
		}
		merged, keys = append(merged, k), keys[1:]
	}
	if !changed {
		return false, late
	}
	for _, row := range state.KeyBlocks(set, first, append(merged, keys...)) {
		put(f, f.st.KeySets, row)
	}
	return true, late
}
