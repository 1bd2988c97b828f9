package cli

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/project"
)

// template is the project that servo init creates. Its file dot-gitignore becomes .gitignore. In the template, a file
// with the name .gitignore would also apply to the repository of Servo.
//
//go:embed all:template
var template embed.FS

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Create a small working project",
		Args:  takes("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := a.abs(args[0])
			if err := makeProject(dir); err != nil {
				return fmt.Errorf("create project: %w", err)
			}
			a.note("created a project in %s. Next:\n", dir)
			cd := ""
			if dir != a.Dir {
				cd = "  cd " + quoted(args[0]) + "\n"
			}
			a.note("%s  servo run --all\n  servo query \"FROM report.customers\"\n  servo status", cd)
			return nil
		},
	}
}

// makeProject writes the template into a folder without files.
func makeProject(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".git") {
			return fmt.Errorf("%s is not empty (it contains %s); name a new folder", dir, entry.Name())
		}
	}
	err = fs.WalkDir(template, "template", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("template", filepath.FromSlash(name))
		if err != nil {
			return err
		}
		to := filepath.Join(dir, strings.Replace(rel, "dot-", ".", 1))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755) //nolint:gosec // other users may read a project
		}
		return writeTemplate(name, to, dir)
	})
	if err != nil {
		return err
	}
	schema := filepath.Join(dir, project.SchemaFile)
	return os.WriteFile(schema, project.Schema(), 0o644) //nolint:gosec // other users may read a project
}

// notName matches characters that the name of a project must not contain.
var notName = regexp.MustCompile(`[^a-z0-9_-]+`)

func writeTemplate(name, to, dir string) error {
	text, err := template.ReadFile(name)
	if err != nil {
		return err
	}
	title := strings.Trim(notName.ReplaceAllString(strings.ToLower(filepath.Base(dir)), "-"), "-")
	const longest = 63
	title = cmp.Or(title[:min(len(title), longest)], "project")
	text = []byte(strings.ReplaceAll(string(text), "{{name}}", title))
	return os.WriteFile(to, text, 0o644) //nolint:gosec // other users may read a project
}
