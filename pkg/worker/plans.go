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

// loadedPlan is a plan that tasks can be looked up in.
type loadedPlan struct {
	*plan.Plan
	at map[string]int // task key → position
}

// work is what an attempt is to do.
type work struct {
	plan.Work
	plan *loadedPlan
	task *plan.Task
	root string
}

// task finds what the attempt is to do in its plan.
func (a *attempt) task(ctx context.Context) (*work, error) {
	p, err := a.w.loadPlan(ctx, a)
	if err != nil {
		return nil, err
	}
	a.mask = a.w.cfg.Redactor.Mask()
	i, ok := p.at[a.env.TaskKey]
	if !ok {
		return nil, refuse(CodePlanUnreadable, "task %s is not in the plan %s", a.env.TaskKey, a.env.PlanRef)
	}
	t := &p.Tasks[i]
	if t.AssetKey != a.env.AssetKey || t.PartitionKey != a.env.PartitionKey {
		return nil, refuse(CodePlanUnreadable, "task %s makes %s%s in the plan %s, and %s%s in the envelope",
			a.env.TaskKey, t.AssetKey, t.PartitionKey, a.env.PlanRef, a.env.AssetKey, a.env.PartitionKey)
	}
	does, ok := p.Assets[t.AssetKey]
	if !ok {
		return nil, refuse(CodePlanUnreadable, "asset %s is not in the plan %s", t.AssetKey, a.env.PlanRef)
	}
	return &work{Work: does, plan: p, task: t, root: cmp.Or(a.w.cfg.Project, p.Root)}, nil
}

// loadPlan gives a plan, reading it once for all who ask at the same time.
func (w *Worker) loadPlan(ctx context.Context, a *attempt) (*loadedPlan, error) {
	ref := a.env.PlanRef
	if p, ok := w.plans.get(ref); ok {
		return p, nil
	}
	// The read belongs to the worker: who asked first may be stopped.
	result := w.loading.DoChan(ref, func() (any, error) { return w.readPlan(w.ctx, a) })
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
		return nil, refuse(CodePlanMissing, "read plan: %w", err)
	}
	if tooLarge(err) {
		return nil, refuse(CodePlanUnreadable, "read plan: %w", err)
	}
	if err != nil {
		return nil, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read plan: %w", err))
	}
	sum := sha256.Sum256(data)
	if plan.Ref(a.domain, hex.EncodeToString(sum[:])) != ref {
		return nil, refuse(CodePlanUnreadable, "plan %s is not named by its domain and its content's hash: it is damaged, or another's", ref)
	}
	decoded, err := plan.Decode(data)
	if err != nil {
		return nil, refuse(CodePlanUnreadable, "plan %s: %w", ref, err)
	}
	p := &loadedPlan{Plan: decoded, at: make(map[string]int, len(decoded.Tasks))}
	for i := range decoded.Tasks {
		p.at[decoded.Tasks[i].TaskKey] = i
	}
	w.learnSecrets(p.Plan)
	w.plans.put(ref, p, int64(3*len(data))+int64(64*len(p.at)))
	return p, nil
}

// getTries is how often a read is tried whose answer says nothing for good.
const getTries = 4

// tooLarge reports whether an object was not read because of its size.
func tooLarge(err error) bool {
	_, large := errors.AsType[*blob.TooLargeError](err)
	return large
}

// get reads an object of at most limit bytes. It repeats a read whose error may pass.
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
