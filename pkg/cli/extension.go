package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func (a *app) extensionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "extension",
		Short: "List, add or fetch files of DuckDB's extensions, which queries with the setting `uses` need",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.listExtensionsCommand(), a.addExtensionCommand(), a.fetchExtensionCommand())
	return cmd
}

// extensionsDir returns the folder of extensions of the project.
func (a *app) extensionsDir() (string, error) {
	p, err := a.settings()
	if err != nil {
		return "", err
	}
	dir := p.Extensions
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(p.Root, dir)
	}
	return dir, nil
}

// withExtensions calls f with the folder of extensions of the project.
func (a *app) withExtensions(ctx context.Context, f func(*worker.Extensions) error) (err error) {
	dir, err := a.extensionsDir()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "servo-extension-")
	if err != nil {
		return fmt.Errorf("open extensions: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	e, err := worker.OpenExtensions(ctx, dir, scratch)
	if err != nil {
		return fmt.Errorf("open extensions: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return f(e)
}

// extensionRow is a file in the folder of extensions.
type extensionRow struct {
	name, version, duckdb, platform, status, file string
}

func (a *app) listExtensionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "list",
		Annotations: writesRows,
		Short:       "List the files of extensions in the project's folder of extensions",
		Args:        takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withExtensions(cmd.Context(), func(e *worker.Extensions) error {
				rows, err := extensionRows(e)
				if err != nil {
					return err
				}
				if len(rows) == 0 && a.table() {
					a.note("%s has no extensions for DuckDB %s, %s: add one with servo extension add FILE", e.Dir, e.Version, e.Platform)
				}
				return list(a, []column[extensionRow]{
					{Name: "extension", Value: func(r extensionRow) any { return r.name }},
					{Name: "version", Value: func(r extensionRow) any { return orNil(r.version) }},
					{Name: "duckdb", Value: func(r extensionRow) any { return orNil(r.duckdb) }},
					{Name: "platform", Value: func(r extensionRow) any { return orNil(r.platform) }},
					{Name: "status", Value: func(r extensionRow) any { return r.status }},
					{Name: "file", Value: func(r extensionRow) any { return r.file }},
				}, rows)
			})
		},
	}
}

// extensionRows describes the files in the folder of extensions.
func extensionRows(e *worker.Extensions) (rows []extensionRow, err error) {
	files, err := filepath.Glob(filepath.Join(e.Dir, "v*", "*", "*"+worker.ExtensionSuffix))
	if err != nil {
		return nil, fmt.Errorf("list extensions: %w", err)
	}
	for _, file := range files {
		row := extensionRow{name: worker.ExtensionOfFile(file), file: file}
		described, err := worker.ReadExtension(file)
		switch {
		case err != nil:
			row.status = "not an extension"
		case file != worker.ExtensionPath(e.Dir, row.name, described.DuckDB, described.Platform):
			row.status = "in the wrong folder"
		case described.DuckDB != e.Version:
			row.status = "for another version of DuckDB"
		case described.Platform != e.Platform:
			row.status = "for another platform"
		default:
			row.status = "usable"
		}
		if described != nil {
			row.version, row.duckdb, row.platform = described.Version, described.DuckDB, described.Platform
		}
		if row.name == "" {
			row.name, row.status = strings.TrimSuffix(filepath.Base(file), worker.ExtensionSuffix), "not supported by servo"
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (a *app) addExtensionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "add FILE",
		Short: "Verify the file of an extension, and copy it into the project's folder of extensions",
		Args:  takes("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withExtensions(cmd.Context(), func(e *worker.Extensions) error {
				path, verified, err := addExtension(cmd.Context(), e, args[0])
				if err != nil {
					return fmt.Errorf("add %s: %w", args[0], err)
				}
				if !verified {
					a.warn("the signature is not verified, because the file is for another platform: workers verify it")
				}
				a.note("added %s", path)
				return nil
			})
		},
	}
}

// addExtension copies a file into the folder of extensions. Workers on other platforms may share the folder, so the
// file may be for another platform. In that case, its signature is not verified.
func addExtension(ctx context.Context, e *worker.Extensions, from string) (path string, verified bool, err error) {
	if from, err = filepath.Abs(from); err != nil {
		return "", false, err
	}
	name := worker.ExtensionOfFile(from)
	if name == "" {
		return "", false, fmt.Errorf("the file must have the name that DuckDB gives it, such as httpfs%s; servo supports the extensions %s",
			worker.ExtensionSuffix, strings.Join(plan.Extensions, ", "))
	}
	described, err := worker.ReadExtension(from)
	if err != nil {
		return "", false, err
	}
	if described.DuckDB != e.Version {
		return "", false, fmt.Errorf("the file is for DuckDB %s, and this servo has DuckDB %s: get the file for that version", described.DuckDB, e.Version)
	}
	if verified = described.Platform == e.Platform; verified {
		if err := e.Load(ctx, from); err != nil {
			return "", false, err
		}
	}
	path = worker.ExtensionPath(e.Dir, name, described.DuckDB, described.Platform)
	return path, verified, copyFile(from, path)
}

// copyFile copies a file. If it fails, an existing file at the target stays unchanged.
func copyFile(from, to string) (err error) {
	source, err := os.Open(from) //nolint:gosec // the user names the file
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // workers of other users read the folder
		return err
	}
	target, err := os.CreateTemp(filepath.Dir(to), ".adding-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(target.Name())
		}
	}()
	_, err = io.Copy(target, source)
	if err == nil {
		err = target.Sync()
	}
	err = errors.Join(err, target.Chmod(0o644), target.Close()) //nolint:gosec // workers of other users read the file
	if err != nil {
		return err
	}
	return os.Rename(target.Name(), to)
}

func (a *app) fetchExtensionCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "fetch NAME",
		Short: "Download an extension of DuckDB, for the version and the platform of this program",
		Args:  takes("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(plan.Extensions, args[0]) {
				return usagef("servo supports the extensions %s, and not %q", strings.Join(plan.Extensions, ", "), args[0])
			}
			return a.withExtensions(cmd.Context(), func(e *worker.Extensions) error {
				path, err := e.Fetch(cmd.Context(), args[0], from)
				if err != nil {
					return err
				}
				if err := e.Load(cmd.Context(), path); err != nil {
					return errors.Join(fmt.Errorf("fetch %s: %w", args[0], err), os.Remove(path))
				}
				a.note("fetched %s", path)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "URL of a repository of extensions (default: DuckDB's own)")
	cmd.ValidArgsFunction = cobra.FixedCompletions(plan.Extensions, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

// missingExtensions warns of extensions that assets use and that this machine does not have. Workers may have them.
func missingExtensions(missing []worker.BindProblem) (found []string) {
	texts := map[string][]string{}
	for _, p := range missing {
		text := p.Message + ": " + p.Suggestion
		texts[text] = append(texts[text], p.File)
	}
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		files := texts[text]
		more := ""
		if len(files) > 1 {
			more = fmt.Sprintf(" and %d more", len(files)-1)
		}
		found = append(found, files[0]+more+": a run on this machine fails with "+worker.CodeExtensionMissing+": "+text)
	}
	return found
}
