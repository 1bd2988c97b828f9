package api

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// KeySet is a key set of dynamic dimensions.
type KeySet struct {
	Name string `json:"name"`
	// Keys is the number of its keys, and Removed that of the keys that were removed.
	Keys    int `json:"keys"`
	Removed int `json:"removed"`
}

func (h handler) keySets(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	sets := []KeySet{}
	for _, s := range snap.State.ListKeySets() {
		sets = append(sets, KeySet{s.Name, s.Keys, s.Removed})
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "key_sets": sets}, nil
}

// Limits of a listing of keys.
const (
	defaultKeys = 1000
	maxKeys     = 100_000
)

func (h handler) keySet(r *http.Request) (int, any, error) {
	n, err := limit(r, defaultKeys, maxKeys)
	if err != nil {
		return 0, nil, err
	}
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	set := r.PathValue("set")
	keys := snap.State.Keys(set)
	if block, _ := snap.State.KeyBlockOf(set, ""); block == nil {
		return 0, nil, fmt.Errorf("key set %s: %w: GET /v1/key-sets lists them", set, engine.ErrNotFound)
	}
	if after := r.URL.Query().Get("after"); after != "" {
		at, found := slices.BinarySearch(keys, after)
		if found {
			at++
		}
		keys = keys[at:]
	}
	next := ""
	if len(keys) > n {
		keys, next = keys[:n], keys[n-1]
	}
	return http.StatusOK, map[string]any{"key_set": set, "keys": append([]string{}, keys...), "next_after": next}, nil
}

func (h handler) changeKeySet(r *http.Request) (int, any, error) {
	var body struct {
		Add    []string `json:"add"`
		Remove []string `json:"remove"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	for _, key := range slices.Concat(body.Add, body.Remove) {
		if err := ids.CheckValue(key); err != nil {
			return 0, nil, &refusal{http.StatusBadRequest, err}
		}
	}
	for _, key := range body.Remove {
		if slices.Contains(body.Add, key) {
			return 0, nil, refuse(http.StatusBadRequest, "key %s is in add and in remove: remove it from one", key)
		}
	}
	e, set := h.engineOf(r), r.PathValue("set")
	added, err := e.AddKeys(r.Context(), set, body.Add)
	if err != nil {
		return 0, nil, err
	}
	removed, err := e.RemoveKeys(r.Context(), set, body.Remove)
	if err != nil {
		return 0, nil, err
	}
	removed.Added = added.Added
	return http.StatusOK, removed, nil
}
