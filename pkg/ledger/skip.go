package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	skipExtension = ".skip"
	maxSkip       = 64 << 10
)

// Skip is an operator's decision to continue without an entry that cannot be read. It is stored next to the entry, and
// so is as durable as the ledger. The decision applies only while the entry cannot be read. After the table
// ledger_entries has recorded the decision, the decision is final.
type Skip struct {
	Entry  string     `json:"entry"`
	By     string     `json:"by"`
	At     event.Time `json:"at"`
	Reason string     `json:"reason"`
}

// SkipKey returns the object key of the decision to skip an entry.
func SkipKey(d ids.Domain, entry string) string { return Prefix(d) + entry + skipExtension }

// WriteSkip stores a decision. If a decision about the same entry is already stored, WriteSkip changes nothing and
// returns an error that matches [blob.ErrExists].
func WriteSkip(ctx context.Context, store blob.Store, d ids.Domain, s Skip) error {
	data, err := json.Marshal(s)
	if err == nil {
		_, err = store.Create(ctx, SkipKey(d, s.Entry), data)
	}
	if err != nil {
		return fmt.Errorf("write the decision to skip ledger entry %s: %w", s.Entry, err)
	}
	return nil
}

// ReadSkip returns the decision to skip an entry, or nil if there is none.
func ReadSkip(ctx context.Context, store blob.Store, d ids.Domain, entry string) (*Skip, error) {
	key := SkipKey(d, entry)
	data, _, err := blob.Get(ctx, store, key, maxSkip)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, nil //nolint:nilnil // usually, an entry has no decision
	}
	s := &Skip{}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err == nil && s.Entry != entry {
		err = fmt.Errorf("it names entry %.40q", s.Entry)
	}
	if err != nil {
		return nil, fmt.Errorf("read skip decision %s: %w", key, err)
	}
	return s, nil
}
