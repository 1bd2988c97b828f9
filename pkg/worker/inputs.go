package worker

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/textrows"
)

// parallelReads is the maximum number of objects that an attempt reads at once.
const parallelReads = 16

// input holds the partitions that a task reads from one upstream asset.
type input struct {
	asset ids.AssetKey
	parts []part
	// merged are the merged files that replace some of the parts, in the order of the parts. They are set for one
	// execution of a query: see [attempt.useMerged]. mergedColumns are the columns of the input when it is read with
	// merged files.
	merged        []mergedRun
	mergedColumns []string
}

// part is one materialization of an input.
type part struct {
	partitionKey string
	marker       *contract.CommitMarker
	// paths are the local paths of marker.Files, in the same order.
	paths []string
}

// isParquet reports whether an output file is a Parquet file.
func isParquet(name string) bool { return strings.HasSuffix(name, ".parquet") }

// parquet returns the local paths of the input's Parquet files, except those that merged files replace.
func (in *input) parquet() []string {
	var found []string
	for at, p := range in.parts {
		if in.isMerged(at) {
			continue
		}
		for i, f := range p.marker.Files {
			if isParquet(f.Name) {
				found = append(found, p.paths[i])
			}
		}
	}
	return found
}

// rows returns the local paths of the input's Parquet files or of the merged files that replace them. It fails if
// there are no Parquet files. It also fails if a partition has rows only in text files, because the result would be
// wrong without these rows.
func (in *input) rows() ([]string, error) {
	found := in.parquet()
	for i := range in.merged {
		found = append(found, in.merged[i].path)
	}
	var others []string
	for i := range in.parts {
		p := &in.parts[i]
		if slices.ContainsFunc(p.marker.Files, func(f contract.CommitMarkerFile) bool { return isParquet(f.Name) }) {
			continue
		}
		names := make([]string, len(p.marker.Files))
		for j, f := range p.marker.Files {
			names[j] = f.Name
		}
		if len(found) > 0 && p.hasTextRows() {
			return nil, in.withoutParquet(labelOf(in.asset, p.partitionKey), names)
		}
		others = append(others, names...)
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, in.withoutParquet(in.asset.String(), others)
}

// labelOf returns the name of a partition of an input for error messages.
func labelOf(asset ids.AssetKey, partitionKey string) string {
	if partition, err := ids.ParsePartition(partitionKey); err == nil {
		return ids.TaskKey(asset, partition)
	}
	return asset.String()
}

// hasTextRows reports whether the part has a text file with rows.
func (p *part) hasTextRows() bool {
	for i, f := range p.marker.Files {
		if textrows.FormatOf(f.Name) != "" && hasTextRows(p.paths[i], f.Name) {
			return true
		}
	}
	return false
}

// withoutParquet returns the error for an input that has no Parquet files, but files with the given names.
func (in *input) withoutParquet(label string, names []string) error {
	const write = "its command must write files that end in .parquet to SERVO_OUTPUT"
	if len(names) == 0 {
		return permanent(CodeInvalidInput, "input %s has no Parquet files: its output is empty; %s", label, write)
	}
	advice := ""
	switch formats := textrows.FormatsOf(names); len(formats) {
	case 0:
	case 1:
		advice = ", or set output: {format: " + formats[0] + "} and run the asset again"
	default:
		advice = ", or set output: {format: " + strings.Join(formats, "} or {format: ") + "} and run the asset again (a table is read from files of one format)"
	}
	const most = 5
	return permanent(CodeInvalidInput, "input %s has no Parquet files, only %s: %s%s", label, strings.Join(names[:min(len(names), most)], ", "), write, advice)
}

// resolve returns the task's inputs by asset key, with the commit marker of each partition.
func (a *attempt) resolve(ctx context.Context, t *work) ([]input, error) {
	failed, known, err := a.env.Without.Tasks()
	if err != nil {
		return nil, permanent(CodeInvalidInput, "read which upstreams of %s failed: %w", a.env.TaskKey, err)
	}
	inputs := make([]input, 0, len(t.task.Inputs))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	for _, name := range slices.Sorted(maps.Keys(t.task.Inputs)) {
		asset, err := ids.ParseAssetKey(name)
		if err != nil {
			return nil, errors.Join(permanent(CodePlanUnreadable, "input of %s: %w", a.env.TaskKey, err), group.Wait())
		}
		set := t.task.Inputs[name]
		items := set.Items
		if set.Group != "" {
			items = t.plan.Groups[set.Group]
		}
		in := input{asset: asset, parts: make([]part, len(items))}
		for i := range items {
			group.Go(func() error {
				upstream := items[i].TaskKey
				if upstream != "" && failed(upstream) {
					return nil // the trigger rule allows the task to run without this input
				}
				var err error
				in.parts[i], err = a.upstream(groupCtx, t.plan, asset, &items[i])
				if upstream == "" || known || !t.toleratesFailure() {
					return err
				}
				return guessed(t.plan.Assets[name].Checks, &in.parts[i], upstream, err)
			})
		}
		inputs = append(inputs, in)
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range inputs {
		inputs[i].parts = slices.DeleteFunc(inputs[i].parts, func(p part) bool { return p.marker == nil })
	}
	return inputs, nil
}

// guessed decides whether the task may run if the dispatcher does not say whether an upstream succeeded. The commit
// marker of the upstream decides. If there is no marker, the upstream did not succeed, and the task runs without its
// output. A worker that runs no checks creates a marker without their results. Such a marker leaves the outcome
// uncertain, and guessed returns an error that fails the task. err is the error of reading the marker.
func guessed(checks []quality.Check, p *part, upstream string, err error) error {
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil
	case err == nil && !audited(checks, p.marker):
		return fail(CodeMissingInput, CategoryInfrastructure, fmt.Errorf("the commit marker of upstream task %s does not show whether that task has succeeded: a retry may find out", upstream))
	}
	return err
}

// toleratesFailure reports whether the task runs even if an upstream has no output.
func (t *work) toleratesFailure() bool {
	return t.task.TriggerRule == event.RuleAllDone || t.task.TriggerRule == event.RuleNoneFailed
}

// upstream returns one partition of an input, with its commit marker.
func (a *attempt) upstream(ctx context.Context, p *loadedPlan, asset ids.AssetKey, item *plan.Input) (part, error) {
	id, partitionKey := item.MaterializationID, item.PartitionKey
	var key string
	if item.TaskKey != "" {
		i, ok := p.at[item.TaskKey]
		if !ok {
			return part{}, permanent(CodePlanUnreadable, "input %s of %s comes from task %s, which is not in the plan", asset, a.env.TaskKey, item.TaskKey)
		}
		id, partitionKey = ids.MaterializationID(a.domain, a.env.RunID, item.TaskKey), p.Tasks[i].PartitionKey
		key = contract.CommitMarkerKey(a.domain, asset, partitionKey, id)
	} else {
		if !strings.HasPrefix(item.URI, contract.AssetsPrefix(a.domain)) {
			return part{}, permanent(CodeInvalidInput, "input %s at %q is not below the workspace's assets", asset, item.URI)
		}
		key = contract.CommitMarkerKeyOf(item.URI)
	}
	marker, err := a.w.marker(ctx, key)
	if item.TaskKey == "" && (errors.Is(err, blob.ErrNotFound) || err == nil && outputOf(marker, item) == nil) {
		// The output may have been in quarantine until a decision published it. It then has a quarantine marker instead
		// of a commit marker. Only outputs of earlier runs are read with a quarantine marker. If this were allowed for
		// outputs of this run, too, a task that starts before the decision and a task that starts after it could read
		// different outputs.
		if approved, otherErr := a.w.marker(ctx, contract.QuarantineMarkerKeyOf(item.URI)); otherErr == nil || !errors.Is(otherErr, blob.ErrNotFound) {
			marker, err = approved, otherErr
		}
	}
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return part{}, fail(CodeMissingInput, CategoryInfrastructure,
			fmt.Errorf("input %s was never committed, or a newer version replaced it and it is no longer kept (see `keep`): start a new run: %w",
				labelOf(asset, partitionKey), err))
	case err != nil:
		return part{}, err
	case marker.MaterializationID != id || item.URI != "" && outputOf(marker, item) == nil ||
		!contract.IsExecutionURI(marker.URI, strings.TrimSuffix(key, "_commit.json")):
		return part{}, permanent(CodeInvalidMarker, "marker %s names materialization %s at %s, which is not the one of input %s",
			key, marker.MaterializationID, marker.URI, asset)
	}
	if item.URI != "" {
		return part{partitionKey: partitionKey, marker: outputOf(marker, item)}, nil
	}
	cell := marker.Cell(item.PartitionKey)
	if cell == nil {
		return part{}, permanent(CodeInvalidMarker, "marker %s has no partition %s of input %s", key, item.PartitionKey, asset)
	}
	if len(marker.Cells) > 0 {
		partitionKey = item.PartitionKey
	}
	return part{partitionKey: partitionKey, marker: cell}, nil
}

// outputOf returns the part of a marker that describes the output at the URI of an input, or nil if the marker names no
// such output. It first looks up the partition by its key, because searching all partitions of a batch for the URI
// takes milliseconds for each input.
func outputOf(m *contract.CommitMarker, item *plan.Input) *contract.CommitMarker {
	if one := m.Cell(item.PartitionKey); one != nil && one.URI == item.URI {
		return one
	}
	return m.For(item.URI)
}

// marker returns a commit marker, from the cache if possible.
func (w *Worker) marker(ctx context.Context, key string) (*contract.CommitMarker, error) {
	if m, ok := w.caches.markers.get(key); ok {
		return m, nil
	}
	data, err := w.get(ctx, key, contract.MaxCommitMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, err
	}
	if err != nil {
		return nil, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read commit marker: %w", err))
	}
	m, err := contract.DecodeCommitMarker(data)
	if err != nil {
		return nil, permanent(CodeInvalidMarker, "read commit marker %s: %w", key, err)
	}
	w.caches.markers.put(key, m, int64(2*len(data)))
	return m, nil
}

// fetch sets the local path of every input file. In a local store, this is the path of the object itself. From other
// stores, fetch downloads the file. In both cases, fetch verifies size and checksum.
func (a *attempt) fetch(ctx context.Context, inputs []input) error {
	if len(inputs) == 0 {
		return nil
	}
	local, _ := a.w.cfg.Store.(blob.Local)
	dir := ""
	if local == nil {
		var err error
		if dir, err = a.folder("fetched"); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	var fetched []*part
	for i := range inputs {
		for j := range inputs[i].parts {
			p := &inputs[i].parts[j]
			if p.paths != nil || inputs[i].isMerged(j) {
				continue // already fetched, for example for the checks of the phase PRE
			}
			p.paths = make([]string, len(p.marker.Files))
			fetched = append(fetched, p)
			for k, file := range p.marker.Files {
				key := p.marker.URI + file.Name
				if local != nil {
					p.paths[k] = local.Path(key)
					group.Go(func() error { return a.check(ctx, p.paths[k], key, file) })
					continue
				}
				p.paths[k] = filepath.Join(dir, strconv.Itoa(a.staged.fetched)+filepath.Ext(file.Name))
				a.staged.fetched++
				group.Go(func() error { return a.download(ctx, p.paths[k], key, file) })
			}
		}
	}
	if err := group.Wait(); err != nil {
		for _, p := range fetched {
			p.paths = nil // a query may be executed again: its files must then be fetched and verified again
		}
		return err
	}
	return nil
}

// check compares an input file in a local store with its commit marker.
func (a *attempt) check(ctx context.Context, path, key string, want contract.CommitMarkerFile) error {
	err := a.w.caches.files.Check(ctx, filecheck.File{Path: path, Size: want.Size, CRC32C: want.CRC32C})
	var bad *filecheck.DamagedError
	var kind *filecheck.KindError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		return permanent(CodeInvalidInput, "input file %w: restore it from a backup, or run its asset again", kind)
	case errors.As(err, &bad):
		return damaged(key, bad.FoundSize, bad.FoundCRC32C, want)
	case errors.Is(err, fs.ErrNotExist):
		return fail(CodeMissingInput, CategoryInfrastructure, fmt.Errorf("read input: %w", err))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read input: %w", err))
	}
}

// changedInput returns an error if a command has written to one of its inputs. In a local store, the inputs are the
// stored objects themselves. For a file that was checked before, one call of stat is enough. In other stores, the inputs
// are copies, whose stamps before the command are the parameter copies.
func (a *attempt) changedInput(ctx context.Context, inputs []input, copies map[string]string) error {
	const text = "the command has changed its input %s: a command may only read its inputs"
	_, local := a.w.cfg.Store.(blob.Local)
	for i := range inputs {
		for _, p := range inputs[i].parts {
			for k, file := range p.marker.Files {
				if !local {
					if before, known := copies[p.paths[k]]; known && before != stampAt(p.paths[k]) {
						return permanent(CodeInvalidInput, text, inputs[i].asset)
					}
					continue
				}
				err := a.check(ctx, p.paths[k], p.marker.URI+file.Name, file)
				if f, ok := errors.AsType[*failure](err); ok && f.code == CodeInvalidInput {
					return permanent(CodeInvalidInput, text+": %w", inputs[i].asset, err)
				}
			}
		}
	}
	return nil
}

// copyStamps returns the stamps of the downloaded input files, by path. In a local store, no file is downloaded.
func (a *attempt) copyStamps(inputs []input) map[string]string {
	if _, local := a.w.cfg.Store.(blob.Local); local {
		return nil
	}
	found := map[string]string{}
	for i := range inputs {
		for _, p := range inputs[i].parts {
			for _, path := range p.paths {
				found[path] = stampAt(path)
			}
		}
	}
	return found
}

// stampAt returns the stamp of a file, which changes whenever the file is written.
func stampAt(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "missing"
	}
	return filecheck.Stamp(info)
}

// damaged returns the error for an input file that differs from its commit marker.
func damaged(key string, size int64, sum uint32, want contract.CommitMarkerFile) error {
	found := fmt.Sprintf("CRC-32C %08x", sum)
	if size != want.Size {
		found = fmt.Sprintf("%d bytes", size)
	}
	return permanent(CodeInvalidInput, "input file %s is damaged: it was committed with %d bytes and CRC-32C %08x, and has %s: "+
		"restore it from a backup, or run its asset again", key, want.Size, want.CRC32C, found)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// download copies an object to a file, and verifies its size and checksum.
func (a *attempt) download(ctx context.Context, path, key string, want contract.CommitMarkerFile) (err error) {
	from, _, err := a.w.cfg.Store.Open(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		return fail(CodeMissingInput, CategoryInfrastructure, fmt.Errorf("read input: %w", err))
	}
	if err != nil {
		return fail(CodeStore, CategoryInfrastructure, fmt.Errorf("read input: %w", err))
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("write input: %w", err))
	}
	defer func() {
		if closeErr := to.Close(); closeErr != nil && err == nil {
			err = fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("write input: %w", closeErr))
		}
	}()
	sum := crc32.New(castagnoli)
	size, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(from, want.Size+1))
	if err != nil {
		return fail(CodeStore, CategoryInfrastructure, fmt.Errorf("copy input %s: %w", key, err))
	}
	if size != want.Size || sum.Sum32() != want.CRC32C {
		return damaged(key, size, sum.Sum32(), want)
	}
	return nil
}
