package publisher_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/publisher"
)

// Two updates at once use the same temporary names, so one update could rename a link that the other update has
// created.
func TestUpdateRefusesSecondUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	a := asset("a/b", []string{"date"})
	for i, date := range []string{"2025-01-01", "2025-01-02"} {
		out, err := f.output("a/b", ids.Partition{"date": date}.Key(), i+1, "data.parquet")
		require.NoError(t, err)
		a.Outputs = append(a.Outputs, out)
	}
	second := f.Folder
	concurrent := func() error {
		reversed := a
		reversed.Outputs = []publisher.Output{a.Outputs[1], a.Outputs[0]}
		_, err := second.Update(t.Context(), []publisher.Asset{reversed}, 1, day)
		return err
	}
	changes := 0
	var refused error
	f.BeforeChange(func() error {
		if changes++; changes == 5 { // the link to the first partition has its temporary name
			refused = concurrent()
		}
		return nil
	})
	_, err := f.Update(t.Context(), []publisher.Asset{a}, 1, day)
	require.NoError(t, err)
	require.EqualError(t, refused, "publish to ./published: another servo process is writing to it: try again when that process has ended")
	for i, date := range []string{"2025-01-01", "2025-01-02"} {
		target, err := os.Readlink(filepath.Join(f.Path, "a/b/date="+date))
		require.NoError(t, err)
		require.Contains(t, target, a.Outputs[i].MaterializationID)
	}
	require.NoError(t, concurrent())
}
