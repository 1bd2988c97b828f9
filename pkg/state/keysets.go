package state

import (
	"iter"
	"strconv"
	"strings"
)

// KeyBlock is a row of key_sets: neighbouring keys of a key set. Each block contains a range of the set's sorted
// keys, so a change of one key writes only one small row.
type KeyBlock struct {
	Set string `col:"key_set,key"`
	// First is the lower bound of the keys of the block, inclusive. It is "" for the first block of a set.
	First string `col:"first_key,key"`
	// Keys has a line for each key, sorted: see [SetKey].
	Keys string `col:"keys"`
	// KeyCount is how many keys of the block belong to the set. RemovedCount is how many were removed from the set.
	KeyCount     int32 `col:"key_count"`
	RemovedCount int32 `col:"removed_count"`
	Meta
}

// Key returns the primary key.
func (r *KeyBlock) Key() Key2 { return Key2{r.Set, r.First} }

func (*KeyBlock) newTable() store { return new(rowTable[Key2, KeyBlock, *KeyBlock]) }

// SetKey is a key of a key set. Its line contains the key alone or, if the key was ever removed, the key, the version
// and the sequence number, separated by tabs. The sequence number of a removed key is negative.
type SetKey struct {
	Key string
	// Version is the id of the event that last removed the key or added it again; "": it was never removed.
	Version string
	// ChangedSeq is the fold sequence number of the event that Version names. It is 0 if the set had never had the key
	// before that event.
	ChangedSeq int64
	// Removed means that the key does not belong to the set now.
	Removed bool
}

// parseKey returns the key of a line. The key shares the memory of the line.
func parseKey(line string) SetKey {
	key, rest, changed := strings.Cut(line, "\t")
	if !changed {
		return SetKey{Key: line}
	}
	k := SetKey{Key: key}
	var seq string
	k.Version, seq, _ = strings.Cut(rest, "\t")
	seq, k.Removed = strings.CutPrefix(seq, "-")
	k.ChangedSeq, _ = strconv.ParseInt(seq, 10, 64) // the fold writes only valid numbers
	return k
}

// appendTo appends the line of a key.
func (k *SetKey) appendTo(line []byte) []byte {
	line = append(line, k.Key...)
	if k.Version == "" {
		return line
	}
	line = append(append(append(line, '\t'), k.Version...), '\t')
	if k.Removed {
		line = append(line, '-')
	}
	return strconv.AppendInt(line, k.ChangedSeq, 10)
}

// All yields the keys of the block in order, including removed keys.
func (r *KeyBlock) All() iter.Seq[SetKey] {
	return func(yield func(SetKey) bool) {
		if r.Keys == "" {
			return
		}
		for line := range strings.SplitSeq(r.Keys, "\n") {
			if !yield(parseKey(line)) {
				return
			}
		}
	}
}

// maxBlock is the size above which a block is split, in bytes of its lines.
const maxBlock = 4 << 10

// KeyBlocks returns the rows for sorted keys of a set. The parameter first is the lower bound of the first row. Each
// row is at least half full, unless it is the only one.
func KeyBlocks(set, first string, keys []SetKey) []*KeyBlock {
	total := 0
	for i := range keys {
		total += len(keys[i].Key) + len(keys[i].Version) + len("\n")
	}
	parts := 1
	if total > maxBlock {
		parts = total/maxBlock + 1
	}
	var blocks []*KeyBlock
	var lines []byte
	block := &KeyBlock{Set: set, First: first}
	for i := range keys {
		if len(lines) >= total/parts && len(blocks) < parts-1 {
			block.Keys = string(lines)
			blocks = append(blocks, block)
			block, lines = &KeyBlock{Set: set, First: keys[i].Key}, nil
		}
		if len(lines) > 0 {
			lines = append(lines, '\n')
		}
		lines = keys[i].appendTo(lines)
		if keys[i].Removed {
			block.RemovedCount++
		} else {
			block.KeyCount++
		}
	}
	block.Keys = string(lines)
	return append(blocks, block)
}

// blocksOf calls yield for the blocks of a set in order.
func (s *State) blocksOf(set string, yield func(*KeyBlock) bool) {
	s.KeySets.Ascend(Key2{A: set}, func(row *KeyBlock) bool { return row.Set == set && yield(row) })
}

// Keys returns the keys of a key set in ascending order.
func (s *State) Keys(set string) []string {
	var keys []string
	s.blocksOf(set, func(row *KeyBlock) bool {
		for k := range row.All() {
			if !k.Removed {
				keys = append(keys, k.Key)
			}
		}
		return true
	})
	return keys
}

// KeyChanges returns the fold sequence at which each key of a set was last removed or added again. It returns nil if
// no key was ever removed.
func (s *State) KeyChanges(set string) map[string]int64 {
	var changes map[string]int64
	s.blocksOf(set, func(row *KeyBlock) bool {
		if row.RemovedCount == 0 && !strings.Contains(row.Keys, "\t") {
			return true
		}
		for k := range row.All() {
			if k.ChangedSeq == 0 {
				continue
			}
			if changes == nil {
				changes = map[string]int64{}
			}
			changes[k.Key] = k.ChangedSeq
		}
		return true
	})
	return changes
}

// KeyBlockOf returns the block of a set to which a key belongs, or nil if the set has no block yet. It also returns the
// first key of the following block, or "".
func (s *State) KeyBlockOf(set, key string) (block *KeyBlock, next string) {
	block = s.KeySets.Floor(Key2{set, key})
	if block == nil || block.Set != set {
		return nil, ""
	}
	s.KeySets.Ascend(Key2{set, block.First + "\x00"}, func(row *KeyBlock) bool {
		if row.Set == set {
			next = row.First
		}
		return false
	})
	return block, next
}

// SetKey returns a key of a set. It reports false if the set has never had the key.
func (s *State) SetKey(set, key string) (SetKey, bool) {
	block := s.KeySets.Floor(Key2{set, key})
	if block == nil || block.Set != set {
		return SetKey{}, false
	}
	for k := range block.All() {
		if k.Key >= key {
			return k, k.Key == key
		}
	}
	return SetKey{}, false
}

// KeySet counts the keys of a key set.
type KeySet struct {
	Name string
	// Keys is the number of keys that belong to the set. Removed is the number of keys that were removed from the set.
	Keys, Removed int
	// Bytes is the size of all keys in the state, including the removed ones.
	Bytes int
}

// ListKeySets returns all key sets, sorted by name. A key set exists once it has received its first key.
func (s *State) ListKeySets() []KeySet {
	var sets []KeySet
	for row := range s.KeySets.All {
		if n := len(sets); n == 0 || sets[n-1].Name != row.Set {
			sets = append(sets, KeySet{Name: row.Set})
		}
		last := &sets[len(sets)-1]
		last.Keys += int(row.KeyCount)
		last.Removed += int(row.RemovedCount)
		last.Bytes += len(row.Keys)
	}
	return sets
}
