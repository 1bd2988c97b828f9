package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// loadedPlan is a plan with an index of its tasks.
type loadedPlan struct {
	*plan.Plan
	at map[string]int // the position of each task, by task key
}

// work is one task of a plan, with everything needed to execute it.
type work struct {
	plan.Work
	plan *loadedPlan
	task *plan.Task
	root string
	// unpacked means that root contains the unpacked files of a release. Nobody edits these files, unlike the files in a
	// project's folder.
	unpacked bool
}

// task loads the plan and returns the attempt's task.
func (a *attempt) task(ctx context.Context) (*work, error) {
	p, err := a.w.loadPlan(ctx, a)
	if err != nil {
		return nil, err
	}
	a.mask = a.w.cfg.Redactor.Mask()
	i, ok := p.at[a.env.TaskKey]
	if !ok {
		return nil, permanent(CodePlanUnreadable, "task %s is not in plan %s", a.env.TaskKey, a.env.PlanRef)
	}
	t := &p.Tasks[i]
	if t.AssetKey != a.env.AssetKey || t.PartitionKey != a.env.PartitionKey {
		return nil, permanent(CodePlanUnreadable, "task %s materializes %s%s in plan %s, but %s%s in the envelope",
			a.env.TaskKey, t.AssetKey, t.PartitionKey, a.env.PlanRef, a.env.AssetKey, a.env.PartitionKey)
	}
	asset, ok := p.Assets[t.AssetKey]
	if !ok {
		return nil, permanent(CodePlanUnreadable, "asset %s is not in plan %s", t.AssetKey, a.env.PlanRef)
	}
	a.batch = t.Partitions
	return &work{Work: asset, plan: p, task: t, root: cmp.Or(a.w.cfg.Project, p.Root)}, nil
}

// loadPlan returns the attempt's plan. Concurrent callers share one read.
func (w *Worker) loadPlan(ctx context.Context, a *attempt) (*loadedPlan, error) {
	ref := a.env.PlanRef
	if p, ok := w.caches.plans.get(ref); ok {
		return p, nil
	}
	// The read uses the context of the worker: the caller that begins the read may leave before the other callers have the
	// plan.
	result := w.caches.loading.DoChan(ref, func() (any, error) { return w.readPlan(w.life.ctx, a) })
	select {
	case got := <-result:
		p, _ := got.Val.(*loadedPlan)
		return p, got.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (w *Worker) readPlan(ctx context.Context, a *attempt) (*loadedPlan, error) {
	ref := a.env.PlanRef
	data, err := w.get(ctx, ref, plan.MaxBytes)
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrInvalid) {
		return nil, permanent(CodePlanMissing, "read plan: %w", err)
	}
	if tooLarge(err) {
		return nil, permanent(CodePlanUnreadable, "read plan: %w", err)
	}
	if err != nil {
		return nil, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read plan: %w", err))
	}
	sum := sha256.Sum256(data)
	if plan.Ref(a.domain, hex.EncodeToString(sum[:])) != ref {
		return nil, permanent(CodePlanUnreadable, "plan %s does not match its domain and the hash of its content: it is damaged, or belongs to another domain", ref)
	}
	decoded, err := plan.Decode(data)
	if err != nil {
		return nil, permanent(CodePlanUnreadable, "plan %s: %w", ref, err)
	}
	p := &loadedPlan{Plan: decoded, at: make(map[string]int, len(decoded.Tasks))}
	for i := range decoded.Tasks {
		p.at[decoded.Tasks[i].TaskKey] = i
	}
	w.learnSecrets(p.Plan)
	w.caches.plans.put(ref, p, int64(3*len(data))+int64(64*len(p.at)))
	return p, nil
}

// getTries limits the tries of a read that fails with a transient error.
const getTries = 4

// tooLarge reports whether a read failed because the object exceeds the limit.
func tooLarge(err error) bool {
	_, large := errors.AsType[*blob.TooLargeError](err)
	return large
}

// get reads an object, and retries transient errors. The parameter limit is the maximum size of the object, in bytes.
func (w *Worker) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	wait := firstBackoff
	for try := 1; ; try++ {
		data, _, err := blob.Get(ctx, w.cfg.Store, key, limit)
		if err == nil || errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrInvalid) || tooLarge(err) || try == getTries {
			return data, err
		}
		if stopped := w.cfg.Clock.Sleep(ctx, wait); stopped != nil {
			return nil, err
		}
		wait *= 2
	}
}
