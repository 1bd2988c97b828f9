package repair

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// planStore is a store. When a plan is read from it, it compares the content of the plan with the plan's name, which is
// the SHA-256 of the content.
type planStore struct {
	blob.Store
	// damaged contains the keys of the plans that differ from their names.
	damaged map[string]bool
}

// Get implements [blob.Store].
func (s *planStore) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	data, object, err := s.Store.Get(ctx, key)
	if err == nil && !namesContent(key, data) {
		if s.damaged == nil {
			s.damaged = map[string]bool{}
		}
		s.damaged[key] = true
	}
	return data, object, err
}

// namesContent reports whether the name of a plan is the hash of its content. It returns true if the name is not a
// hash: then nothing shows whether the content has changed.
func namesContent(key string, data []byte) bool {
	name := strings.TrimSuffix(path.Base(key), ".json")
	if want, err := hex.DecodeString(name); err != nil || len(want) != sha256.Size {
		return true
	}
	sum := sha256.Sum256(data)
	return name == hex.EncodeToString(sum[:])
}

// lostPlans describes the plans that a group names and that are missing or damaged, one line each. The group must be of
// the entry that r has read last. A missing plan was lost: plans are stored before an event names them, and are never
// deleted. Without its plan, a run has no tasks.
func (r *reader) lostPlans(ctx context.Context, g fold.Group) (lines []string, err error) {
	for _, ref := range slices.Sorted(maps.Keys(g.Plans)) {
		if r.plans.damaged[ref] {
			lines = append(lines, fmt.Sprintf("ledger: entry %s, group %s names plan %s, which is damaged: its content does not match its name", g.Entry, g.ID, ref))
			continue
		}
		if g.Plans[ref].Err == "" {
			continue
		}
		_, err := r.cfg.Store.Head(ctx, ref)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			lines = append(lines, fmt.Sprintf("ledger: entry %s, group %s names plan %s, which is missing", g.Entry, g.ID, ref))
		case err != nil && !errors.Is(err, blob.ErrInvalid):
			return nil, err
		}
	}
	return lines, nil
}
