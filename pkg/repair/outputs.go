package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/state"
)

// outputs compares the outputs of succeeded tasks with their commit markers, and appends the
// problems to bad, up to the number that is reported. The marker of an output that its partition
// does not show may be missing: collection deletes it before the files.
func (cfg Config) outputs(ctx context.Context, live *state.State, tasks []*state.Task, report *Report, bad []string) ([]string, error) {
	for _, t := range tasks {
		if t.State != state.TaskSucceeded || t.OutputURI == "" {
			continue
		}
		report.Outputs++
		problem, err := cfg.output(ctx, t)
		if errors.Is(err, errNoMarker) && superseded(live, t) {
			continue
		}
		if errors.Is(err, errNoMarker) {
			problem, err = "its commit marker "+contract.MarkerKeyOf(t.OutputURI)+" is missing", nil
		}
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

var errNoMarker = errors.New("no commit marker")

// superseded reports whether the partition of a task shows another output.
func superseded(live *state.State, t *state.Task) bool {
	row := live.Partitions.Get(state.Key2{A: t.AssetKey, B: t.PartitionKey})
	return row != nil && row.MaterializationID != t.MaterializationID
}

func (cfg Config) output(ctx context.Context, t *state.Task) (problem string, err error) {
	key := contract.MarkerKeyOf(t.OutputURI)
	data, _, err := blob.Get(ctx, cfg.Store, key, contract.MaxMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return "", errNoMarker
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
		if problem, err := cfg.file(ctx, marker.URI+f.Name, f); problem != "" || err != nil {
			return problem, err
		}
	}
	return "", nil
}

// file compares an object with its record in the commit marker. It reads the object only if the
// store keeps no checksums.
func (cfg Config) file(ctx context.Context, key string, want contract.MarkerFile) (problem string, err error) {
	object, err := cfg.Store.Head(ctx, key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return "file " + key + " is missing", nil
	case err != nil:
		return "", err
	case object.Size != want.Size:
		return fmt.Sprintf("file %s has %d bytes; it was committed with %d", key, object.Size, want.Size), nil
	}
	sum := object.CRC32C
	if sum == 0 {
		if sum, err = cfg.sum(ctx, key); err != nil {
			return fmt.Sprintf("file %s cannot be read: %v", key, err), ctx.Err()
		}
	}
	if sum != want.CRC32C {
		return fmt.Sprintf("file %s has CRC-32C %08x; it was committed with %08x", key, sum, want.CRC32C), nil
	}
	return "", nil
}

func (cfg Config) sum(ctx context.Context, key string) (sum uint32, err error) {
	from, _, err := cfg.Store.Open(ctx, key)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	sum, _, err = filecheck.Sum(ctx, from)
	return sum, err
}
