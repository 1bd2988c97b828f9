package contract

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// Without says which upstreams of a task did not succeed. It contains the first 6 bytes of the SHA-256 of each of
// their task keys, as base64url text without padding: 10,000 tasks take 80,000 bytes. "" means that every upstream
// succeeded.
type Without string

// UnknownWithout means that the envelope does not say which upstreams succeeded: too many did not succeed, or some have
// not ended.
const UnknownWithout Without = "*"

const (
	// MaxWithout is the maximum number of tasks that [WithoutTasks] describes.
	MaxWithout = 10_000
	// withoutBytes is how many bytes of a hash describe a task. Among 200,000 tasks, two keys have the same hash with a
	// probability of 1 in 14,000.
	withoutBytes = 6
)

// WithoutTasks returns a [Without] that describes the tasks with these keys. If there are more than [MaxWithout], it
// returns [UnknownWithout].
func WithoutTasks(keys []string) Without {
	if len(keys) > MaxWithout {
		return UnknownWithout
	}
	hashes := make([]byte, 0, withoutBytes*len(keys))
	for _, key := range keys {
		hash := hashOfTask(key)
		hashes = append(hashes, hash[:]...)
	}
	return Without(base64.RawURLEncoding.EncodeToString(hashes))
}

func hashOfTask(key string) (hash [withoutBytes]byte) {
	sum := sha256.Sum256([]byte(key))
	copy(hash[:], sum[:])
	return hash
}

// Tasks returns a function that reports whether an upstream task is among those that did not succeed. If w is
// [UnknownWithout], known is false.
func (w Without) Tasks() (has func(taskKey string) bool, known bool, err error) {
	if w == UnknownWithout {
		return func(string) bool { return false }, false, nil
	}
	hashes, err := base64.RawURLEncoding.DecodeString(string(w))
	if err != nil || len(hashes)%withoutBytes != 0 {
		return nil, false, fmt.Errorf("a text of %d characters is not a list of hashes of task keys", len(w))
	}
	tasks := make(map[[withoutBytes]byte]bool, len(hashes)/withoutBytes)
	for ; len(hashes) > 0; hashes = hashes[withoutBytes:] {
		tasks[[withoutBytes]byte(hashes)] = true
	}
	return func(taskKey string) bool { return tasks[hashOfTask(taskKey)] }, true, nil
}
