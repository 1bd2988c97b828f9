// Command mutants makes small wrong edits to Servo, one at a time. It reports how many of them the simulation catches,
// and how fast. If an edit is not caught, no test protects the promise that the edit breaks.
//
// Some edits hardly ever have an effect under the faults of the simulation. In mutants.txt, the function of such a
// mutant is followed by "by" and a package: the tests of this package must catch the mutant. With "by merging", only
// worlds with merged files run.
//
// The edits are in mutants.txt. The checkout does not change: one build contains all edits as an
// overlay, and an environment variable selects one.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed mutants.txt
var list string

const (
	module     = "github.com/servo-orchestration/servo"
	simulation = "./tests/simulation"
	merging    = "merging" // the worlds with merged files
)

func main() {
	only := flag.String("only", "", "part of the names of the mutants to try; separate several parts by |")
	from := flag.String("from", "", "part of the name of the first mutant")
	seeds := flag.Int("seeds", 500, "number of worlds that must pass before a mutant counts as missed")
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
	all, err := locate(mutants)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "servo-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := newBuilder(dir, module, all)
	if err != nil {
		return err
	}
	tried, caught := 0, 0
	for _, m := range chosen(mutants, from, only) {
		tried++
		began := time.Now() //nolint:forbidigo // needed to print the duration
		how, err := try(ctx, b, m, seeds)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		took := time.Since(began).Round(time.Second) //nolint:forbidigo // see above
		if how == "" {
			fmt.Fprintf(os.Stdout, "MISSED  %-58s by %s, %s\n", m.name, cmp.Or(strings.TrimPrefix(m.by, merging), fmt.Sprintf("%d worlds", seeds)), took)
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

// chosen returns the mutants whose names contain one of the texts that are separated by "|" in the flag -only. It skips
// all mutants before the first one whose name contains the text of the flag -from.
func chosen(mutants []mutant, from, only string) []mutant {
	var some []mutant
	begun := false
	parts := strings.Split(only, "|")
	for _, m := range mutants {
		begun = begun || strings.Contains(m.name, from)
		if begun && slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(m.name, part) }) {
			some = append(some, m)
		}
	}
	return some
}

// try activates a mutant, and runs worlds, or the tests of a package, until one of them fails. It returns a description
// of the failed world or test, or "" if none failed.
func try(ctx context.Context, b *builder, m mutant, seeds int) (string, error) {
	inWorlds, pkg := m.by == "" || m.by == merging, m.by
	if inWorlds {
		pkg = simulation
	}
	binary, err := b.binary(ctx, pkg)
	if err != nil {
		return "", err
	}
	test := exec.CommandContext(ctx, binary, "-test.failfast", "-test.timeout", "10m")
	test.Dir = pkg
	if inWorlds {
		test = exec.CommandContext(ctx, binary, "-test.run", "TestWorldsKeep", "-test.timeout", "30m", "-shrink", "0",
			"-first", "1", "-seeds", fmt.Sprint(seeds), "-merging="+strconv.FormatBool(m.by == merging))
	}
	test.Env = append(os.Environ(), activeVariable+"="+m.name, "RAPID_NOFAILFILE=true")
	out, err := test.CombinedOutput()
	if err == nil {
		return "", nil
	}
	if exit := new(exec.ExitError); !errors.As(err, &exit) || ctx.Err() != nil {
		return "", err
	}
	if !inWorlds {
		return "by " + m.by + ": " + failure.FindString(string(out)), nil
	}
	return verdict(string(out)), nil
}

var (
	worlds    = regexp.MustCompile(`simulated (\d+) worlds`)
	violation = regexp.MustCompile(`VIOLATION (.*)`)
	failure   = regexp.MustCompile(`Test\w+`)
)

// verdict summarizes how a mutant was caught.
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
