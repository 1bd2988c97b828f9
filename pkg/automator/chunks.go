package automator

import (
	"context"
	"fmt"
	"sync"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// startChunk plans a chunk of a backfill and starts its run. The parameter current is the deployed release.
func (a *Automator) startChunk(ctx context.Context, snap *snapshot.Snapshot, row *state.RunRequest, current *project) error {
	key, _, _ := state.ParseChunkRequest(row.RequestID)
	b := snap.State.Backfills.Get(key.BackfillID)
	if b == nil {
		return nil // the backfill was deleted, and its requests with it
	}
	p := current
	if b.Release != "" && b.Release != current.sha {
		var err error
		if p, err = a.pinned.get(b.Release, func() (*project, error) {
			r, code, err := a.engine.ReadRelease(ctx, b.Release)
			if err != nil {
				return nil, err
			}
			return newProject(b.Release, r, code), nil
		}); err != nil {
			return err
		}
	}
	run := engine.RunRequest{
		Release: p.sha, MaxParallelism: p.release.MaxParallelism,
		Trigger: event.Trigger{Type: "backfill", BackfillID: b.BackfillID, UserID: userOf(b.CreatedBy)},
		Plan:    plan.Request{Source: p.release.Source, Data: p.release.Data, Assets: p.code.Assets, Graph: p.graph, Form: plan.Fields},
	}
	if run.Plan.Source == "" {
		if run.Plan.Root = a.cfg.Root; run.Plan.Root == "" {
			return &engine.PlanError{Err: fmt.Errorf("release %s has no archive of the project's files, and this process does not know the project's folder: set deploy: explicit, and deploy again", release.Short(p.sha))}
		}
	}
	if err := a.memory.Acquire(ctx, planning); err != nil {
		return err
	}
	defer a.memory.Release(planning)
	return a.engine.StartChunk(ctx, snap, engine.ChunkRequest{
		Row: row, Run: run,
		Changed: func(d *backfill.Document) engine.ChangedChunks { return a.changedChunks(b.ChunksRef, d, current, p) },
		Document: func(ctx context.Context, ref string) (*backfill.Document, error) {
			return a.documents.get(ref, func() (*backfill.Document, error) { return engine.ReadChunks(ctx, a.engine.Store(), ref) })
		},
	}, a.cfg.Clock.Now())
}

// changedChunks returns which chunks of a document do not fit the current release, or the release on which they are
// planned. The result is cached, because a document may have a million partitions, and each chunk needs the result.
func (a *Automator) changedChunks(ref string, d *backfill.Document, current, planned *project) engine.ChangedChunks {
	releases := [][]plan.Asset{current.code.Assets}
	if planned.sha != current.sha {
		releases = append(releases, planned.code.Assets)
	}
	changed, _ := a.changed.get(ref+" "+current.sha+" "+planned.sha, func() (engine.ChangedChunks, error) { // never fails
		return engine.FindChangedChunks(d, releases...), nil
	})
	return changed
}

// maxKept is how many values a [kept] holds.
const maxKept = 4

// kept is a cache of the values that were read last. The value of a key never changes.
type kept[V any] struct {
	mu     sync.Mutex
	keys   []string
	values map[string]V
}

// get returns the value of a key, and reads the value if k does not contain it. No lock is held during the read, so two
// callers may read the same value.
func (k *kept[V]) get(key string, read func() (V, error)) (V, error) {
	k.mu.Lock()
	value, ok := k.values[key]
	k.mu.Unlock()
	if ok {
		return value, nil
	}
	value, err := read()
	if err != nil {
		return value, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.values[key]; ok {
		return value, nil
	}
	if k.values == nil {
		k.values = map[string]V{}
	}
	if k.keys = append(k.keys, key); len(k.keys) > maxKept {
		delete(k.values, k.keys[0])
		k.keys = k.keys[1:]
	}
	k.values[key] = value
	return value, nil
}
