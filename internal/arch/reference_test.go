package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
)

// These tests compare the pages of docs/reference with the code: a page must list everything that the code contains,
// and nothing else.

const reference = root + "/docs/reference/"

// productFiles parses the files of the product below a folder, without tests and fakes.
func productFiles(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	fake := regexp.MustCompile(`(fake|test|sim)/`)
	err := filepath.WalkDir(filepath.Join(root, dir), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || fake.MatchString(name) {
			return err
		}
		files[name], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		return err
	})
	require.NoError(t, err)
	return files
}

// text returns the value of a string literal, or "".
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return value
}

// literals returns the matching string literals in the code below a folder.
func literals(t *testing.T, dir string, match *regexp.Regexp) []string {
	t.Helper()
	found := map[string]bool{}
	for _, file := range productFiles(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && match.MatchString(text(lit)) {
				found[text(lit)] = true
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// constants returns the values of the constants whose names match, from the code below a folder.
func constants(t *testing.T, dir string, name *regexp.Regexp) []string {
	t.Helper()
	found := map[string]bool{}
	for _, file := range productFiles(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				if lit, ok := value.(*ast.BasicLit); ok && name.MatchString(spec.Names[i].Name) {
					found[strings.Trim(lit.Value, `"`)] = true
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// firstCells searches the first column of the tables between two headings of a page, and returns the texts that match.
func firstCells(t *testing.T, page, from, to string, match *regexp.Regexp) []string {
	t.Helper()
	content, err := os.ReadFile(reference + page) //nolint:gosec // a page of the repository
	require.NoError(t, err)
	_, section, found := strings.Cut(string(content), "\n"+from+"\n")
	require.True(t, found, "%s has no heading %q", page, from)
	if to != "" {
		section, _, found = strings.Cut(section, "\n"+to+"\n")
		require.True(t, found, "%s has no heading %q", page, to)
	}
	cells := map[string]bool{}
	for line := range strings.Lines(section) {
		cell, isRow := strings.CutPrefix(line, "| ")
		if cell, _, _ = strings.Cut(cell, " |"); isRow {
			for _, m := range match.FindAllStringSubmatch(cell, -1) {
				cells[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(cells))
}

var quotedCode = regexp.MustCompile("`([A-Z_]+)`")

func TestReferenceListsErrorCodes(t *testing.T) {
	code := regexp.MustCompile(`^(Code|code)[A-Z]`)
	require.Equal(t, constants(t, "pkg/worker", code), firstCells(t, "errors.md", "### Reported by Servo's worker", "### Set by Servo", quotedCode))
	set := append(constants(t, "pkg/fold", code), constants(t, "pkg/dispatcher", code)...)
	// Workers also report these two codes, so the section about the worker lists them.
	set = slices.DeleteFunc(set, func(c string) bool { return c == "WORKER_INTERRUPTED" || c == "STORE_UNAVAILABLE" })
	slices.Sort(set)
	require.Equal(t, set, firstCells(t, "errors.md", "### Set by Servo", "### Reported by commands", quotedCode))
	all := slices.Concat(set, constants(t, "pkg/worker", code))
	ofCommands := firstCells(t, "errors.md", "### Reported by commands", "### Categories", quotedCode)
	closed := slices.DeleteFunc(slices.Concat(all, ofCommands, []string{"CHECKS_MISSING"}), func(c string) bool {
		return strings.HasPrefix(c, "UPSTREAM_") // a code that says why a task was skipped is not an error
	})
	slices.Sort(closed)
	require.Equal(t, event.Codes(), slices.Compact(closed), "event.Codes is the closed list of codes")
	require.Equal(t, event.Codes(), categorized(t), "the table of categories lists every code")
	for _, other := range constants(t, "pkg", code) {
		require.Contains(t, all, other, "list the code in docs/reference/errors.md, and its package here")
	}
	category := regexp.MustCompile(`^Category[A-Z]`)
	require.Equal(t, constants(t, "pkg", category), firstCells(t, "errors.md", "### Categories", "## Dead letters", regexp.MustCompile("`([a-z]+)`")))
	reason := regexp.MustCompile(`^Reason[A-Z]`)
	require.Equal(t, constants(t, "pkg", reason), firstCells(t, "errors.md", "## Dead letters", "## Problem documents", quotedCode))
}

// categorized returns the codes in the table of categories. It also checks the category of each code.
func categorized(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(reference + "errors.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(content), "\n### Categories\n")
	var found []string
	for line := range strings.Lines(section) {
		category, rest, isRow := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if strings.HasPrefix(line, "#") {
			break
		}
		for _, m := range quotedCode.FindAllStringSubmatch(rest, -1) {
			if isRow && strings.HasPrefix(line, "| `") {
				require.Equal(t, category, event.CategoryOf(m[1]), m[1])
				found = append(found, m[1])
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestReferenceListsExitCodes(t *testing.T) {
	exit := regexp.MustCompile(`^exit[A-Z]`)
	require.Equal(t, constants(t, "pkg", exit), firstCells(t, "errors.md", "## Exit codes", "", regexp.MustCompile(`^(\d+)$`)))
}

func TestReferenceListsTitlesOfProblems(t *testing.T) {
	listed := firstCells(t, "errors.md", "## Problem documents", "## Exit codes", regexp.MustCompile(`^([A-Z][a-z ]+)$`))
	require.Len(t, listed, 12)
	for _, title := range listed {
		require.NotEmpty(t, literals(t, "pkg", regexp.MustCompile("^"+title+"$")), "no code says %q", title)
	}
	for name, file := range productFiles(t, "pkg") {
		ast.Inspect(file, func(n ast.Node) bool {
			field, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := field.Key.(*ast.Ident); ok && key.Name == "Title" && text(field.Value) != "" && !strings.Contains(name, "/cli/") && !strings.Contains(name, "/project/") {
				require.Contains(t, listed, text(field.Value), "%s: list the title in docs/reference/errors.md", name)
			}
			return true
		})
	}
}

func TestReferenceListsRoutes(t *testing.T) {
	route := regexp.MustCompile("`((?:GET|POST|PUT|DELETE) /[^`?]*)")
	placeholder := regexp.MustCompile(`\{\w+\}`)
	unnamed := func(routes []string) []string {
		for i, r := range routes {
			routes[i] = placeholder.ReplaceAllString(strings.TrimSuffix(r, "{$}"), "{}")
		}
		slices.Sort(routes)
		return slices.Compact(routes)
	}
	registered := literals(t, "pkg", regexp.MustCompile(`^(GET|POST|PUT|DELETE) /[^ ]*$`))
	require.Equal(t, unnamed(registered), unnamed(firstCells(t, "http.md", "## servo dev", "", route)))
}

func TestReferenceListsVariablesOfTasks(t *testing.T) {
	variable := regexp.MustCompile(`^(SERVO_[A-Z_]+)=?$`)
	var set []string
	for _, dir := range []string{"pkg/worker", "pkg/plan"} {
		for _, name := range literals(t, dir, variable) {
			set = append(set, strings.TrimRight(name, "=_"))
		}
	}
	slices.Sort(set)
	listed := firstCells(t, "task-environment.md", "## Commands", "### SERVO_CONTEXT", regexp.MustCompile("`(SERVO_[A-Z]+(?:_[A-Z]+)*)"))
	require.Equal(t, listed, slices.Compact(set))

	require.Equal(t, members(t, "pkg/worker", "taskContext"), firstCells(t, "task-environment.md", "### SERVO_CONTEXT", "### SERVO_ERROR", member))
	require.Equal(t, members(t, "pkg/worker", "commandError"), firstCells(t, "task-environment.md", "### SERVO_ERROR", "## Queries", member))
}

var member = regexp.MustCompile("`([a-z_]+)`")

// members returns the JSON names of the fields of a struct type.
func members(t *testing.T, dir, name string) []string {
	t.Helper()
	var found []string
	for _, file := range productFiles(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			declared, ok := n.(*ast.TypeSpec)
			if !ok || declared.Name.Name != name {
				return true
			}
			for _, field := range declared.Type.(*ast.StructType).Fields.List {
				tag, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
				found = append(found, tag)
			}
			return true
		})
	}
	slices.Sort(found)
	return found
}

func TestReferenceListsMembersOfResponses(t *testing.T) {
	require.Equal(t, members(t, "pkg/contract", "Problem"), firstCells(t, "errors.md", "## Problem documents", "| title | status | |", member))
}

func TestReferenceListsParameters(t *testing.T) {
	found := map[string]bool{}
	for _, file := range slices.Collect(maps.Values(productFiles(t, "pkg"))) {
		ast.Inspect(file, func(n ast.Node) bool {
			var query, name ast.Expr // from query.Get(name) or query[name]
			switch n := n.(type) {
			case *ast.IndexExpr:
				query, name = n.X, n.Index
			case *ast.CallExpr:
				if get, ok := n.Fun.(*ast.SelectorExpr); ok && get.Sel.Name == "Get" && len(n.Args) == 1 {
					query, name = get.X, n.Args[0]
				}
			}
			if call, ok := query.(*ast.CallExpr); ok {
				if of, ok := call.Fun.(*ast.SelectorExpr); ok && of.Sel.Name == "Query" {
					found[text(name)] = true
				}
			}
			return true
		})
	}
	delete(found, "expires") // a parameter of callback URLs, which are opaque to callers
	listed := firstCells(t, "http.md", "## servo dev", "", regexp.MustCompile(`[?&]([a-z_]+)=`))
	require.Equal(t, slices.Sorted(maps.Keys(found)), listed)
}
