package gc_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/state"
)

// mergeOutputs stores a merged file of outputs.
func (f *fixture) mergeOutputs(uris ...string) (id string) {
	f.t.Helper()
	prefix := merged.Prefix(acme, asset)
	id = f.ids.New()
	file := &merged.File{}
	for _, uri := range uris {
		split := strings.Split(uri, "/")
		file.Cells = append(file.Cells, merged.Cell{Materialization: split[len(split)-3], URI: uri})
	}
	f.put(merged.DataKey(prefix, id), []byte("copies"))
	description, err := json.Marshal(file)
	require.NoError(f.t, err)
	f.put(merged.CellsKey(prefix, id), description)
	require.NoError(f.t, merged.Update(f.t.Context(), f.blobs, prefix, func(x *merged.Index) bool {
		x.Files = append(x.Files, merged.EntryOf(id, file, description))
		return true
	}))
	return id
}

// mergedLeft returns the ids of the merged files that the index names and, with each of them, whether it is checked.
// It fails the test if objects of other merged files remain.
func (f *fixture) mergedLeft() map[string]bool {
	f.t.Helper()
	prefix := merged.Prefix(acme, asset)
	index, _, damaged, err := merged.Load(f.t.Context(), f.blobs, prefix)
	require.NoError(f.t, err)
	require.False(f.t, damaged)
	found := map[string]bool{}
	for _, e := range index.Files {
		found[e.ID] = e.Checked
	}
	for _, key := range f.left() {
		if id := merged.IDOf(prefix, key); id != "" {
			require.Contains(f.t, found, id)
		}
	}
	return found
}

// A copy never outlives its output: the copy is deleted first, and an output stays if its copy cannot be deleted.
func TestI33MergedFileIsDeletedBeforeItsOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, first := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.clock.now = f.clock.now.Add(time.Hour)
	_, second := f.run(state.RunSucceeded, state.TaskSucceeded, "b")
	both, kept := f.mergeOutputs(first, second), f.mergeOutputs(second)
	f.publish()
	f.clock.now = f.clock.now.Add(40 * day)
	f.publish()

	before := f.left()
	dry := f.collect(gc.Options{DryRun: true})
	require.Equal(t, before, f.left())
	healthy := f.cfg.Store
	var deleted []string
	f.cfg.Store = faultblob.New(f.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Delete && strings.Contains(key, both) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := gc.Run(t.Context(), f.cfg, gc.Options{})
	require.Error(t, err)
	require.Contains(t, f.left(), first+"data.parquet", "its copy is still there")
	f.cfg.Store = faultblob.New(healthy, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Delete {
			deleted = append(deleted, key)
		}
		return faultblob.None
	})
	report := f.collect(gc.Options{})
	require.Equal(t, dry.Counts, report.Counts)
	require.Contains(t, deleted[0], both)
	require.NotContains(t, f.left(), first+"data.parquet")
	require.Equal(t, map[string]bool{kept: true}, f.mergedLeft())
	require.Empty(t, f.collect(gc.Options{}).Counts)
}

// A worker may publish a merged file while a pass deletes an output that the file contains.
func TestNewMergedFilesAreChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, uri := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	gone := strings.Replace(uri, strings.Split(uri, "/")[6], f.ids.New(), 1)
	good := f.mergeOutputs(uri)
	f.mergeOutputs(uri, gone)
	f.collect(gc.Options{})
	require.Equal(t, map[string]bool{good: false}, f.mergedLeft())
	f.clock.now = f.clock.now.Add(25 * time.Hour)
	f.publish()
	f.collect(gc.Options{})
	require.Equal(t, map[string]bool{good: true}, f.mergedLeft())
}

func TestUnnamedAndDamagedMergedFilesAreDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, uri := f.run(state.RunSucceeded, state.TaskSucceeded, "a")
	f.publish()
	prefix := merged.Prefix(acme, asset)
	id := f.mergeOutputs(uri)
	other := ids.NewSource(f.clock.Now, nil).New()
	f.put(merged.DataKey(prefix, other), []byte("not published"))
	f.clock.now = f.clock.now.Add(23 * time.Hour)
	f.publish()
	require.Empty(t, f.collect(gc.Options{}).Counts, "a worker may publish it soon")
	f.clock.now = f.clock.now.Add(2 * time.Hour)
	f.publish()
	require.Equal(t, []gc.Count{{Asset: "raw/events", Reason: gc.Merged, Files: 1, Bytes: 13}}, f.collect(gc.Options{}).Counts)
	require.Equal(t, map[string]bool{id: true}, f.mergedLeft())

	f.put(merged.CellsKey(prefix, id), []byte("{"))
	f.mergeOutputs(uri)
	f.put(merged.IndexKey(prefix), []byte("{"))
	f.collect(gc.Options{})
	require.Empty(t, f.mergedLeft())
}
