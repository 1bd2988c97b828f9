package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
)

// unpackSource makes the files of the task's release available, if the plan names their archive. The
// files are read-only, and other tasks share them.
func (a *attempt) unpackSource(ctx context.Context, t *work) error {
	sha := t.plan.Source
	if sha == "" || a.w.cfg.Project != "" || t.unpacked {
		return nil
	}
	if !release.ValidHash(sha) {
		return permanent(CodePlanUnreadable, "plan %s names the source archive %.100q, which is not a hash", a.env.PlanRef, sha)
	}
	ref := release.SourceRef(a.domain, sha)
	dir, done, err := a.w.caches.sources.Get(ctx, sha, func(ctx context.Context) ([]byte, error) {
		return a.w.get(ctx, ref, source.MaxArchiveBytes)
	})
	switch {
	case err == nil:
		t.root, t.unpacked = dir, true
		if t.SQL == "" || slices.ContainsFunc(t.Checks, func(c quality.Check) bool { return len(c.Command) > 0 }) {
			a.w.caches.sources.Suspect(sha) // from now until the command ends, it may change the files
			a.cleanups = append(a.cleanups, func() { a.w.caches.sources.Suspect(sha) })
		}
		a.cleanups = append(a.cleanups, done)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrInvalid), errors.Is(err, source.ErrDamaged), tooLarge(err):
		return permanent(CodeProjectMissing, "read the project's files %s: %w: deploy the project again", ref, err)
	default:
		return fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read the project's files %s: %w", ref, err))
	}
}
