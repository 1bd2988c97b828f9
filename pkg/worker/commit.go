package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
)

const (
	parallelWrites = 8
	uploadTries    = 4
	// commitTries is the maximum number of tries to commit. Each try creates the marker or, if that fails, reads the
	// existing marker. The waits between the tries add up to 81 seconds.
	commitTries = 10
)

// outputFile is a file that the task wrote.
type outputFile struct {
	name string // the path relative to the output folder
	open func() (*os.File, error)
	// path is where the file is on this machine.
	path string
	// stored means that the file is an object of the store, or a copy of one.
	stored bool
	rows   int64
	// schema is a text that describes the columns of a Parquet file, one per line. columns describes the same columns
	// for the commit marker.
	schema  string
	columns []contract.CommitMarkerColumn
}

func (a *attempt) markerKey() string {
	return contract.CommitMarkerKey(a.domain, a.asset, a.env.PartitionKey, a.env.MaterializationID)
}

// existing returns the marker at a key, or nil if there is none.
func (a *attempt) existing(ctx context.Context, key string) (*contract.CommitMarker, error) {
	m, err := a.w.marker(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a.checked(key, m)
}

// checked returns m, the marker that is stored at a key, or an error if m names another materialization or other
// partitions than the task.
func (a *attempt) checked(key string, m *contract.CommitMarker) (*contract.CommitMarker, error) {
	prefix := contract.MaterializationPrefix(a.domain, a.asset, a.env.PartitionKey, a.env.MaterializationID)
	if m.MaterializationID != a.env.MaterializationID || !contract.IsExecutionURI(m.URI, prefix) {
		return nil, permanent(CodeInvalidMarker, "marker %s names materialization %s at %s, which is not below the marker's folder",
			key, m.MaterializationID, m.URI)
	}
	if !a.sameCells(m) {
		return nil, permanent(CodeInvalidMarker, "the %d partitions of marker %s are not the %d partitions of the task", len(m.Cells), key, len(a.batch))
	}
	return m, nil
}

// commit uploads the files and creates the marker at a key. If another execution has committed first, commit returns
// the marker of that execution.
func (a *attempt) commit(ctx context.Context, key string, made []outputFile) (*contract.CommitMarker, error) {
	began := a.now()
	m, err := a.upload(ctx, made)
	if err != nil {
		a.discard(ctx, m)
		return nil, err
	}
	a.usage.metrics["upload_ms"] = a.now().Sub(began).Milliseconds()
	if cause := context.Cause(ctx); cause != nil {
		a.discard(ctx, m)
		return nil, cause
	}
	// From here on, the output may be committed even if the execution is stopped.
	winner, err := a.mark(a.job.life, key, m)
	if err != nil {
		return nil, err // do not delete the files: the output may be committed
	}
	if winner.Nonce != m.Nonce || winner.AttemptID != m.AttemptID {
		a.log.InfoContext(ctx, "another execution committed first; using its output", "uri", winner.URI)
		a.discard(ctx, m)
	}
	return winner, nil
}

// upload stores the files in this execution's directory, and returns the marker that commits them. If it also returns
// an error, the marker must not be used to commit: it only lists the files that may have been stored, so that they
// can be deleted.
func (a *attempt) upload(ctx context.Context, made []outputFile) (*contract.CommitMarker, error) {
	m := &contract.CommitMarker{
		MaterializationID: a.env.MaterializationID, RunID: a.env.RunID, TaskKey: a.env.TaskKey,
		AssetKey: a.env.AssetKey, PartitionKey: a.env.PartitionKey,
		Attempt: a.env.Attempt, AttemptID: a.env.AttemptID, Nonce: a.nonce,
		URI:   a.executionPrefix(),
		Files: make([]contract.CommitMarkerFile, len(made)), SchemaHash: schemaHash(made), Columns: columnsOf(made), StartedAt: a.startedAt,
		Checks: a.checkResults, CodeChanged: a.codeChanged,
	}
	for i, file := range made {
		m.Files[i] = contract.CommitMarkerFile{Name: file.name, Rows: file.rows}
		m.RowCount += file.rows
		if !contract.ValidFileName(file.name) || blob.ValidateKey(m.URI+file.name) != nil {
			m.Files = m.Files[:0] // nothing was stored
			return m, permanent(CodeInvalidOutput, "output file %.200q has a name that object stores do not accept: rename it", file.name)
		}
	}
	group, uploads := errgroup.WithContext(ctx)
	group.SetLimit(parallelWrites)
	for i := range made {
		group.Go(func() error { return a.store(uploads, m.URI, &made[i], &m.Files[i]) })
	}
	err := group.Wait()
	for _, f := range m.Files {
		m.ByteSize += f.Size
	}
	if err == nil {
		err = a.setCells(m)
	}
	return m, err
}

// store uploads one file. If the outcome of an upload is unknown, store repeats it. An existing object then counts as
// success if it has the expected size and checksum, because only this execution writes to the directory.
func (a *attempt) store(ctx context.Context, uri string, from *outputFile, to *contract.CommitMarkerFile) error {
	wait, begun := firstBackoff, false
	for try := 1; ; try++ {
		object, size, sum, err := a.storeOnce(ctx, uri+from.name, from)
		switch {
		case err == nil && object.CRC32C != sum:
			return fail(CodeStore, CategoryInfrastructure,
				fmt.Errorf("store %s: stored with CRC-32C %08x, want %08x", uri+from.name, object.CRC32C, sum))
		case err == nil, errors.Is(err, blob.ErrExists) && begun && a.stored(ctx, uri+from.name, size, sum):
			to.Size, to.CRC32C = size, sum
			if local, ok := a.w.cfg.Store.(blob.Local); ok {
				a.w.caches.files.Remember(filecheck.File{Path: local.Path(uri + from.name), Size: size, CRC32C: sum})
			}
			return nil
		case errors.Is(err, blob.ErrInvalid):
			return permanent(CodeInvalidOutput, "store output: %w", err)
		case try == uploadTries || ctx.Err() != nil || errors.Is(err, blob.ErrExists):
			return fail(CodeStore, CategoryInfrastructure, fmt.Errorf("store output: %w", err))
		}
		begun = true // the object may have been stored
		if stopped := a.w.cfg.Clock.Sleep(ctx, wait); stopped != nil {
			return context.Cause(ctx)
		}
		wait *= 2
	}
}

// stored reports whether an object has the given size and, if the store returns a checksum, the given checksum.
func (a *attempt) stored(ctx context.Context, key string, size int64, sum uint32) bool {
	object, err := a.w.cfg.Store.Head(ctx, key)
	return err == nil && object.Size == size && (object.CRC32C == 0 || object.CRC32C == sum)
}

func (a *attempt) storeOnce(ctx context.Context, key string, from *outputFile) (object blob.Object, size int64, sum uint32, err error) {
	file, err := from.open()
	if err != nil {
		return object, 0, 0, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("read output: %w", err))
	}
	defer file.Close()
	hash := crc32.New(castagnoli)
	counted := &counter{}
	object, err = a.w.cfg.Store.CreateFrom(ctx, key, io.TeeReader(file, io.MultiWriter(hash, counted)))
	if err != nil && errors.Is(err, blob.ErrExists) {
		// The store may have returned ErrExists before it read all data. The rest is read here for the checksum.
		_, copyErr := io.Copy(io.MultiWriter(hash, counted), file)
		err = errors.Join(err, copyErr)
	}
	return object, counted.n, hash.Sum32(), err
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// mark creates the marker, and returns the marker that counts: m, or the marker of an execution that committed first.
// It retries until the outcome is known or no tries are left.
func (a *attempt) mark(ctx context.Context, key string, m *contract.CommitMarker) (*contract.CommitMarker, error) {
	m.CommittedAt = a.now()
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("encode commit marker: %w", err))
	}
	if len(data) > contract.MaxCommitMarkerBytes {
		return nil, permanent(CodeInvalidOutput, "the list of the output's %d files has %d bytes; at most %d are allowed: write fewer files",
			len(m.Files), len(data), contract.MaxCommitMarkerBytes)
	}
	wait := firstBackoff
	for try := 1; ; try++ {
		_, err := a.w.cfg.Store.Create(ctx, key, data)
		if err == nil {
			a.w.caches.markers.put(key, m, int64(2*len(data)))
			return m, nil
		}
		if errors.Is(err, blob.ErrInvalid) {
			return nil, permanent(CodeInvalidOutput, "commit: %w", err)
		}
		winner, readErr := a.w.marker(ctx, key)
		switch {
		case readErr == nil:
			return a.checked(key, winner)
		case !errors.Is(readErr, blob.ErrNotFound):
			err = errors.Join(err, readErr)
		}
		var f *failure
		if try == commitTries || errors.As(readErr, &f) && !f.retryable {
			return nil, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("commit: %w", err))
		}
		if stopped := a.w.cfg.Clock.Sleep(ctx, wait); stopped != nil {
			return nil, fail(CodeStore, CategoryInfrastructure, fmt.Errorf("commit: %w", err))
		}
		wait = min(2*wait, maxBackoff)
	}
}

// deleteTimeout limits the deletion of files that were not committed.
const deleteTimeout = time.Minute

// discard schedules the deletion of this execution's files. The deletion happens after the report of the end, because
// there may be thousands of files, and a worker that is closing has only seconds.
func (a *attempt) discard(ctx context.Context, m *contract.CommitMarker) {
	a.cleanups = append(a.cleanups, func() { a.deleteFiles(ctx, m) })
}

// deleteFiles deletes the files that this execution has stored. It stops at the first error. The remaining files do
// no harm, because no marker names their directory.
func (a *attempt) deleteFiles(ctx context.Context, m *contract.CommitMarker) {
	clean, cancel := context.WithTimeout(a.job.life, deleteTimeout)
	defer cancel()
	for _, f := range m.Files {
		if err := a.w.cfg.Store.Delete(clean, m.URI+f.Name); err != nil {
			a.log.WarnContext(ctx, "could not delete the files of an uncommitted execution", "uri", m.URI, "error", a.masked(err))
			return
		}
	}
}
