package publisher_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/publisher"
)

// A process that dies after the file has been replaced leaves a record that does not say which outputs the file shows.
// Further updates must not make the collector delete these outputs.
func TestCatalogNamesWhatInterruptedUpdatesHaveReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := asset("a/b", nil)
	shown := "" // the materialization that the file shows
	type death struct{}
	dies := errors.New("the outputs cannot be read")
	c := publisher.Catalog{File: filepath.Join(dir, "shop.duckdb"), Name: "shop.duckdb", Store: filepath.Join(dir, ".servo"), Definition: "release"}
	update := func(id string, failure error, dead bool) (err error) {
		defer func() {
			if recover() != nil {
				err = nil // the process has died
			}
		}()
		a.Outputs = []publisher.Output{{MaterializationID: id, URI: "assets/" + id + "/"}}
		c.Write = func(context.Context, []publisher.Asset, int64, event.Time) error {
			if failure != nil {
				return failure
			}
			shown = id
			require.NoError(t, os.WriteFile(c.File, []byte(id), 0o600))
			if dead {
				panic(death{})
			}
			return nil
		}
		_, err = c.Update(t.Context(), []publisher.Asset{a}, 1, day)
		return err
	}
	named := func() []string {
		all := map[string]bool{}
		require.NoError(t, publisher.Named(publisher.RecordOf(c.File), all))
		require.Contains(t, all, shown, "readers find it")
		return slices.Sorted(maps.Keys(all))
	}
	require.NoError(t, update("01", nil, false))
	require.Equal(t, []string{"01"}, named())
	require.NoError(t, update("02", nil, true))
	require.Equal(t, []string{"01", "02"}, named())
	for _, id := range []string{"03", "04"} { // a failure leaves the file unchanged
		require.ErrorIs(t, update(id, dies, false), dies)
		require.Equal(t, []string{"01", "02"}, named())
	}
	require.NoError(t, update("05", nil, true))
	require.Equal(t, []string{"01", "02", "05"}, named())
	require.NoError(t, update("06", nil, true))
	require.Equal(t, []string{"01", "02", "05", "06"}, named())
	require.NoError(t, update("07", nil, false))
	require.Equal(t, []string{"07"}, named())
	require.ErrorIs(t, update("08", dies, false), dies)
	require.Equal(t, []string{"07"}, named())
}

// The views contain absolute paths.
func TestCatalogIsWrittenAgainAfterMove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "one")
	require.NoError(t, os.Mkdir(dir, 0o700))
	a := asset("a/b", nil, publisher.Output{MaterializationID: "01", URI: "assets/01/"})
	update := func(dir string) (changed bool) {
		c := publisher.Catalog{File: filepath.Join(dir, "shop.duckdb"), Name: "shop.duckdb", Store: filepath.Join(dir, ".servo"), Definition: "release"}
		c.Write = func(context.Context, []publisher.Asset, int64, event.Time) error {
			return os.WriteFile(c.File, nil, 0o600)
		}
		changed, err := c.Update(t.Context(), []publisher.Asset{a}, 1, day)
		require.NoError(t, err)
		return changed
	}
	require.True(t, update(dir))
	require.False(t, update(dir))
	moved := filepath.Join(filepath.Dir(dir), "two")
	require.NoError(t, os.Rename(dir, moved))
	require.True(t, update(moved))
	require.False(t, update(moved))
}
