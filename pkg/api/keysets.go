package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// ListKeySets implements the call.
func (s *server) ListKeySets(ctx context.Context, _ *servov1.ListKeySetsRequest) (*servov1.ListKeySetsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	list := &servov1.ListKeySetsResponse{Revision: snap.Revision}
	for _, set := range snap.State.ListKeySets() {
		list.KeySets = append(list.KeySets, &servov1.ListKeySetsResponse_KeySet{
			Name: set.Name, Keys: int32(set.Keys), Removed: int32(set.Removed), //nolint:gosec // key sets have a maximum size
		})
	}
	return list, nil
}

// ListKeys implements the call.
func (s *server) ListKeys(ctx context.Context, r *servov1.ListKeysRequest) (*servov1.ListKeysResponse, error) {
	p, err := s.page(ctx, r, largePage)
	if err != nil {
		return nil, err
	}
	keys := p.snap.State.Keys(r.GetKeySet())
	if block, _ := p.snap.State.KeyBlockOf(r.GetKeySet(), ""); block == nil {
		return nil, fmt.Errorf("key set %s: %w: GET /v1/key-sets lists the key sets", r.GetKeySet(), engine.ErrNotFound)
	}
	if p.after != "" {
		at, found := slices.BinarySearch(keys, p.after)
		if found {
			at++
		}
		keys = keys[at:]
	}
	list := &servov1.ListKeysResponse{Revision: p.snap.Revision, KeySet: r.GetKeySet()}
	if len(keys) > p.size {
		list.NextPageToken = p.next(keys[p.size-1])
		keys = keys[:p.size]
	}
	list.Keys = slices.Clone(keys)
	return list, nil
}

// ChangeKeys implements the call.
func (s *server) ChangeKeys(ctx context.Context, r *servov1.ChangeKeysRequest) (*servov1.ChangeKeysResponse, error) {
	for name, keys := range map[string][]string{"add": r.GetAdd(), "remove": r.GetRemove()} {
		for i, key := range keys {
			if err := ids.CheckValue(key); err != nil {
				return nil, invalid(fmt.Sprintf("%s[%d]", name, i), "%w", err)
			}
		}
	}
	adds := map[string]bool{}
	for _, key := range r.GetAdd() {
		adds[key] = true
	}
	for i, key := range r.GetRemove() {
		if adds[key] {
			return nil, invalid(fmt.Sprintf("remove[%d]", i), "key %s is in both lists, add and remove: leave it out of one of them", key)
		}
	}
	changed, err := s.actingFor(ctx).ChangeKeys(ctx, r.GetKeySet(), r.GetAdd(), r.GetRemove())
	if err != nil {
		return nil, err
	}
	if _, err := s.current(ctx); err != nil { // current sets the revision header
		return nil, err
	}
	return fill(&servov1.ChangeKeysResponse{}, changed), nil
}
