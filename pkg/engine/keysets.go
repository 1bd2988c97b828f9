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

// maxKeyBytes bounds the keys of one event, because the length of its line is limited.
const maxKeyBytes = 256 << 10

// KeysChanged counts the keys that a command has added to a key set, or removed from it.
type KeysChanged struct {
	Set string `json:"key_set"`
	// Added counts the added keys that the set lacked, and Removed the removed keys that it had.
	Added   int `json:"added"`
	Removed int `json:"removed"`
	// Keys is the number of keys that the set has now.
	Keys int `json:"keys"`
}

// InvalidError reports a request that is wrong in itself. Nothing was changed.
type InvalidError struct{ Err error }

// Error implements error.
func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns the problem.
func (e *InvalidError) Unwrap() error { return e.Err }

// ErrChanged means that another command has changed the same thing at the same time.
var ErrChanged = errors.New("it was not changed")

// AddKeys adds keys to a key set. Keys that the set has are ignored. The first key creates the set.
func (e *Engine) AddKeys(ctx context.Context, set string, keys []string) (KeysChanged, error) {
	return e.changeKeys(ctx, set, keys, false)
}

// RemoveKeys removes keys from a key set. Keys that the set lacks are ignored. The outputs of their
// partitions stay, and are shown again if the key is added again.
func (e *Engine) RemoveKeys(ctx context.Context, set string, keys []string) (KeysChanged, error) {
	return e.changeKeys(ctx, set, keys, true)
}

// changeKeys adds or removes keys, in several events if there are many. After an error, a repeated call changes the
// remaining keys.
func (e *Engine) changeKeys(ctx context.Context, set string, keys []string, remove bool) (KeysChanged, error) {
	result := KeysChanged{Set: set}
	if !ids.ValidName(set) {
		return result, &InvalidError{fmt.Errorf("invalid key set %q: use a-z, 0-9 and _, beginning with a letter", set)}
	}
	for _, key := range keys {
		if err := ids.CheckValue(key); err != nil {
			return result, &InvalidError{fmt.Errorf("key set %s: %w", set, err)}
		}
	}
	snap, err := e.Current(ctx)
	if err != nil {
		return result, err
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	keys = slices.DeleteFunc(keys, func(key string) bool { return hasKey(snap.State, set, key) != remove })
	if detail := fold.KeyLimit(snap.State, set, keys); detail != "" && !remove {
		return result, &InvalidError{fmt.Errorf("add keys to %s: %s", set, detail)}
	}
	for chunk := range keyChunks(keys) {
		if snap, err = e.appendKeys(ctx, snap, set, chunk, remove); err != nil {
			return result, err
		}
		if remove {
			result.Removed += len(chunk)
		} else {
			result.Added += len(chunk)
		}
	}
	for _, s := range snap.State.ListKeySets() {
		if s.Name == set {
			result.Keys = s.Keys
		}
	}
	return result, nil
}

func hasKey(s *state.State, set, key string) bool {
	k, known := s.SetKey(set, key)
	return known && !k.Removed
}

// keyChunks yields the keys of each event.
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

// appendKeys appends one event, and checks that it took effect. The event's id is greater than the ids of the earlier
// events that changed the keys, even if a machine with a fast clock wrote those.
func (e *Engine) appendKeys(ctx context.Context, snap *snapshot.Snapshot, set string, keys []string, remove bool) (*snapshot.Snapshot, error) {
	newest := ""
	for _, key := range keys {
		if block, _ := snap.State.KeyBlockOf(set, key); block != nil {
			newest = max(newest, block.Version)
		}
		if k, _ := snap.State.SetKey(set, key); k.Version != "" {
			newest = max(newest, k.Version)
		}
	}
	e.cfg.IDs.Observe(newest)
	p := &event.PartitionsChanged{CommandID: e.cfg.IDs.New(), KeySet: set}
	if remove {
		p.Remove = keys
	} else {
		p.Add = keys
	}
	after, group, err := e.append(ctx, "", p)
	if err != nil {
		return nil, fmt.Errorf("change key set %s: %w", set, err)
	}
	if at := slices.IndexFunc(keys, func(key string) bool { return hasKey(after.State, set, key) == remove }); at >= 0 {
		why := cmp.Or(rejection(after, group), "a later command has changed it")
		return nil, fmt.Errorf("change key %s of key set %s: %w: %s: list the keys with `servo partitions sets %s`", keys[at], set, ErrChanged, why, set)
	}
	return after, nil
}

// rejection returns why a group was rejected, or "".
func rejection(snap *snapshot.Snapshot, group state.Key2) string {
	if row := groupRow(snap, group); row != nil && row.Outcome == state.Conflict {
		return row.Detail
	}
	return ""
}
