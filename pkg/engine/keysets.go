package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxKeyBytes limits the total length of the keys in one event, because an event must fit into a line of limited
// length.
const maxKeyBytes = 256 << 10

// KeysChanged counts the keys that a command has added to a key set or removed from it.
type KeysChanged struct {
	Set string `json:"key_set"`
	// Added does not count keys that the set already had. Removed does not count keys that the set lacked.
	Added   int `json:"added"`
	Removed int `json:"removed"`
	// Keys is the number of keys that the set has after the command.
	Keys int `json:"keys"`
}

// InvalidError reports that a request is invalid. Nothing was changed.
type InvalidError struct{ Err error }

// Error implements error.
func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns the problem.
func (e *InvalidError) Unwrap() error { return e.Err }

// ErrChanged means that a command had no effect, for example because another command changed the same object at the
// same time.
var ErrChanged = errors.New("it was not changed")

// AddKeys adds keys to a key set. It ignores keys that the set already has. The first key creates the set.
func (e *Engine) AddKeys(ctx context.Context, set string, keys []string) (KeysChanged, error) {
	return e.ChangeKeys(ctx, set, keys, nil)
}

// RemoveKeys removes keys from a key set. It ignores keys that the set lacks. The outputs of their partitions are
// kept. If a key is added again, the outputs of its partitions become visible again.
func (e *Engine) RemoveKeys(ctx context.Context, set string, keys []string) (KeysChanged, error) {
	return e.ChangeKeys(ctx, set, nil, keys)
}

// ChangeKeys adds and removes keys. If there are many, it appends several events. No key may be in both lists. After
// an error, a repeated call changes the remaining keys.
func (e *Engine) ChangeKeys(ctx context.Context, set string, add, remove []string) (KeysChanged, error) {
	result := KeysChanged{Set: set}
	if !ids.ValidName(set) {
		return result, &InvalidError{fmt.Errorf("invalid key set %q: use a-z, 0-9 and _, beginning with a letter", set)}
	}
	for _, key := range slices.Concat(add, remove) {
		if err := ids.CheckValue(key); err != nil {
			return result, &InvalidError{fmt.Errorf("key set %s: %w", set, err)}
		}
	}
	snap, err := e.Current(ctx)
	if err != nil {
		return result, err
	}
	id, err := e.repeated(snap)
	if err == nil && id == "" {
		snap, err = e.appendAllKeys(ctx, snap, &result, add, remove)
	}
	if err != nil {
		return result, err
	}
	for _, s := range snap.State.ListKeySets() {
		if s.Name == set {
			result.Keys = s.Keys
		}
	}
	return result, nil
}

// appendAllKeys appends the events that add and remove keys, and counts the changed keys in result.
func (e *Engine) appendAllKeys(ctx context.Context, snap *snapshot.Snapshot, result *KeysChanged, add, remove []string) (*snapshot.Snapshot, error) {
	changes := func(keys []string, remove bool) []string {
		keys = slices.Compact(slices.Sorted(slices.Values(keys)))
		return slices.DeleteFunc(keys, func(key string) bool { return hasKey(snap.State, result.Set, key) != remove })
	}
	adds, removes := changes(add, false), changes(remove, true)
	if detail := fold.KeyLimit(snap.State, result.Set, adds); detail != "" {
		return nil, &InvalidError{fmt.Errorf("add keys to %s: %s", result.Set, detail)}
	}
	var commands []*event.PartitionsChanged
	for chunk := range keyChunks(adds) {
		commands = append(commands, &event.PartitionsChanged{KeySet: result.Set, Add: chunk})
	}
	for chunk := range keyChunks(removes) {
		commands = append(commands, &event.PartitionsChanged{KeySet: result.Set, Remove: chunk})
	}
	if e.conditions.Key != "" && len(commands) == 0 { // an event must record the command key even if there is nothing to change
		commands = append(commands, &event.PartitionsChanged{KeySet: result.Set, Add: add[:min(1, len(add))], Remove: remove[:min(1, len(remove))]})
	}
	for i, p := range commands {
		if i == len(commands)-1 { // only the last event uses up the command key
			p.CommandKey, p.Fingerprint = e.conditions.Key, e.conditions.Fingerprint
		}
		var err error
		if snap, err = e.appendKeys(ctx, snap, p); err != nil {
			return nil, err
		}
	}
	result.Added, result.Removed = len(adds), len(removes)
	return snap, nil
}

func hasKey(s *state.State, set, key string) bool {
	k, known := s.SetKey(set, key)
	return known && !k.Removed
}

// keyChunks divides keys into chunks that fit into one event each.
func keyChunks(keys []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(keys) > 0 {
			n, size := 0, 0
			for n < min(len(keys), event.MaxKeys) && (n == 0 || size+len(keys[n]) <= maxKeyBytes) {
				size += len(keys[n])
				n++
			}
			if !yield(keys[:n]) {
				return
			}
			keys = keys[n:]
		}
	}
}

// appendKeys appends one event, and checks that it took effect. The event's id is greater than the ids of earlier
// events that changed the same keys, even if a machine with a fast clock wrote them.
func (e *Engine) appendKeys(ctx context.Context, snap *snapshot.Snapshot, p *event.PartitionsChanged) (*snapshot.Snapshot, error) {
	newest := ""
	for _, key := range slices.Concat(p.Add, p.Remove) {
		if block, _ := snap.State.KeyBlockOf(p.KeySet, key); block != nil {
			newest = max(newest, block.Version)
		}
		if k, _ := snap.State.SetKey(p.KeySet, key); k.Version != "" {
			newest = max(newest, k.Version)
		}
	}
	e.cfg.IDs.Observe(newest)
	p.CommandID = e.cfg.IDs.New()
	after, group, err := e.append(ctx, "", p)
	if err != nil {
		return nil, fmt.Errorf("change key set %s: %w", p.KeySet, err)
	}
	if p.CommandKey != "" {
		if owner, err := e.repeated(after); err != nil || owner != "" && owner != p.CommandID {
			return after, err // a concurrent call with the same command key came first
		}
	}
	for i, key := range slices.Concat(p.Add, p.Remove) {
		if removed := i >= len(p.Add); hasKey(after.State, p.KeySet, key) == removed {
			why := cmp.Or(rejection(after, group), "a later command has overridden the change")
			return nil, fmt.Errorf("change key %s of key set %s: %w: %s: list the keys with `servo partitions sets %s`", key, p.KeySet, ErrChanged, why, p.KeySet)
		}
	}
	return after, nil
}

// rejection returns the reason if the fold rejected a group as a conflict, or "".
func rejection(snap *snapshot.Snapshot, group state.Key2) string {
	if row := groupRow(snap, group); row != nil && row.Outcome == state.Conflict {
		return row.Detail
	}
	return ""
}
