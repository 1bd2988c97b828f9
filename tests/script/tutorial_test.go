package script_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

// block is a fenced block of a tutorial. The info string of the fence determines the kind of block: "sh" for commands,
// "sh fails" for commands that exit with an error, "text" for the output of the commands before it, and "LANGUAGE PATH"
// for a file.
type block struct {
	info, text string
	line       int
}

var fenced = regexp.MustCompile("(?ms)^```([a-z][^\n]*)\n(.*?)^```$")

func blocks(page string) []block {
	var found []block
	for _, at := range fenced.FindAllStringSubmatchIndex(page, -1) {
		found = append(found, block{page[at[2]:at[3]], page[at[4]:at[5]], 1 + strings.Count(page[:at[0]], "\n")})
	}
	return found
}

func TestTutorials(t *testing.T) {
	pages, err := filepath.Glob("../../docs/tutorial/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	pages = append(pages, "../../docs/howto/unit-test-a-query.md", "../../docs/howto/quarantine-bad-data.md", "../../docs/howto/partition-by-tenant.md",
		"../../docs/howto/alert-on-slack.md",
		"../../docs/howto/backfill-years.md")
	scripts, named := t.TempDir(), map[string][]block{}
	for _, page := range pages {
		text, err := os.ReadFile(page) //nolint:gosec // the commands are from a page of this repository
		require.NoError(t, err)
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		named[name] = blocks(string(text))
		require.NotEmpty(t, named[name], "%s has no commands", page)
		require.NoError(t, os.WriteFile(filepath.Join(scripts, name+".txtar"), []byte("follow "+name+"\n"), 0o600))
	}
	testscript.Run(t, testscript.Params{
		Dir: scripts,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"follow": func(ts *testscript.TestScript, _ bool, args []string) { follow(ts, named[args[0]]) },
		},
	})
}

// follow executes the blocks of a page in order, as a reader would.
func follow(ts *testscript.TestScript, page []block) {
	dir, output := ts.Getenv("WORK"), ""
	for _, b := range page {
		kind, rest, _ := strings.Cut(b.info, " ")
		switch {
		case kind == "sh":
			dir, output = execute(ts, dir, b, rest == "fails")
		case kind == "text":
			expect(ts, b, output)
		case rest != "":
			path := filepath.Join(dir, rest)
			ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
			ts.Check(os.WriteFile(path, []byte(b.text), 0o600))
		default:
			ts.Fatalf("line %d: a block of %s must name its file", b.line, kind)
		}
	}
}

// execute runs the commands of a block in dir. It returns their last working directory and their
// output.
func execute(ts *testscript.TestScript, dir string, b block, fails bool) (ended, output string) {
	where := filepath.Join(ts.Getenv("WORK"), ".where")
	shell := exec.CommandContext(context.Background(), "bash", "-eu", "-c", "trap 'pwd >'"+where+" EXIT\n"+b.text) //nolint:gosec // the commands are from a page of this repository
	shell.Dir = dir
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		shell.Env = append(shell.Env, name+"="+ts.Getenv(name))
	}
	out, err := shell.CombinedOutput()
	if (err != nil) != fails {
		ts.Fatalf("line %d: fails: %v, as an error: %v\n%s%s", b.line, fails, err, b.text, out)
	}
	folder, err := os.ReadFile(where) //nolint:gosec // the test created this file
	ts.Check(err)
	return strings.TrimSpace(string(folder)), string(out)
}

// expect checks that the output contains each line of a block, in any order, because standard error
// and standard output may be interleaved.
func expect(ts *testscript.TestScript, b block, output string) {
	for line := range strings.Lines(b.text) {
		line = strings.TrimSpace(line)
		pattern := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
		pattern = regexp.MustCompile(` +`).ReplaceAllString(pattern, ` +`)
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^ *%s *$`, pattern)).MatchString(output) {
			ts.Fatalf("line %d: the output lacks %q:\n%s", b.line, line, output)
		}
	}
}
