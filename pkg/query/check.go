package query

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/filecheck"
)

// checkTables verifies the files of the tables that the SQL may refer to: their sizes and checksums must be those in
// the manifest. The parameter "lower" is the SQL in lower case. If it is empty, checkTables verifies the files of all
// tables. For a file that was verified before and has not changed, it makes only one stat call.
func (db *DB) checkTables(ctx context.Context, lower string) error {
	for _, name := range slices.Sorted(maps.Keys(db.tables)) {
		if !strings.Contains(lower, name) && lower != "" {
			continue
		}
		err := db.checked.CheckAll(ctx, db.tables[name].Files)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("table %s: a file of the revision is missing: %w", name, err)
		case err != nil:
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}

// checkOutputs verifies the files of an asset against their commit markers.
func (db *DB) checkOutputs(ctx context.Context, a *asset) error {
	err := db.checked.CheckAll(ctx, a.files)
	switch damaged := (*filecheck.DamagedError)(nil); {
	case errors.As(err, &damaged):
		return fmt.Errorf("asset %s/%s: %w: restore it from a backup, or run the asset again", a.namespace, a.name, err)
	case err != nil:
		return fmt.Errorf("asset %s/%s: %w", a.namespace, a.name, err)
	}
	return nil
}
