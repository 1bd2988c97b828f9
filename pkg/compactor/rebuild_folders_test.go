package compactor_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/repair"
)

// Who rebuilds in a copy of a bucket copies what repair names, and nothing else.
func TestARebuildReadsAndWritesWhatItSays(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))

	under := func(key string, prefixes []string) bool {
		for _, prefix := range prefixes {
			if strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, key) {
				return true
			}
		}
		return false
	}
	d := foldtest.Domain
	read, written := map[string]bool{}, map[string]bool{}
	store := faultblob.New(w.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		folder, _, _ := strings.Cut(key, "/")
		switch op {
		case faultblob.Get, faultblob.Open, faultblob.Head, faultblob.List:
			read[folder] = true
			require.True(t, under(key, repair.Reads(d)), "%s %s", op, key)
		default:
			written[folder] = true
			require.True(t, under(key, repair.Writes(d)), "%s %s", op, key)
		}
		return faultblob.None
	})
	cfg := w.repair()
	cfg.Store = store
	cfg.Manifests = manifest.New(manifest.Config{Domain: d, Store: store, IDs: w.ids, Clock: w.clock})
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, result.Recorded)
	w.verify()
	require.True(t, under(plan.Ref(d, "x"), repair.Reads(d)), "plans are read where events name them")
	read["plans"] = true
	require.Equal(t, foldersOf(repair.Reads(d)), read)
	require.Equal(t, foldersOf(repair.Writes(d)), written)
}

func foldersOf(keys []string) map[string]bool {
	folders := map[string]bool{}
	for _, key := range keys {
		folder, _, _ := strings.Cut(key, "/")
		folders[folder] = true
	}
	return folders
}
