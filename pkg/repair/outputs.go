package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/state"
)

// outputs checks that each output of a succeeded task is what its marker says, and adds
// to some lines what is wrong: as many as are reported.
func (cfg Config) outputs(ctx context.Context, tasks []*state.Task, report *Report, bad []string) ([]string, error) {
	for _, t := range tasks {
		if t.State != state.TaskSucceeded || t.OutputURI == "" {
			continue
		}
		report.Outputs++
		problem, err := cfg.output(ctx, t)
		if err != nil {
			return nil, err
		}
		if problem == "" {
			continue
		}
		if report.BadOutputs++; len(bad) <= maxProblems {
			bad = append(bad, fmt.Sprintf("output of task %s of run %s: %s", t.TaskKey, t.RunID, problem))
		}
	}
	return bad, nil
}

func (cfg Config) output(ctx context.Context, t *state.Task) (problem string, err error) {
	key := contract.MarkerKeyOf(t.OutputURI)
	data, _, err := blob.Get(ctx, cfg.Store, key, contract.MaxMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return "its commit marker " + key + " is missing", nil
	}
	if large, ok := errors.AsType[*blob.TooLargeError](err); ok {
		return fmt.Sprintf("its commit marker %s cannot be read: %v", key, large), nil
	}
	if err != nil {
		return "", err
	}
	marker, err := contract.DecodeMarker(data)
	if err != nil {
		return fmt.Sprintf("its commit marker %s cannot be read: %v", key, err), nil
	}
	if marker.URI != t.OutputURI {
		return fmt.Sprintf("the state names %s, its commit marker %s", t.OutputURI, marker.URI), nil
	}
	for _, f := range marker.Files {
		object, err := cfg.Store.Head(ctx, marker.URI+f.Name)
		switch {
		case errors.Is(err, blob.ErrNotFound):
			return "file " + marker.URI + f.Name + " is missing", nil
		case err != nil:
			return "", err
		case object.Size != f.Size:
			return fmt.Sprintf("file %s%s has %d bytes, and should have %d", marker.URI, f.Name, object.Size, f.Size), nil
		}
	}
	return "", nil
}
