package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkedFile is the file in the state folder that records which files queries have verified.
const checkedFile = "checked"

func (a *app) queryCommand() *cobra.Command {
	var asOf string
	cmd := &cobra.Command{
		Use:         "query [SQL]",
		SuggestFor:  []string{"sql"},
		Annotations: writesRows,
		Short:       "Query the state and the assets in SQL (DuckDB); without SQL, open a shell",
		Long: "Run SQL over one revision of the state. There is a view for each table of the state\n" +
			"(runs, tasks, attempts, dep_satisfaction, partition_status, ledger_entries, …) and one for each asset\n" +
			"that has data: namespace.name. You can query while other servo processes work.",
		Example: "  servo query \"SELECT state, count(*) FROM tasks GROUP BY ALL\"\n" +
			"  servo query \"FROM clean.daily LIMIT 5\" -o csv\n" +
			"  servo query \"FROM runs\" --as-of 2025-01-15T12:00:00Z\n" +
			"  servo query < report.sql",
		Args: takes("[SQL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withParts(cmd.Context(), func(p *project.Project, parts *embedded.Workspace) error {
				return a.query(cmd.Context(), p, parts, args, asOf)
			})
		},
	}
	cmd.Flags().StringVar(&asOf, "as-of", "", "query the state as of a revision or a time (RFC 3339)")
	return cmd
}

func (a *app) query(ctx context.Context, p *project.Project, parts *embedded.Workspace, args []string, asOf string) (err error) {
	m, err := revision(ctx, parts, asOf)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseInt(asOf, 10, 64); asOf != "" && err != nil {
		a.note("as of revision %d, published at %s, the last one kept before %s", m.Revision, m.PublishedAt, asOf)
	}
	sql := strings.Join(args, "") // at most one argument; none: a shell
	if len(args) == 0 {
		if sql, err = a.statementsOnStdin(); err != nil {
			return err
		}
	}
	s, err := a.openQuery(ctx, p, parts, m, sql, query.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if len(args) == 1 {
		return a.answer(ctx, s.DB, sql)
	}
	return a.queryShell(ctx, s.DB, m)
}

// statementsOnStdin returns the statements on the standard input if this is a file. The session then reads only the
// assets that the statements name. statementsOnStdin returns "" if the input is not a file, or if the file is too
// large. All input can still be read from a.Stdin.
func (a *app) statementsOnStdin() (string, error) {
	file, ok := a.Stdin.(*os.File)
	if !ok {
		return "", nil
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", nil //nolint:nilerr // the next read of the input returns the error
	}
	data, err := io.ReadAll(io.LimitReader(file, query.MaxSQLBytes+1))
	if err != nil {
		return "", fmt.Errorf("read statements: %w", err)
	}
	a.Stdin = io.MultiReader(bytes.NewReader(data), file)
	if len(data) > query.MaxSQLBytes {
		return "", nil
	}
	return string(data), nil
}

// querySession is a session over one revision.
type querySession struct {
	*query.DB

	places  *placer
	links   string           // the folder of links to files; "": no such folder
	checked *filecheck.Cache // nil: none
}

// Close ends the session and deletes its files.
func (s *querySession) Close() error {
	var err error
	if s.DB != nil {
		err = s.DB.Close()
	}
	if s.checked != nil {
		_ = s.checked.Save() // fails in a read-only folder, where every query verifies the files again
	}
	if s.links != "" {
		_ = os.RemoveAll(s.links)
	}
	return errors.Join(err, s.places.Close())
}

// openQuery opens a session over the revision of the manifest m. If m is nil, no revision has been published. The
// parameter sql contains all statements of the session; "": the statements are not known yet, as in a shell.
func (a *app) openQuery(
	ctx context.Context, p *project.Project, parts *embedded.Workspace, m *manifest.Manifest, sql string, o query.Options,
) (_ *querySession, err error) {
	places, err := newPlacer(parts)
	if err != nil {
		return nil, err
	}
	s := &querySession{places: places}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	files, err := tables(ctx, places, m)
	if err != nil {
		return nil, err
	}
	source := query.Source{Tables: files, AllowedDirs: []string{places.dir}}
	if parts.Folder != nil {
		dir := a.options(p).Dir
		if s.links, err = os.MkdirTemp("", "servo-query-"); err != nil {
			s.links = "" // queries work without links, but read more files
		}
		s.checked = filecheck.Open(filepath.Join(dir, checkedFile))
		source = query.Source{Tables: files, Outputs: dir, Links: s.links, Checked: s.checked, Declared: a.declaredBy(parts.Store, p), SQL: sql}
	}
	if s.DB, err = query.Open(ctx, source, o); err != nil {
		return nil, fmt.Errorf("%w; check the whole folder with `servo admin verify`", err)
	}
	return s, nil
}

// declaredBy returns a function that returns the declarations of a release. A release no longer declares some stored
// partitions of an asset if the asset's dimensions, values or ranges have changed. Queries do not read such partitions,
// but still read the partitions of removed assets.
func (a *app) declaredBy(
	store blob.Store, p *project.Project,
) func(context.Context, string, func(string) ([]string, error)) (*query.Declarations, error) {
	return func(ctx context.Context, sha string, keys func(string) ([]string, error)) (*query.Declarations, error) {
		_, code, err := engine.ReadRelease(ctx, store, p.Domain, sha)
		if err != nil {
			a.warn("the results may contain partitions that assets no longer declare: %v", err)
			return nil, nil
		}
		var failed error
		sets := map[string][]string{}
		times := plan.Calendar{Now: a.Clock.Now(), Zone: calendar.Zone, Keys: func(set string) []string {
			if _, has := sets[set]; !has {
				list, err := keys(set)
				sets[set], failed = list, cmp.Or(failed, err)
			}
			return sets[set]
		}}
		known, columns := map[string]*space.Members{}, map[string][]space.Column{}
		for i := range code.Assets {
			asset := &code.Assets[i]
			columns[asset.Key.String()] = asset.PartitionColumns()
			members, err := times.Members(asset.Partitions)
			if err = cmp.Or(failed, err); err != nil {
				return nil, fmt.Errorf("asset %s: %w", asset.Key, err)
			}
			known[asset.Key.String()] = members
		}
		return &query.Declarations{
			Has:     func(asset, partition string) bool { return known[asset] == nil || known[asset].Has(partition) },
			Columns: func(asset string) []space.Column { return columns[asset] },
		}, nil
	}
}

// answer runs SQL and writes the rows of each statement. Statements that change the database
// have no rows to write.
func (a *app) answer(ctx context.Context, db *query.DB, sql string) error {
	statements := query.Statements(sql)
	if len(statements) == 0 {
		statements = []string{sql} // pass on the text: DuckDB rejects it and says why
	}
	for _, statement := range statements {
		rows, err := db.Query(ctx, statement)
		if err != nil {
			return a.missing(ctx, db, statement, err)
		}
		if !rows.Changes {
			err = a.render(rows.Result())
		}
		if err = errors.Join(err, rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// missing explains DuckDB's error about a missing table of an asset. DuckDB's error mentions only schemas and tables;
// the returned error says why the asset has no table.
func (a *app) missing(ctx context.Context, db *query.DB, sql string, err error) error {
	if !strings.Contains(err.Error(), "does not exist") {
		return err
	}
	own := []string{"main", "temp", "system", "information_schema", "pg_catalog"}
	named := regexp.MustCompile(`(?i)\b(?:from|join)\s+"?([a-z0-9_-]+)"?\s*\.\s*"?([a-z0-9_-]+)"?`)
	for _, match := range named.FindAllStringSubmatch(sql, -1) {
		if !db.Lacks(match[1], match[2]) || slices.Contains(own, strings.ToLower(match[1])) {
			continue
		}
		key, declared := match[1]+"/"+match[2], a.declared(ctx)
		if slices.Contains(declared, key) {
			return fmt.Errorf("asset %s has no data yet; run it with `servo run %s`", key, key)
		}
		if near := plan.Suggest(key, declared); near != "" {
			return fmt.Errorf("unknown asset %s; did you mean %s?", key, near)
		}
		return fmt.Errorf("unknown asset %s; list the assets with `servo assets`: %w", key, err)
	}
	return err
}

// declared returns the keys of the project's assets, or none if the project cannot be loaded.
func (a *app) declared(ctx context.Context) []string {
	dir, err := a.projectDir()
	if err != nil {
		return nil
	}
	p, err := a.loadProject(ctx, dir)
	if err != nil {
		return nil
	}
	var keys []string
	for i := range p.Assets {
		keys = append(keys, p.Assets[i].Key.String())
	}
	return keys
}

// revision returns the manifest that --as-of names by a number or a time. Without --as-of, it returns the newest
// manifest, or nil if nothing has been published.
func revision(ctx context.Context, parts *embedded.Workspace, asOf string) (*manifest.Manifest, error) {
	if asOf == "" {
		m, err := parts.Manifests.Load(ctx)
		if errors.Is(err, manifest.ErrNone) {
			return nil, nil //nolint:nilnil // an empty state has no manifest; that is not an error
		}
		return m, err
	}
	var m *manifest.Manifest
	n, err := strconv.ParseInt(asOf, 10, 64)
	switch {
	case err == nil && n < 1:
		return nil, usagef("invalid revision %d: the first is 1", n)
	case err == nil:
		m, err = parts.Manifests.LoadAt(ctx, n)
	default:
		t, bad := parseTime(asOf)
		if bad != nil {
			return nil, bad
		}
		m, err = parts.Manifests.LoadAsOf(ctx, t)
	}
	if errors.Is(err, manifest.ErrAbsent) || errors.Is(err, manifest.ErrNone) {
		return nil, fmt.Errorf("no state as of %s: %w; in the first hour, a bucket keeps every revision, and a folder keeps every revision for 15 seconds"+
			" and then one a minute; later, both keep one an hour for a week, then one a day for 30 days (`servo admin manifest` shows the newest revision)", asOf, err)
	}
	return m, err
}

// parseTime parses a time in one of several layouts. Without a zone it is UTC.
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("invalid revision or time %q: write a number, or a time such as 2025-01-15T12:00:00Z", text)
}

// tables returns the files with the rows of each table of a revision.
func tables(ctx context.Context, places *placer, m *manifest.Manifest) (map[string]query.Table, error) {
	tables := map[string]query.Table{}
	if m == nil {
		return tables, nil
	}
	known := tableNames() // a newer build may have more tables
	history, err := places.parts.Manifests.HistoryFiles(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, f := range append(m.LiveFiles(), history...) {
		if slices.Contains(known, f.Table) {
			path, err := places.place(ctx, f.Key)
			if err != nil {
				return nil, fmt.Errorf("fetch the state: %w", err)
			}
			t := tables[f.Table]
			t.Files = append(t.Files, filecheck.File{Path: path, Size: f.Size, CRC32C: f.CRC32C})
			tables[f.Table] = t
		}
	}
	for _, d := range m.L0 {
		for _, rows := range d.Inline {
			if slices.Contains(known, rows.Table) {
				t := tables[rows.Table]
				t.Inline = append(t.Inline, rows.JSON)
				tables[rows.Table] = t
			}
		}
	}
	return tables, nil
}

// tableNames returns the tables of the state.
func tableNames() []string {
	var names []string
	for _, d := range state.Declarations() {
		names = append(names, d.Name)
	}
	return names
}
