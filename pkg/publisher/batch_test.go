package publisher_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/publisher"
)

// The outputs of a batch are one folder deeper than other outputs.
func TestUpdateNamesBatchThatInterruptedOneHasReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	a := asset("a/b", []string{"date"})
	day1 := ids.Partition{"date": "2025-01-01"}.Key()
	outputs := make([]publisher.Output, 3)
	for i := range outputs {
		id := fmt.Sprintf("01J%023d", i+1)
		batch := "assets/default/default/a/b/" + contract.PartitionSegment("") + "/" + id + "/01J00000000000000000000000-n.cells/"
		outputs[i] = publisher.Output{Partition: day1, MaterializationID: id, URI: contract.CellURI(batch, day1)}
		_, deeper := contract.BatchOf(outputs[i].URI)
		require.True(t, deeper, outputs[i].URI)
	}
	for _, out := range outputs[:2] {
		require.NoError(t, os.MkdirAll(filepath.Join(f.store, filepath.FromSlash(out.URI)), 0o700))
	}
	a.Outputs = outputs[:1]
	_, err := f.Update(t.Context(), []publisher.Asset{a}, 1, day)
	require.NoError(t, err)
	a.Outputs = outputs[1:2]
	f.StopAfter(4) // the four changes: write the record, rename it, create the new link, rename it
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 2, day)
	require.ErrorIs(t, err, publisher.ErrStopped)
	target, err := os.Readlink(filepath.Join(f.Path, "a/b/date=2025-01-01"))
	require.NoError(t, err)
	require.Contains(t, target, outputs[1].MaterializationID)

	f.StopAfter(1_000)
	a.Outputs = outputs[2:]
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 3, day)
	require.ErrorContains(t, err, "is missing: run the asset again")
	named := map[string]bool{}
	require.NoError(t, publisher.Named(filepath.Join(f.Path, publisher.RecordName), named))
	require.True(t, named[outputs[1].MaterializationID], "readers find it")
}
