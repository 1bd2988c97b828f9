package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// A query can read data outside of Servo only through the DuckDB extensions that its asset uses. Before the worker
// locks the sandbox, it loads these extensions, creates their secrets and attaches their databases. DuckDB's sandbox
// then allows URLs with the declared prefixes. Some functions of extensions ignore the sandbox: sqlite_scan opens any
// file. Therefore a query must not name the functions that an extension adds, except those in allowedFunctions.

// fileNames maps an extension to its name in DuckDB, which is also the name of its file.
var fileNames = map[string]string{
	plan.ExtensionExcel: "excel", plan.ExtensionHTTPFS: "httpfs", plan.ExtensionSQLite: "sqlite_scanner",
}

// allowedFunctions are functions of extensions that respect the sandbox, or read nothing.
var allowedFunctions = []string{"read_xlsx", "excel_text", "text"}

// deniedWords are functions that reveal secrets. For example, the log of DuckDB contains the headers of requests.
// [sqltext.FindForbidden] finds the functions that no query may call, such as query(), whose argument can hide the
// names of other functions.
var deniedWords = []string{"duckdb_logs", "duckdb_logs_parsed", "duckdb_secrets", "which_secret"}

var (
	escapedText   = regexp.MustCompile(`(?i)\bu&["']`)
	extensionName = regexp.MustCompile(`exists in the ([a-z_]+) extension`)
)

// openExternal loads the extensions that the task's query uses, and returns the URLs that the query may read.
func (a *attempt) openExternal(ctx context.Context, d *database, t *work, query *resolvedQuery) (sandbox, error) {
	source := t.plan.Sources[t.task.AssetKey]
	if found := deniedURL(query, &t.Work); found != nil {
		return sandbox{}, found.failure(query, source)
	}
	if len(t.External) == 0 {
		return sandbox{}, nil
	}
	files := make([]string, len(t.External))
	version, platform, err := d.build(ctx)
	if err != nil {
		return sandbox{}, err
	}
	for i := range t.External {
		if files[i], err = extensionFile(&t.External[i], t.root, version, platform); err != nil {
			return sandbox{}, err
		}
	}
	if err := a.harmlessValues(t); err != nil {
		return sandbox{}, err
	}
	values, err := a.externalSecrets(ctx, t)
	if err != nil {
		return sandbox{}, err
	}
	builtin, err := a.w.builtinFunctions(ctx, d)
	if err != nil {
		return sandbox{}, err
	}
	added, err := d.loadExtensions(ctx, t.External, files, builtin)
	if err != nil {
		return sandbox{}, err
	}
	if found := deniedFunction(query.written, added); found != nil {
		return sandbox{}, found.failure(query, source)
	}
	var reached sandbox
	for i := range t.External {
		e := &t.External[i]
		if err := d.createSecrets(ctx, e, values); err != nil {
			return sandbox{}, err
		}
		if err := a.attach(ctx, d, t, e); err != nil {
			return sandbox{}, err
		}
		reached.directories = append(reached.directories, e.Prefixes...)
	}
	return reached, nil
}

// build returns the version and the platform of DuckDB, for example 1.5.6 and linux_amd64.
func (d *database) build(ctx context.Context) (version, platform string, err error) {
	row := d.conn.QueryRowContext(ctx, "SELECT library_version, (SELECT platform FROM pragma_platform()) FROM pragma_version()")
	if err := row.Scan(&version, &platform); err != nil {
		return "", "", sqlFailure(fmt.Errorf("find the version of DuckDB: %w", err))
	}
	return strings.TrimPrefix(version, "v"), platform, nil
}

// ExtensionPath returns the path of an extension's file in a folder of extensions. DuckDB uses the same layout.
func ExtensionPath(dir, extension, version, platform string) string {
	name := extension
	if known := fileNames[extension]; known != "" {
		name = known
	}
	return filepath.Join(dir, "v"+version, platform, name+ExtensionSuffix)
}

// extensionFile returns the file of an extension, or an error if there is none.
func extensionFile(e *plan.External, root, version, platform string) (string, error) {
	if fileNames[e.Extension] == "" {
		return "", permanent(CodePlanUnreadable, "the plan uses the extension %q, which this worker does not know: upgrade the worker", e.Extension)
	}
	dir := e.Directory
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(root, dir)
	}
	file := ExtensionPath(dir, e.Extension, version, platform)
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
		return file, nil
	}
	return "", permanent(CodeExtensionMissing, "%s", missingExtension(e, version, platform))
}

func missingExtension(e *plan.External, version, platform string) string {
	return fmt.Sprintf("load %s: no file for DuckDB %s, %s in %s: run servo extension fetch %s on a machine with network access, and copy the file to this folder",
		e.Extension, version, platform, e.Directory, e.Extension)
}

// builtinFunctions returns the functions of DuckDB without extensions. Listing them takes 40 ms of CPU time, and the
// list never changes, so the worker caches it.
func (w *Worker) builtinFunctions(ctx context.Context, d *database) (map[string]bool, error) {
	if known := w.caches.builtin.Load(); known != nil {
		return *known, nil
	}
	names, err := d.functions(ctx)
	if err == nil {
		w.caches.builtin.Store(&names)
	}
	return names, err
}

// loadExtensions loads files of extensions. It returns the names of the functions that a query must not name: all
// functions that are neither in builtin nor in allowedFunctions.
func (d *database) loadExtensions(ctx context.Context, external []plan.External, files []string, builtin map[string]bool) (added []string, err error) {
	// Persistent secrets belong to the user of the worker, so a query must not use them.
	if _, err := d.exec(ctx, "SET allow_persistent_secrets = false"); err != nil {
		return nil, sqlFailure(fmt.Errorf("prepare the query: %w", err))
	}
	for i, file := range files {
		if _, err := d.exec(ctx, "LOAD "+quote(file)); err != nil {
			return nil, permanent(CodeExtensionMissing, "load %s: %s", external[i].Extension, notLoadable(file, err))
		}
		if external[i].Extension != plan.ExtensionHTTPFS {
			continue
		}
		// The extension has read the AWS variables of the worker's environment. They must not reach the query, which could
		// print them.
		for _, setting := range []string{"s3_access_key_id", "s3_secret_access_key", "s3_session_token", "s3_endpoint"} {
			if _, err := d.exec(ctx, "RESET "+setting); err != nil {
				return nil, sqlFailure(fmt.Errorf("prepare the query: %w", err))
			}
			if _, err := d.exec(ctx, "SET "+setting+" = ''"); err != nil {
				return nil, sqlFailure(fmt.Errorf("prepare the query: %w", err))
			}
		}
	}
	after, err := d.functions(ctx)
	if err != nil {
		return nil, err
	}
	for name := range after {
		if !builtin[name] && !slices.Contains(allowedFunctions, name) {
			added = append(added, name)
		}
	}
	slices.Sort(added)
	return added, nil
}

// functions returns the names of all functions, in lower case.
func (d *database) functions(ctx context.Context) (names map[string]bool, err error) {
	rows, err := d.conn.QueryContext(ctx, "SELECT DISTINCT lower(function_name) FROM duckdb_functions()")
	if err != nil {
		return nil, sqlFailure(fmt.Errorf("list the functions of DuckDB: %w", err))
	}
	defer rows.Close()
	names = map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, sqlFailure(fmt.Errorf("list the functions of DuckDB: %w", err))
		}
		names[name] = true
	}
	if err := rows.Err(); err != nil {
		return nil, sqlFailure(fmt.Errorf("list the functions of DuckDB: %w", err))
	}
	return names, nil
}

// notLoadable returns the reason why DuckDB rejected the file of an extension. It omits DuckDB's advice.
func notLoadable(file string, err error) string {
	message := err.Error()
	if e, ok := asQueryError(err, ""); ok {
		message = e.message
	}
	switch {
	case strings.Contains(message, "signature"):
		return file + " is not signed by DuckDB, or was changed: get the file again with servo extension fetch"
	case strings.Contains(message, "built for DuckDB version"), strings.Contains(message, "built specifically for"), strings.Contains(message, "platform"):
		return file + " is for another version of DuckDB or another platform: get the right file with servo extension fetch"
	}
	message, _, _ = strings.Cut(message, "\n")
	return file + ": " + message
}

// externalSecrets resolves the secrets of the extensions, and returns a map from the reference of each secret to its
// value. From then on, the logs and reports of the attempt mask the values.
func (a *attempt) externalSecrets(ctx context.Context, t *work) (map[string]string, error) {
	values := map[string]string{}
	for i := range t.External {
		for _, s := range t.External[i].Secrets {
			for _, name := range slices.Sorted(maps.Keys(s.References)) {
				reference := s.References[name]
				if _, known := values[reference]; known {
					continue
				}
				if a.w.cfg.Secrets == nil {
					return nil, permanent(CodeSecretMissing, "the query needs secrets, but this worker has no source of secrets")
				}
				value, err := a.findSecret(ctx, reference)
				if err != nil {
					return nil, secretFailure(s.Name+"."+name, err)
				}
				values[reference] = value
			}
		}
	}
	if len(values) > 0 {
		a.mask = a.w.cfg.Redactor.Mask(slices.Collect(maps.Values(values))...)
	}
	return values, nil
}

// createSecrets creates the secrets of an extension in memory.
func (d *database) createSecrets(ctx context.Context, e *plan.External, values map[string]string) error {
	for _, s := range e.Secrets {
		if plan.SecretTypes[s.Type] == nil {
			return permanent(CodePlanUnreadable, "the secret %s has the unknown type %q", s.Name, s.Type)
		}
		settings := []string{"TYPE " + s.Type}
		for _, name := range slices.Sorted(maps.Keys(s.References)) {
			settings = append(settings, quoteName(name)+" "+quote(values[s.References[name]]))
		}
		for _, name := range slices.Sorted(maps.Keys(s.Options)) {
			settings = append(settings, quoteName(name)+" "+quote(s.Options[name]))
		}
		if s.Scope != "" {
			settings = append(settings, "SCOPE "+quote(s.Scope))
		}
		if _, err := d.exec(ctx, "CREATE TEMPORARY SECRET "+quoteName(s.Name)+" ("+strings.Join(settings, ", ")+")"); err != nil {
			return sqlFailure(fmt.Errorf("create the secret %s: %w", s.Name, err))
		}
	}
	return nil
}

// attach attaches the databases of an extension read-only.
func (a *attempt) attach(ctx context.Context, d *database, t *work, e *plan.External) error {
	for _, name := range slices.Sorted(maps.Keys(e.Attach)) {
		file, err := a.databaseFile(t, name, e.Attach[name])
		if err != nil {
			return err
		}
		if _, err := d.exec(ctx, "ATTACH "+quote(file)+" AS "+quoteName(name)+" (TYPE sqlite, READ_ONLY)"); err != nil {
			return sqlFailure(fmt.Errorf("attach %s (%s): %w", name, e.Attach[name], err))
		}
	}
	return nil
}

// databaseFile returns the path of an attached database, with symbolic links resolved. The file must be in the
// project or in a folder of sources.paths.
func (a *attempt) databaseFile(t *work, name, file string) (string, error) {
	found := file
	if !filepath.IsAbs(found) {
		found = filepath.Join(t.root, file)
	}
	found, err := filepath.EvalSymlinks(found)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", permanent(CodeInvalidInput, "attach %s: there is no file %s: change sources.extensions.sqlite.attach in servo.yaml, or create the file", name, file)
	case err != nil:
		return "", permanent(CodeInvalidInput, "attach %s: %w", name, err)
	}
	if info, err := os.Stat(found); err != nil || !info.Mode().IsRegular() {
		return "", permanent(CodeInvalidInput, "attach %s: %s is not a file", name, file)
	}
	roots := []string{t.root}
	for _, outside := range t.plan.SourcePaths() {
		if !filepath.IsAbs(outside) {
			outside = filepath.Join(t.root, outside)
		}
		roots = append(roots, outside)
	}
	for _, root := range roots {
		if root, err = filepath.EvalSymlinks(root); err != nil {
			continue
		}
		l := lister{root: root, state: a.w.stateFolder()}
		if relative, err := filepath.Rel(root, found); err == nil && below(root, found) && !hidden(relative) && !l.inState(filepath.Dir(found)) {
			return found, nil
		}
	}
	return "", permanent(CodeSourceDenied, "attach %s: %s is neither in the project nor in a folder of sources.paths: add its folder to sources.paths in servo.yaml",
		name, file)
}

// inState reports whether dir is the state folder or a folder below it.
func (l *lister) inState(dir string) bool {
	for ; dir == l.root || below(l.root, dir); dir = filepath.Dir(dir) {
		if l.isState(dir) {
			return true
		}
	}
	return false
}

// harmlessValues returns an error if a value of the partition or of a project variable could make a URL point outside
// of its declared prefix. For example, servers resolve the path segment "..".
func (a *attempt) harmlessValues(t *work) error {
	if t.Uses(plan.ExtensionHTTPFS) == nil {
		return nil
	}
	climbs := func(value string) bool { return strings.Contains(value, "..") || plan.Climbs("x://"+value) }
	for _, key := range t.cellKeys() {
		cell, err := ids.ParsePartition(key)
		if err != nil {
			return permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
		}
		for name, value := range cell {
			if climbs(value) {
				return permanent(CodeSourceDenied, "the partition has the %s %q, which could make a URL leave the prefixes of httpfs: load this partition with a command", name, value)
			}
		}
	}
	for name, v := range t.Vars {
		if climbs(v.Value) {
			return permanent(CodeSourceDenied, "the variable %s is %q, which could make a URL leave the prefixes of httpfs: change the variable", name, v.Value)
		}
	}
	return nil
}
