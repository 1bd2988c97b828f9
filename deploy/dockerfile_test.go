package deploy_test

import (
	"cmp"
	"debug/buildinfo"
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
	base       string // the image in FROM, with each argument replaced by its default
}

// copied is a COPY from another stage.
type copied struct{ from, source, to string }

var copyFrom = regexp.MustCompile(`^COPY --from=(\S+) (\S+) (\S+)$`)

// stages parses the Dockerfile. It knows only the instructions that Servo's Dockerfile uses; any other instruction
// fails the test.
func stages(t *testing.T) []*stage {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	var all []*stage
	defaults := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		rest := strings.Join(words[1:], " ")
		if words[0] == "FROM" {
			require.Len(t, words, 4, line)
			all = append(all, &stage{name: words[3], from: words[1], base: os.Expand(words[1], func(name string) string { return defaults[name] })})
			continue
		}
		if words[0] == "ARG" {
			name, value, ok := strings.Cut(rest, "=")
			require.True(t, ok, "a base has a default")
			defaults[name] = value
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

// Each image runs a program that an earlier stage has built, and does not run it as root.
func TestImagesRunBuiltProgramsWithoutRoot(t *testing.T) {
	byName := map[string]*stage{}
	images := []string{}
	for _, s := range stages(t) {
		for _, c := range s.copies {
			from := byName[c.from]
			require.NotNil(t, from, "%s copies from %s, which is not an earlier stage", s.name, c.from)
			if of, ok := strings.CutPrefix(c.source, "/out/notices/"); ok {
				require.Contains(t, strings.Join(from.runs, " "), " /out/"+of, "%s copies %s", s.name, c.source)
			} else if program, ok := strings.CutPrefix(c.source, "/out/"); ok {
				require.Contains(t, strings.Join(from.runs, " "), "./cmd/"+program, "%s copies %s", s.name, c.source)
			}
		}
		if base := byName[s.from]; base != nil {
			s.user, s.base = cmp.Or(s.user, base.user), base.base
		}
		byName[s.name] = s
		if s.entry == "" {
			continue
		}
		images = append(images, s.name)
		require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, s.user, "%s must run as a numbered user other than root", s.name)
		require.True(t, slices.ContainsFunc(s.copies, func(c copied) bool { return c.to == s.entry }), "%s starts %s, which the image does not contain", s.name, s.entry)
		require.True(t, slices.ContainsFunc(s.copies, func(c copied) bool {
			return c.source == "/out/notices/"+path.Base(s.entry) && c.to == "/usr/share/doc/servo"
		}), "%s has no notices of the modules in its program", s.name)
	}
	require.Equal(t, []string{"compactor", "dispatcher", "sweeper", "worker"}, images)
	for _, name := range []string{"compactor", "dispatcher", "sweeper"} {
		require.Regexp(t, `/distroless/static-debian\d+:nonroot(@sha256:[0-9a-f]{64})?$`, byName[name].base, "%s must not contain a shell or libraries", name)
		require.Contains(t, byName["services"].runs[0], "CGO_ENABLED=0 ")
	}
	require.Regexp(t, `^debian:[a-z]+-slim(@sha256:[0-9a-f]{64})?$`, byName["worker"].base, "a worker needs a shell and a package manager for commands")
	require.FileExists(t, "../.dockerignore")
}

// The script calls a fake docker, which answers with made-up digests: tests have no registry.
func TestPinImagesWritesDigests(t *testing.T) {
	bin, file := t.TempDir(), filepath.Join(t.TempDir(), "Dockerfile")
	text, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	pin := func(answer string) (string, error) {
		require.NoError(t, os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"+answer+"\n"), 0o700)) //nolint:gosec // a program
		cmd := exec.Command("../scripts/pin-images", file)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")) //nolint:forbidigo // the commands need PATH
		if out, err := cmd.CombinedOutput(); err != nil {
			return string(out), err
		}
		pinned, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(pinned), nil
	}
	for _, answer := range []string{"echo no such image", "exit 1"} {
		_, err := pin(answer)
		require.Error(t, err)
		unchanged, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(text), string(unchanged))
	}
	images := regexp.MustCompile(`(?m)^(?:ARG [A-Z_]+=|FROM )([a-z0-9./-]+:[a-z0-9.-]+)(@sha256:[0-9a-f]{64})?`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, images, 3, "the Go that builds, and the bases of services and worker")
	for _, digit := range []string{"a", "b"} { // the second digit simulates a changed image
		pinned, err := pin("printf '%064d\\n' 0 | sed 's/0/" + digit + "/g; s/^/sha256:/'")
		require.NoError(t, err, pinned)
		want := string(text)
		for _, image := range images {
			want = strings.Replace(want, image[1]+image[2], image[1]+"@sha256:"+strings.Repeat(digit, 64), 1)
		}
		require.Equal(t, want, pinned)
	}
}

// The worker image of the example extends Servo's worker image, and contains the programs that the example's commands
// call.
func TestExampleImageContainsItsCommands(t *testing.T) {
	text, err := os.ReadFile("../examples/weather/Dockerfile")
	require.NoError(t, err)
	assets, err := filepath.Glob("../examples/weather/assets/*/*.yaml")
	require.NoError(t, err)
	programs := 0
	for _, asset := range assets {
		yaml, err := os.ReadFile(asset)
		require.NoError(t, err)
		for _, command := range regexp.MustCompile(`command: \[([^,\]]+)`).FindAllStringSubmatch(string(yaml), -1) {
			programs++
			require.Regexp(t, `apt-get install .* `+command[1]+`\b`, string(text), asset)
		}
	}
	require.Positive(t, programs)
	users := regexp.MustCompile(`(?m)^USER (\S+)$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, users, 2)
	require.Equal(t, "root", users[0][1])
	require.Equal(t, "65532:65532", users[1][1], "the same user as Servo's worker")
	require.Contains(t, string(text), "COPY . /project\n")
	ignored, err := os.ReadFile("../examples/weather/.dockerignore")
	require.NoError(t, err)
	require.Contains(t, string(ignored), ".servo\n", "the local state must not be copied")
}

// The test executes the Dockerfile's build steps unchanged in a new worktree of the repository, and runs the programs.
// It creates no image, because that would need a container engine.
func TestImagesBuildStepsProduceThePrograms(t *testing.T) {
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
			if of, ok := strings.CutPrefix(program, "notices/"); ok {
				requireNotices(t, filepath.Join(out, program), filepath.Join(out, of))
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

// requireNotices checks that the files beside a program name every module that the program contains.
func requireNotices(t *testing.T, folder, program string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	require.NotEmpty(t, info.Deps)
	bill, err := os.ReadFile(filepath.Join(folder, "sbom.cdx.json"))
	require.NoError(t, err)
	notices, err := os.ReadFile(filepath.Join(folder, "THIRD_PARTY_NOTICES.txt"))
	require.NoError(t, err)
	for _, m := range info.Deps {
		require.Contains(t, string(bill), `"name": "`+m.Path+`"`, "%s: its bill of materials", program)
		require.Contains(t, string(notices), "\n"+m.Path+" "+m.Version+": ", "%s: its notices", program)
	}
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), text)
}

// static reports whether a program is linked statically: its ELF file names no dynamic linker.
func static(t *testing.T, binary string) bool {
	t.Helper()
	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
