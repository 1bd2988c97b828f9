package arch_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/servo-orchestration/servo/"
)

// source lists the imports of one package. Packages of this module are listed without the module path.
type source struct {
	imports  []string // imports of the package's code
	inTests  []string // imports of the package's test files
	hasCode  bool
	suffixed bool // the package name ends in "test": it contains a test suite or fixtures
}

// sources reads the imports of every package of the module.
func sources(t *testing.T) map[string]*source {
	t.Helper()
	found := map[string]*source{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "node_modules" || name == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		src := found[dir]
		if src == nil {
			src = &source{suffixed: strings.HasSuffix(path.Base(dir), "test")}
			found[dir] = src
		}
		imports, err := importsOf(file)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "_test.go") {
			src.inTests = append(src.inTests, imports...)
			return nil
		}
		src.hasCode = true
		src.imports = append(src.imports, imports...)
		return nil
	})
	require.NoError(t, err)
	for _, src := range found {
		slices.Sort(src.imports)
		slices.Sort(src.inTests)
		src.imports, src.inTests = slices.Compact(src.imports), slices.Compact(src.inTests)
	}
	require.Contains(t, found, "pkg/fold", "no packages found below the root")
	return found
}

func importsOf(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var imports []string
	for _, spec := range parsed.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		imports = append(imports, strings.TrimPrefix(name, module))
	}
	return imports, nil
}

// ours reports whether an imported package belongs to this module.
func ours(name string) bool {
	return slices.Contains([]string{"pkg", "internal", "cmd", "tests", "ledger-schemas"}, strings.Split(name, "/")[0])
}

// place describes a package on the map: the index of its row, and the imports that it may have.
type place struct {
	row int
	may []string
}

func places() map[string]place {
	found := map[string]place{}
	for row, l := range layers {
		for _, p := range l.packages {
			found[p.path] = place{row, p.may}
		}
	}
	return found
}

func TestLayersOnlyPointUp(t *testing.T) {
	on := places()
	for from, p := range on {
		for _, edge := range p.may {
			if edge == everything {
				continue
			}
			to, sibling := strings.CutPrefix(edge, "=")
			target, ok := on[to]
			require.True(t, ok, "%s may import %s, which is not on the map", from, to)
			if sibling {
				require.Equal(t, p.row, target.row, "%s: %s is marked with = but is in another row", from, to)
			} else {
				require.Less(t, target.row, p.row, "%s: %s is not in a row above", from, to)
			}
		}
	}
}

func TestEveryPackageHasLayer(t *testing.T) {
	on := places()
	for dir, src := range sources(t) {
		if !src.hasCode || src.suffixed || strings.HasPrefix(dir, "tests") || strings.HasPrefix(dir, "tools/") {
			continue // tests and their fixtures may import any package, and tools is a module of its own
		}
		if _, ok := on[dir]; !ok {
			t.Errorf("%s is not on the map: add it to a row of layers_test.go, and explain the choice in an ADR", dir)
		}
	}
}

func TestImportsFollowLayers(t *testing.T) {
	on := places()
	for dir, src := range sources(t) {
		p, ok := on[dir]
		if !ok {
			continue
		}
		for _, name := range src.imports {
			if dir == proof && strings.HasSuffix(name, "test") {
				continue
			}
			if ours(name) && !allowed(on, p, name) {
				t.Errorf("%s imports %s, which layers_test.go does not allow: "+
					"invert the dependency, pass a value or a function, or add the edge there", dir, name)
			}
		}
	}
}

func allowed(on map[string]place, p place, name string) bool {
	if slices.Contains(p.may, everything) {
		target, ok := on[name]
		return ok && target.row < p.row
	}
	return slices.Contains(p.may, name) || slices.Contains(p.may, "="+name)
}

func TestPurePackagesImportNoIO(t *testing.T) {
	all := sources(t)
	for _, dir := range pure {
		require.Contains(t, all, dir)
		for _, name := range all[dir].imports {
			if slices.Contains(banned, name) {
				t.Errorf("%s imports %s: a pure package takes values as arguments and leaves I/O to its caller", dir, name)
			}
		}
	}
}

func TestHeavyModulesStayContained(t *testing.T) {
	for dir, src := range sources(t) {
		if strings.HasPrefix(dir, "tests") {
			continue // these packages test whole systems, and may import every module
		}
		for _, name := range slices.Concat(src.imports, src.inTests) {
			for prefix, in := range heavy {
				if strings.HasPrefix(name, prefix) && !slices.Contains(in, dir) {
					t.Errorf("%s imports %s, which takes minutes to build: only %q may", dir, name, in)
				}
			}
		}
	}
}

// servo serves gRPC with Connect, which adds only a tenth of the code that google.golang.org/grpc would add.
func TestServoLinksNoGRPC(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/servo")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "connectrpc.com/connect\n")
	for name := range strings.FieldsSeq(string(out)) {
		require.False(t, strings.HasPrefix(name, "google.golang.org/grpc"), "cmd/servo links %s", name)
	}
}

func TestFixturesOnlyImportedByTests(t *testing.T) {
	all := sources(t)
	for dir, src := range all {
		if src.suffixed || strings.HasPrefix(dir, "tests") || dir == proof {
			continue
		}
		for _, name := range src.imports {
			if target, ok := all[name]; ok && target.suffixed {
				t.Errorf("%s imports %s outside its tests", dir, name)
			}
		}
	}
}

// contained returns the packages of this module that a program contains. It maps each package to a chain of imports
// that leads from the program to the package.
func contained(all map[string]*source, program string) map[string]string {
	chains := map[string]string{}
	var link func(dir, chain string)
	link = func(dir, chain string) {
		if chains[dir] != "" || all[dir] == nil {
			return
		}
		chains[dir] = chain
		for _, name := range all[dir].imports {
			link(name, chain+" → "+name)
		}
	}
	link(program, program)
	return chains
}

// A rebuild and `servo admin verify` must compute the same rows with any version of the zone data. So neither
// pkg/fold nor pkg/repair may read zone data: events contain the instants that a calendar has computed.
func TestFoldAndRepairReadNoZoneData(t *testing.T) {
	zones := regexp.MustCompile(`time\.(LoadLocation|Local\b)|\.Local\(\)`)
	all := sources(t)
	for _, program := range []string{"pkg/fold", "pkg/repair"} {
		found := contained(all, program)
		require.Contains(t, found, "pkg/state")
		for dir, chain := range found {
			require.NotEqual(t, "pkg/calendar", dir, "%s contains the zone data: %s", program, chain)
			for _, file := range goFiles(t, dir) {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				require.NotRegexp(t, zones, string(text), "%s reads zone data", file)
			}
		}
	}
}

// goFiles returns the files of a package without its tests.
func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
}

// No program that users install contains the simulator, the benchmarks, the models of clouds or the fakes.
func TestProgramsContainOnlyProduct(t *testing.T) {
	all := sources(t)
	for _, program := range programs {
		found := contained(all, program)
		require.NotEmpty(t, found, "%s does not exist", program)
		for dir, chain := range found {
			if dir != program && !strings.HasPrefix(dir, "pkg/") && !slices.Contains(linkable, dir) {
				t.Errorf("%s contains %s, which is no part of the product: %s", program, dir, chain)
			}
		}
	}
}

// The program for one machine must not contain the services' code for metrics, because this code would make it larger.
func TestServoLinksNoPrometheus(t *testing.T) {
	all := sources(t)
	found := contained(all, "cmd/servo")
	for dir, chain := range found {
		for _, name := range all[dir].imports {
			require.False(t, strings.HasPrefix(name, "github.com/prometheus/"), "%s imports %s, and is linked into servo: %s", dir, name, chain)
		}
	}
	require.Contains(t, found, "pkg/service", "servo has no part of the services any more: delete this test")
}
