package project_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

// codesOf returns the code fingerprints of a project, by asset.
func codesOf(t *testing.T, files fstest.MapFS) map[string]string {
	t.Helper()
	p, err := project.LoadFS(t.Context(), files, "/p", project.Options{ParseSQL: parseFiles})
	require.NoError(t, err)
	codes := map[string]string{}
	for i := range p.Assets {
		codes[p.Assets[i].Key.Name] = p.Assets[i].Code
	}
	return codes
}

// parseFiles treats words that contain a slash as names of files.
func parseFiles(_ context.Context, queries []string) ([]project.Parsed, error) {
	parsed := make([]project.Parsed, len(queries))
	for i, q := range queries {
		parsed[i].Tree = &plan.Tree{Hash: q}
		for word := range strings.FieldsSeq(q) {
			if strings.Contains(word, "/") {
				parsed[i].Files = append(parsed[i].Files, word)
			}
		}
	}
	return parsed, nil
}

// TestCodeCoversTheNamedFiles changes one file at a time, and checks which code fingerprints change.
func TestCodeCoversTheNamedFiles(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":            {},
		"assets/a/query.sql":    {Data: []byte("SELECT data/x.csv ../up.csv data/none.csv")},
		"assets/a/all.sql":      {Data: []byte("SELECT file:///p/data/[!l].csv data/[z-a]")},
		"assets/a/days.sql":     {Data: []byte("/* servo\npartitions: {p: {static: [a]}}\n*/\nSELECT data/?.csv")},
		"assets/a/absolute.sql": {Data: []byte("SELECT /p/data/large.csv")},
		"assets/a/command.yaml": {Data: []byte("run: {command: [sh, scripts/a.sh, --conf=conf/c.yaml, data]}\n")},
		"assets/a/lib.yaml":     {Data: []byte("run: {command: [sh, -c, x]}\ncode: ['lib/**', 'conf/?.yaml']\n")},
		"assets/a/fixed.yaml":   {Data: []byte("run: {command: [sh, scripts/a.sh]}\nversion: 1\n")},
		"data/x.csv":            {Data: []byte("1")},
		"data/y.csv":            {Data: []byte("1")},
		"data/large.csv":        {Data: make([]byte, 17<<20)},
		"scripts/a.sh":          {Data: []byte("1")},
		"conf/c.yaml":           {Data: []byte("1")},
		"conf/long.yaml":        {Data: []byte("1")},
		"lib/a/b.py":            {Data: []byte("1")},
		"lib/.cache/c.pyc":      {Data: []byte("1")},
	}
	before := codesOf(t, files)
	for name, want := range map[string][]string{
		"data/x.csv": {"all", "query"}, "data/y.csv": {"all"}, "data/z.csv": {"all"}, "data/large.csv": {"absolute"}, "scripts/a.sh": {"command"}, "conf/c.yaml": {"command", "lib"}, "conf/long.yaml": nil,
		"lib/a/b.py": {"lib"}, "lib/.cache/c.pyc": nil,
	} {
		changed := maps.Clone(files)
		changed[name] = &fstest.MapFile{Data: []byte("2")}
		var got []string
		for asset, code := range codesOf(t, changed) {
			if code != before[asset] {
				got = append(got, asset)
			}
		}
		slices.Sort(got)
		require.Equal(t, want, got, name)
	}
}

func TestCodePatternsThatMatchNothingAreProblems(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":      {},
		"assets/a/x.yaml": {Data: []byte("run: {command: [sh]}\ncode: ['lib/**', ../x, '.git/x', '/etc/x']\nversion: a b\n")},
	}
	_, err := project.LoadFS(t.Context(), files, "/p", project.Options{ParseSQL: parseFiles})
	require.ErrorContains(t, err, `assets/a/x.yaml:2:18: invalid pattern "../x"`)
	require.ErrorContains(t, err, `invalid pattern ".git/x"`)
	require.ErrorContains(t, err, `invalid pattern "/etc/x"`)
	require.ErrorContains(t, err, `assets/a/x.yaml:3:10: version is "a b"`)
	files["assets/a/x.yaml"].Data = []byte("run: {command: [sh]}\ncode: ['lib/**']\n")
	_, err = project.LoadFS(t.Context(), files, "/p", project.Options{ParseSQL: parseFiles})
	require.ErrorContains(t, err, `assets/a/x.yaml:2:8: the pattern "lib/**" matches no file of the project`)
}

// TestCodeFollowsLinksToFiles: if a link points to a file, the content of the file is part of the code. A link to a
// folder is a problem. The script of a check is part of the check.
func TestCodeFollowsLinksToFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("servo.yaml", "")
	write("assets/a/b.yaml", "run: {command: [x]}\ncode: ['lib/**']\nchecks: [{name: c, command: [sh, scripts/c.sh]}]\n")
	write("lib/own.py", "1")
	write("other/mod.py", "1")
	write("scripts/c.sh", "true")
	require.NoError(t, os.Symlink("../other/mod.py", filepath.Join(dir, "lib", "mod.py")))
	load := func() (code, check string) {
		p, err := project.Load(t.Context(), dir, project.Options{ParseSQL: parseFiles})
		require.NoError(t, err)
		return p.Assets[0].Code, p.Assets[0].Work.Checks[0].Files["scripts/c.sh"]
	}
	code, check := load()
	write("other/mod.py", "2")
	write("scripts/c.sh", "false")
	changed, changedCheck := load()
	require.NotEqual(t, code, changed)
	require.NotEmpty(t, check)
	require.NotEqual(t, check, changedCheck)
	require.NoError(t, os.Symlink("../other", filepath.Join(dir, "lib", "pk")))
	_, err := project.Load(t.Context(), dir, project.Options{ParseSQL: parseFiles})
	require.ErrorContains(t, err, `"lib/pk" is a symbolic link to a folder`)
}
