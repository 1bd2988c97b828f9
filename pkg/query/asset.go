package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/textrows"
)

// asset is an asset with at least one materialization.
type asset struct {
	namespace, name string
	files           []filecheck.File // the Parquet files of its outputs
	columns         []space.Column   // the columns that come from the keys of partitions
	parts           []partcolumn.Part
	problem         string // why the asset has no view, or ""
	mixed           string // says which output has text files of two formats but no Parquet files; "": none
	created         bool
	failed          bool // problem says why the view could not be created
	// sample means that this is not an asset, but the failing rows of a check. No commit marker describes their file.
	// Their view exists only if the SQL names it.
	sample bool
	unread bool // the session's SQL does not mention the asset, so its files are unknown
	listed bool // the session's SQL lists views but does not mention the asset, so only some of its files are known
}

// noParquet is the reason why an asset without Parquet files has no view.
const noParquet = "its outputs contain no *.parquet files"

// loadAssets finds the files of each asset's current outputs. It must run before confine, which allows DuckDB to read
// only the files that are known by then.
func (db *DB) loadAssets(ctx context.Context, source Source) error {
	if source.Outputs == "" {
		return nil
	}
	if source.exported != nil {
		return db.loadExported(source)
	}
	db.views = true
	declared, err := db.declared(ctx, source)
	if err != nil {
		return err
	}
	outputs, lower, lists := visibleOutputs, strings.ToLower(source.SQL), listsViews(source.SQL)
	if lower != "" {
		if outputs, err = db.onlyMentioned(ctx, lower, lists); err != nil {
			return fmt.Errorf("table partition_status: %w", err)
		}
	}
	rows, err := db.runOne(ctx, outputs+" ORDER BY ALL")
	if err != nil {
		return fmt.Errorf("table partition_status: %w", err)
	}
	defer rows.Close() // the loop over All returns the errors
	total, markers := 0, &markers{root: source.Outputs}
	for row, err := range rows.All() {
		if err != nil {
			return fmt.Errorf("table partition_status: %w", err)
		}
		key, partition := fmt.Sprint(row[0]), fmt.Sprint(row[2])
		if !declared.has(key, partition) {
			continue // tasks that read the asset do not read this partition either
		}
		a := db.assetOf(key, declared.columns(key))
		before := len(a.files)
		a.add(markers, fmt.Sprint(row[1]), partition)
		if total += len(a.files) - before; total > MaxFiles {
			return tooManyFiles(source.SQL, "the outputs of the assets have")
		}
	}
	if lists {
		db.listAssets(lower)
	}
	if err := db.loadCandidates(ctx, source, total); err != nil {
		return err
	}
	if err := db.loadFailingRows(ctx, source); err != nil {
		return err
	}
	db.noteProblems()
	return nil
}

// tooManyFiles returns the error of a session that would have more than MaxFiles files. A session whose SQL is not
// known has the files of all assets.
func tooManyFiles(sql, outputs string) error {
	action := "query fewer assets at once"
	if sql == "" {
		action = "pass the SQL as an argument, so that only the assets that it names are read"
	}
	return fmt.Errorf("%s more than %d files: %s", outputs, MaxFiles, action)
}

// noteProblems records why assets have no view. It must run after the files of all assets have been found.
func (db *DB) noteProblems() {
	for _, a := range db.assets {
		switch {
		case a.problem != "", a.unread:
		case len(a.files) == 0:
			a.problem = noParquet
		case a.mixed != "":
			a.problem = a.mixed
		}
	}
}

// visibleOutputs is a query for the visible outputs.
const visibleOutputs = `SELECT asset_key, output_uri, partition_key FROM partition_status AS p WHERE output_uri IS NOT NULL
	AND NOT EXISTS (FROM partition_marks AS m WHERE m.mark = 'missing' AND m.asset_key = p.asset_key
		AND m.partition_key = p.partition_key AND m.materialization_id = p.last_materialization_id)
	AND NOT EXISTS (FROM forgotten_assets AS f WHERE f.asset_key = p.asset_key AND (p.version_seq < f.row_seq OR p.run_id < f.runs_below))`

// onlyMentioned returns a query for the visible outputs of the assets that the SQL mentions, because reading the commit
// markers of all outputs may take long. The parameter "lower" is the SQL in lower case. If the SQL lists views, the
// query also returns the newest outputs of the other assets. Otherwise, onlyMentioned adds the other assets to
// db.assets without their files.
func (db *DB) onlyMentioned(ctx context.Context, lower string, lists bool) (outputs string, err error) {
	rows, err := db.runOne(ctx, "SELECT DISTINCT asset_key FROM ("+visibleOutputs+") ORDER BY ALL")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	keys := []string{"''"} // no asset has this key
	for row, err := range rows.All() {
		if err != nil {
			return "", err
		}
		key := fmt.Sprint(row[0])
		namespace, name, _ := strings.Cut(key, "/")
		switch a := (&asset{namespace: namespace, name: name, unread: true}); {
		case a.isMentioned(lower):
			keys = append(keys, quoteText(key))
		case !lists:
			db.assets = append(db.assets, a)
		}
	}
	mentioned := "asset_key IN (" + strings.Join(keys, ", ") + ")"
	if !lists {
		return visibleOutputs + " AND " + mentioned, nil
	}
	return fmt.Sprintf("%s QUALIFY %s OR row_number() OVER (PARTITION BY asset_key ORDER BY version_seq DESC, row_seq DESC) <= %d",
		visibleOutputs, mentioned, newestOutputs), nil
}

// QuarantineSchema is the schema of the views of outputs in quarantine: the asset raw/orders has the view
// quarantine."raw.orders". No asset has a name with a dot, so the name of the view is unique.
const QuarantineSchema = "quarantine"

// loadCandidates finds the files of the outputs in quarantine.
func (db *DB) loadCandidates(ctx context.Context, source Source, total int) error {
	rows, err := db.runOne(ctx, "SELECT asset_key, output_uri FROM quarantine WHERE state = 'PENDING' ORDER BY ALL")
	if err != nil {
		return fmt.Errorf("table quarantine: %w", err)
	}
	defer rows.Close() // the loop over All returns the errors
	markers := &markers{root: source.Outputs}
	for row, err := range rows.All() {
		if err != nil {
			return fmt.Errorf("table quarantine: %w", err)
		}
		a := db.assetOf(QuarantineSchema+"/"+strings.ReplaceAll(fmt.Sprint(row[0]), "/", "."), nil)
		before := len(a.files)
		a.add(markers, fmt.Sprint(row[1]), "")
		if total += len(a.files) - before; total > MaxFiles {
			return tooManyFiles(source.SQL, "the outputs of the assets, including those in quarantine, have")
		}
	}
	return nil
}

// FailingRowsSchema is the schema of the views of failing rows: the check unique_id of raw/orders has the view
// failing_rows."raw.orders.unique_id". It shows the rows that the check stored when it last failed.
const FailingRowsSchema = "failing_rows"

// loadFailingRows finds the files with the failing rows of checks.
func (db *DB) loadFailingRows(ctx context.Context, source Source) error {
	rows, err := db.runOne(ctx, "SELECT asset_key, check_name, failed_sample FROM asset_checks WHERE failed_sample IS NOT NULL ORDER BY ALL")
	if err != nil {
		return fmt.Errorf("table asset_checks: %w", err)
	}
	defer rows.Close() // the loop over All returns the errors
	for row, err := range rows.All() {
		if err != nil {
			return fmt.Errorf("table asset_checks: %w", err)
		}
		key := fmt.Sprint(row[2])
		a := &asset{namespace: FailingRowsSchema, name: strings.ReplaceAll(fmt.Sprint(row[0]), "/", ".") + "." + fmt.Sprint(row[1]), sample: true}
		db.assets = append(db.assets, a)
		local, err := filepath.Localize(key)
		if err != nil {
			a.problem = fmt.Sprintf("its file %q is not a path in the store", key)
			continue
		}
		info, err := os.Stat(filepath.Join(source.Outputs, local))
		if err != nil {
			a.problem = "the failing rows were deleted: Servo keeps failing rows only as long as their output, or for a day if the output was not published"
			continue
		}
		a.files = []filecheck.File{{Path: filepath.Join(source.Outputs, local), Size: info.Size()}}
	}
	return nil
}

// declared returns the declarations of the deployed release. It returns nil if no release is deployed, or if the
// source has no Declared function.
func (db *DB) declared(ctx context.Context, source Source) (_ *Declarations, err error) {
	if source.Declared == nil {
		return nil, nil
	}
	rows, err := db.runOne(ctx, "SELECT release FROM deployments WHERE superseded_at IS NULL")
	if err != nil {
		return nil, fmt.Errorf("table deployments: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for row, err := range rows.All() {
		if err != nil {
			return nil, fmt.Errorf("table deployments: %w", err)
		}
		return source.Declared(ctx, fmt.Sprint(row[0]), func(set string) ([]string, error) { return db.keysOf(ctx, set) })
	}
	return nil, nil
}

// keysOf returns the keys of a key set in ascending order.
func (db *DB) keysOf(ctx context.Context, set string) (keys []string, err error) {
	rows, err := db.runOne(ctx, "SELECT keys FROM key_sets WHERE key_set = "+quoteText(set)+" ORDER BY first_key")
	if err != nil {
		return nil, fmt.Errorf("table key_sets: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for row, err := range rows.All() {
		if err != nil {
			return nil, fmt.Errorf("table key_sets: %w", err)
		}
		block := state.KeyBlock{Keys: fmt.Sprint(row[0])}
		for k := range block.All() {
			if !k.Removed {
				keys = append(keys, k.Key)
			}
		}
	}
	return keys, nil
}

// assetOf returns the asset with a key, and adds it if it is not the last element of db.assets. So all calls for one
// key must be consecutive.
func (db *DB) assetOf(key string, columns []space.Column) *asset {
	namespace, name, _ := strings.Cut(key, "/")
	if n := len(db.assets); n > 0 && db.assets[n-1].namespace == namespace && db.assets[n-1].name == name {
		return db.assets[n-1]
	}
	a := &asset{namespace: namespace, name: name, columns: columns}
	if namespace == "main" && slices.ContainsFunc(state.Declarations(), func(d *state.Declaration) bool { return d.Name == name }) {
		a.problem = "main." + name + " is a table of the state"
	}
	db.assets = append(db.assets, a)
	return a
}

// add adds the files that the commit marker of one partition's output names. The parameter "uri" is an object key that
// ends in "/".
func (a *asset) add(markers *markers, uri, partition string) {
	marker, err := markers.marker(uri, partition)
	if err != nil {
		a.problem = err.Error()
		return
	}
	part := a.partOf(partition, marker)
	parquet, names := false, make([]string, len(marker.Files))
	for i, f := range marker.Files {
		names[i] = f.Name
		if strings.HasSuffix(f.Name, ".parquet") {
			parquet = true
			path := filepath.Join(markers.root, filepath.FromSlash(uri+f.Name))
			a.files = append(a.files, filecheck.File{Path: path, Size: f.Size, CRC32C: f.CRC32C})
			part.Files = append(part.Files, path)
		}
	}
	if formats := textrows.FormatsOf(names); !parquet && len(formats) > 1 {
		a.mixed = fmt.Sprintf("the output of %s has %s files, but a table is read from files of one format: declare output: {format: %s} and run the asset again",
			marker.TaskKey, strings.Join(formats, " and "), formats[0])
	}
	if len(a.columns) > 0 {
		a.parts = append(a.parts, part)
	}
}

// markers reads the commit markers of outputs below a folder. The partitions of a batch, up to 1,000, share a marker.
// If they are requested one after another, their marker is read only once.
type markers struct {
	root string
	key  string
	last *contract.CommitMarker
}

// marker returns the commit marker of a partition's output. If the output is not part of a batch, the parameter
// "partition" may be "".
func (m *markers) marker(uri, partition string) (*contract.CommitMarker, error) {
	key := contract.CommitMarkerKeyOf(uri)
	if _, batch := contract.BatchOf(uri); batch && key != m.key {
		m.key, m.last = key, nil
		if local, err := filepath.Localize(key); err == nil {
			if data, err := readFile(filepath.Join(m.root, local)); err == nil {
				m.last, _ = contract.DecodeCommitMarker(data) // readMarker returns the error
			}
		}
	}
	if key == m.key && m.last != nil {
		if one := m.last.Cell(partition); one != nil && one.URI == uri {
			return one, nil
		}
	}
	return readMarker(m.root, uri)
}

// readMarker reads the commit marker of an output. The parameter "root" is the folder of the store.
func readMarker(root, uri string) (*contract.CommitMarker, error) {
	if _, err := filepath.Localize(contract.CommitMarkerKeyOf(uri)); err != nil {
		return nil, fmt.Errorf("output %q is not a path in the store", uri)
	}
	marker, key, err := contract.FindMarker(uri, func(key string) ([]byte, error) { return readFile(filepath.Join(root, filepath.FromSlash(key))) },
		func(err error) bool { return errors.Is(err, fs.ErrNotExist) })
	if _, unread := errors.AsType[*fs.PathError](err); unread {
		return nil, fmt.Errorf("read commit marker: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("commit marker %s is damaged: %w", key, err)
	}
	if marker.URI != uri {
		return nil, fmt.Errorf("the state names output %s, but its commit marker names %s", uri, marker.URI)
	}
	return marker, nil
}

func readFile(name string) (_ []byte, err error) {
	file, err := os.Open(name) //nolint:gosec // a commit marker in the store
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, contract.MaxCommitMarkerBytes+1))
}

// isMentioned reports whether the lower-case SQL contains namespace.name.
func (a *asset) isMentioned(lower string) bool {
	name := strings.ToLower(a.name) // the name of a check may have capital letters
	if !strings.Contains(lower, a.namespace) || !strings.Contains(lower, name) {
		return false
	}
	pattern := `\b` + regexp.QuoteMeta(a.namespace) + `"?\s*\.\s*"?` + regexp.QuoteMeta(name) + `\b`
	found, err := regexp.MatchString(pattern, lower)
	return found && err == nil
}

// Names returns the names of the assets that have a view or can get one, as namespace.name.
func (db *DB) Names() []string {
	var names []string
	for _, a := range db.assets {
		if len(a.files) > 0 && a.problem == "" && !strings.Contains(a.name, ".") {
			names = append(names, a.namespace+"."+a.name)
		}
	}
	return names
}

// Lacks reports whether an asset has no view because it was never materialized. It returns false if the session has
// no views of assets at all.
func (db *DB) Lacks(namespace, name string) bool {
	return db.views && !slices.ContainsFunc(db.assets, func(a *asset) bool {
		return strings.EqualFold(a.namespace, namespace) && strings.EqualFold(a.name, name)
	})
}

// createAssetViews creates the views of the assets that the SQL may refer to. If the SQL may list views, it creates
// views of all assets. A view that cannot be created is not an error, because the SQL may not need it: "a.b" in the SQL
// may be a column of an alias. If the query then fails, hint explains why the view does not exist.
//
// createAssetViews verifies the files of each mentioned asset against their commit markers.
func (db *DB) createAssetViews(ctx context.Context, sql string) error {
	lower := strings.ToLower(sql)
	all := listsViews(sql)
	for _, a := range db.assets {
		mentioned := a.isMentioned(lower)
		if len(a.files) == 0 || a.problem != "" || !mentioned && (a.sample || !all) {
			continue
		}
		if mentioned && !a.sample {
			if err := db.checkOutputs(ctx, a); err != nil {
				return err
			}
		}
		if a.created {
			continue
		}
		rows, err := db.view(ctx, a)
		if err == nil {
			err = db.exec(
				ctx,
				"CREATE SCHEMA IF NOT EXISTS "+quoteName(a.namespace),
				"CREATE OR REPLACE VIEW "+quoteName(a.namespace)+"."+quoteName(a.name)+" AS "+rows,
			)
		}
		switch {
		case err == nil:
			a.created = true
		case ctx.Err() == nil && !errors.Is(err, context.Canceled):
			a.problem, a.failed = err.Error(), true
		}
	}
	return nil
}

// forgetViews makes [DB.createAssetViews] create the views of assets again. A transaction that was rolled back has
// removed them, and an aborted transaction creates none.
func (db *DB) forgetViews() {
	for _, a := range db.assets {
		if a.failed {
			a.problem = ""
		}
		a.created, a.failed = false, false
	}
}

// view returns the query of an asset's view.
func (db *DB) view(ctx context.Context, a *asset) (string, error) {
	if a.listed {
		return db.listedView(ctx, a)
	}
	return db.rows(ctx, a)
}

// hint explains why assets that the SQL mentions have no view.
func (db *DB) hint(sql string) string {
	var lines []string
	lower := strings.ToLower(sql)
	for _, a := range db.assets {
		if a.problem != "" && a.isMentioned(lower) {
			if a.sample {
				lines = append(lines, fmt.Sprintf("%s.%q cannot be queried: %s.", a.namespace, a.name, a.problem))
				continue
			}
			lines = append(lines, fmt.Sprintf("The asset %s/%s cannot be queried: %s.", a.namespace, a.name, strings.TrimSuffix(a.problem, ".")))
		}
	}
	return strings.Join(lines, "\n")
}
