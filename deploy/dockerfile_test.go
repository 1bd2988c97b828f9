package deploy_test

import (
	"debug/elf"
	"flag"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var build = flag.Bool("build", false, "carry out the steps of the images, too: that takes minutes")

// stage is a stage of the Dockerfile.
type stage struct {
	name, from string
	runs       []string
	copies     []copied
	user       string
	entry      string
}

// copied is a COPY from another stage.
type copied struct{ from, source, to string }

var copyFrom = regexp.MustCompile(`^COPY --from=(\S+) (\S+) (\S+)$`)

// stages reads the Dockerfile, as far as ours goes: an instruction it does not know
// fails the test.
func stages(t *testing.T) []*stage {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	var all []*stage
	for line := range strings.SplitSeq(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		rest := strings.Join(words[1:], " ")
		if words[0] == "FROM" {
			require.Len(t, words, 4, line)
			all = append(all, &stage{name: words[3], from: words[1]})
			continue
		}
		if words[0] == "ARG" {
			require.Contains(t, rest, "=", "a base has a default")
			continue
		}
		require.NotEmpty(t, all, line)
		s := all[len(all)-1]
		switch words[0] {
		case "RUN":
			s.runs = append(s.runs, rest)
		case "USER":
			s.user = rest
		case "ENTRYPOINT":
			s.entry = strings.Trim(rest, `[]"`)
		case "COPY":
			if m := copyFrom.FindStringSubmatch(line); m != nil {
				s.copies = append(s.copies, copied{m[1], m[2], m[3]})
			}
		case "WORKDIR", "CMD":
		default:
			t.Fatalf("deploy/Dockerfile has %s, which this test does not know", words[0])
		}
	}
	return all
}

// Each image runs a program that a stage before it has built, and not as root.
func TestImagesAreWholeAndRunAsNobody(t *testing.T) {
	byName := map[string]*stage{}
	images := []string{}
	for _, s := range stages(t) {
		for _, c := range s.copies {
			from := byName[c.from]
			require.NotNil(t, from, "%s copies from %s, which is no stage before it", s.name, c.from)
			if program, ok := strings.CutPrefix(c.source, "/out/"); ok {
				require.Contains(t, strings.Join(from.runs, " "), "./cmd/"+program, "%s copies %s", s.name, c.source)
			}
		}
		if base := byName[s.from]; base != nil && s.user == "" {
			s.user = base.user
		}
		byName[s.name] = s
		if s.entry == "" {
			continue
		}
		images = append(images, s.name)
		require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, s.user, "%s runs as nobody in particular", s.name)
		require.True(t, slices.ContainsFunc(s.copies, func(c copied) bool { return c.to == s.entry }), "%s begins with %s, which is not in it", s.name, s.entry)
	}
	require.Equal(t, []string{"compactor", "dispatcher", "sweeper", "worker"}, images)
	require.FileExists(t, "../.dockerignore")
}

// The steps that build programs are carried out as they stand, on what a clone has,
// and the programs run. What is missing to an image is the engine that makes it.
func TestTheStepsOfTheImagesBuildTheirPrograms(t *testing.T) {
	if !*build {
		t.Skip("it takes minutes: with -build, as in make images")
	}
	root := t.TempDir()
	source, out := filepath.Join(root, "src"), filepath.Join(root, "out")
	run(t, "..", "git", "worktree", "add", "--detach", source, "HEAD")
	defer run(t, "..", "git", "worktree", "remove", "--force", source)
	built := map[string]bool{}
	all := stages(t)
	for _, s := range all {
		for _, step := range s.runs {
			run(t, source, "sh", "-c", strings.ReplaceAll(step, "/out/", out+"/"))
		}
		for _, c := range s.copies {
			program, ok := strings.CutPrefix(c.source, "/out/")
			if !ok {
				continue
			}
			binary := filepath.Join(out, program)
			run(t, root, binary, "--help")
			if slices.ContainsFunc(all, func(of *stage) bool {
				return of.name == c.from && strings.Contains(strings.Join(of.runs, " "), "CGO_ENABLED=0")
			}) {
				require.True(t, static(t, binary), "%s needs no C library", program)
			}
			built[path.Base(c.to)] = true
		}
	}
	require.Len(t, built, 4)
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), text)
}

// static reports whether a program needs no interpreter.
func static(t *testing.T, binary string) bool {
	t.Helper()
	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
