// Command mutants makes small wrong edits to Servo, one at a time, and reports
// how many the simulation catches, and how fast. An edit that is not caught is a
// promise that nothing keeps.
//
// A few edits only show where the faults of the simulation hardly ever lead: where
// the file of one is followed by "by" and a package, the tests of that must catch it.
//
// Edits are in mutants.txt and are never made to the checkout: each is compiled
// as an overlay.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

//go:embed mutants.txt
var list string

// mutant is a wrong edit: the only place in a file that reads old reads new.
type mutant struct {
	name, file, old, new string
	by                   string // the package whose tests catch it; "": the simulation does
}

func main() {
	only := flag.String("only", "", "a part of the names of the mutants to try")
	from := flag.String("from", "", "a part of the name of the mutant to begin with")
	seeds := flag.Int("seeds", 500, "how many worlds may pass before a mutant counts as missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *from, *only, *seeds); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, from, only string, seeds int) error {
	mutants, err := parse(list)
	if err != nil {
		return err
	}
	for _, m := range mutants {
		if _, err := m.edited(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "servo-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tried, caught, begun := 0, 0, false
	for _, m := range mutants {
		begun = begun || strings.Contains(m.name, from)
		if !begun || !strings.Contains(m.name, only) {
			continue
		}
		tried++
		began := time.Now() //nolint:forbidigo // how long it takes is printed
		how, err := try(ctx, m, dir, seeds)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		took := time.Since(began).Round(time.Second) //nolint:forbidigo // see above
		if how == "" {
			fmt.Fprintf(os.Stdout, "MISSED  %-58s by %s, %s\n", m.name, cmp.Or(m.by, fmt.Sprintf("%d worlds", seeds)), took)
			continue
		}
		caught++
		fmt.Fprintf(os.Stdout, "caught  %-58s %s, %s\n", m.name, how, took)
	}
	fmt.Fprintf(os.Stdout, "%d of %d mutants caught\n", caught, tried)
	if caught < tried {
		return fmt.Errorf("%d mutants were missed", tried-caught)
	}
	return nil
}

// parse reads the list: blocks apart by lines of "---", of a name, a file, and
// the old and the new text apart by a line of "=>".
func parse(text string) ([]mutant, error) {
	var mutants []mutant
	for block := range strings.SplitSeq(text, "\n---\n") {
		name, rest, ok1 := strings.Cut(strings.TrimLeft(block, "\n"), "\n")
		file, rest, ok2 := strings.Cut(rest, "\n")
		before, after, ok3 := strings.Cut(rest+"\n", "\n=>\n")
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("mutants.txt: the block %.80q is not name, file, old, =>, new", block)
		}
		file, by, _ := strings.Cut(file, " by ")
		mutants = append(mutants, mutant{name, file, before, strings.TrimSuffix(after, "\n"), by})
	}
	return mutants, nil
}

// edited is what the mutant's file reads.
func (m mutant) edited() (string, error) {
	data, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(data), m.old); n != 1 {
		return "", fmt.Errorf("%s: %s has %d places that read %q, not one: mend mutants.txt", m.name, m.file, n, m.old)
	}
	return strings.Replace(string(data), m.old, m.new, 1), nil
}

// try compiles a mutant and runs worlds until one fails; how says which, "" none.
func try(ctx context.Context, m mutant, dir string, seeds int) (how string, err error) {
	text, err := m.edited()
	if err != nil {
		return "", err
	}
	file, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	edited := filepath.Join(dir, "edited.go")
	if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: edited}})
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "mutant.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlayFile, "-o", binary, cmp.Or(m.by, "./tests/simulation"))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	test := exec.CommandContext(ctx, binary, "-test.run", "TestWorldsKeep", "-test.timeout", "30m", "-shrink", "0",
		"-first", "1", "-seeds", fmt.Sprint(seeds))
	test.Dir = "tests/simulation"
	if m.by != "" {
		test = exec.CommandContext(ctx, binary, "-test.timeout", "10m")
		test.Dir = m.by
	}
	out, err := test.CombinedOutput()
	if err == nil {
		return "", nil
	}
	if exit := new(exec.ExitError); !errors.As(err, &exit) || ctx.Err() != nil {
		return "", err
	}
	if m.by != "" {
		return "by " + m.by + ": " + failure.FindString(string(out)), nil
	}
	return verdict(string(out)), nil
}

var (
	worlds    = regexp.MustCompile(`simulated (\d+) worlds`)
	violation = regexp.MustCompile(`VIOLATION (.*)`)
	failure   = regexp.MustCompile(`Test\w+`)
)

// verdict is how a mutant was caught, in a few words.
func verdict(out string) string {
	n, why := "at once", "the process died"
	if found := worlds.FindStringSubmatch(out); found != nil {
		n = "after " + found[1] + " worlds"
	}
	if found := violation.FindStringSubmatch(out); found != nil {
		why = found[1]
	}
	const most = 110
	return n + ": " + why[:min(most, len(why))]
}
