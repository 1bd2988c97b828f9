package e2e_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxFootprint is how many bytes a state folder may have per byte of data when a backfill has ended.
const maxFootprint = 3

// After a backfill of 10 MB of data, the state folder has at most 30 MB. By default, the backfill has few but large
// partitions; with -full, it has a partition for each day of three years.
func TestFootprintOfBackfillIsBounded(t *testing.T) {
	days, rows, last := 60, 18_000, "2022-03-01"
	if *full {
		days, rows, last = 1096, 1000, "2024-12-31"
	}
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("servo.yaml", "name: footprint\n")
	write("assets/a/daily.sql", fmt.Sprintf(`/* servo
partitions:
  daily: {start: 2022-01-01, end: %s}
*/
SELECT getvariable('date') AS day, range AS id, random() AS x FROM range(%d)
`, last, rows))
	output, err := program(t, "servo", "-C", dir, "run", "--all", "-p", "date=2022-01-01.."+last).CombinedOutput()
	require.NoError(t, err, "%s", output)

	data, all, files := int64(0), int64(0), 0
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, ".servo"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		all += info.Size()
		files++
		if strings.Contains(path, "/assets/") && filepath.Ext(path) == ".parquet" {
			data += info.Size()
		}
		return nil
	}))
	const least = 9 << 20
	require.Greater(t, data, int64(least), "the test needs about 10 MB of data")
	require.LessOrEqual(t, all, maxFootprint*data, "%d files", files)
	t.Logf("%d days: %d bytes of data, %d bytes in %d files: %.2f times", days, data, all, files, float64(all)/float64(data))
}
