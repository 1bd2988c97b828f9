package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/testcase"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// testFlags are the flags of servo test.
type testFlags struct {
	assets  assetFlags
	keyword string
	update  bool
}

func (a *app) testCommand() *cobra.Command {
	var f testFlags
	cmd := &cobra.Command{
		Use:         "test [SELECTION…]",
		Annotations: writesRows,
		Short:       "Execute the unit tests of queries",
		Long: "Execute the unit tests in the YAML files below " + project.TestsDir + "/. A test declares the rows that the query of an asset\n" +
			"reads, and the rows that it must return. Tests use no state, so they need no run and leave nothing behind.\n" +
			"The exit code is 1 if a test fails.",
		Example: "  servo test\n  servo test clean/orders -k empty\n  servo test clean/orders --update",
		Args:    takes("[SELECTION…]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.assets.all = len(args) == 0
			return a.test(cmd.Context(), f, args)
		},
	}
	f.assets.add(cmd, "test")
	cmd.Flags().BoolVar(&f.update, "update", false, "replace the expected rows of failing tests with the rows that the queries return")
	cmd.Flags().StringVarP(&f.keyword, "keyword", "k", "", "execute only tests whose name contains this text, in upper or lower case")
	return cmd
}

// test executes unit tests of the selected assets, or of all assets if none is selected. It executes only tests whose
// names contain the keyword.
func (a *app) test(ctx context.Context, f testFlags, args []string) error {
	choice, err := f.assets.parse(args)
	if err != nil {
		return err
	}
	var chosen selector.Result
	p, err := a.usableProject(ctx, func(assets []plan.Asset) ([]ids.AssetKey, error) {
		chosen, err = choice.resolve(assets)
		return chosen.Named, err
	})
	if err != nil {
		return err
	}
	execute := func(ctx context.Context) (run testRun, err error) {
		tests, problems, err := project.LoadTests(ctx, p)
		if err != nil {
			return run, err
		}
		if len(tests) == 0 && len(problems) == 0 {
			return run, fmt.Errorf("project %s has no unit tests: write one in %s/NAME.yaml, or create an example with `servo init DIR`", p.Root, project.TestsDir)
		}
		selected := slices.DeleteFunc(tests, func(t testcase.Test) bool {
			_, found := slices.BinarySearchFunc(chosen.Keys, t.Asset, plan.CompareKeys)
			return !found || !strings.Contains(strings.ToLower(t.Name), strings.ToLower(f.keyword))
		})
		if len(selected) == 0 && len(problems) == 0 {
			return run, usagef("no test matches: `servo test` without arguments executes all tests")
		}
		run.problems = problems
		run.results, err = a.runTests(ctx, p, selected)
		return run, err
	}
	run, err := execute(ctx)
	if err != nil {
		return err
	}
	if f.update {
		updated, err := a.updateTests(ctx, p, run, execute)
		if ctx.Err() != nil {
			return err
		}
		if run = updated; err != nil {
			a.warnings(strings.Split(err.Error(), "\n"))
			return cmp.Or(a.reportTests(run.results, run.problems), errReported)
		}
	}
	return a.reportTests(run.results, run.problems)
}

// runTests executes unit tests in a scratch folder.
func (a *app) runTests(ctx context.Context, p *project.Project, tests []testcase.Test) (results []testcase.Result, err error) {
	if len(tests) == 0 {
		return nil, nil
	}
	scratch, err := os.MkdirTemp("", "servo-test-")
	if err != nil {
		return nil, fmt.Errorf("execute unit tests: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	o := a.options(p)
	return worker.RunUnitTests(ctx, worker.UnitTests{
		Root: p.Root, Data: p.Data, Scratch: scratch, State: o.Dir, MemoryLimit: o.DuckDB.MemoryLimit,
		Parallel: runtime.GOMAXPROCS(0), Assets: p.Assets, Tests: tests,
	})
}

// reportTests prints the results. It fails if a test failed, or a test file has problems.
func (a *app) reportTests(results []testcase.Result, problems project.Problems) error {
	for _, problem := range problems {
		results = append(results, testcase.Result{
			Test: &testcase.Test{}, Status: testcase.Invalid, Message: problem.Message, Suggestion: problem.Suggestion,
			At: testcase.Place{File: problem.File, Line: problem.Line, Column: problem.Column},
		})
	}
	slices.SortStableFunc(results, func(a, b testcase.Result) int {
		return cmp.Or(strings.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	counts := map[testcase.Status]int{}
	for i := range results {
		counts[results[i].Status]++
	}
	if !a.table() {
		if err := list(a, testColumns, results); err != nil {
			return err
		}
	} else {
		a.printTests(results, counts)
	}
	if counts[testcase.Passed] < len(results) {
		return errReported
	}
	return nil
}

// printTests prints the tests that did not pass, and counts all of them.
func (a *app) printTests(results []testcase.Result, counts map[testcase.Status]int) {
	for i := range results {
		r := &results[i]
		switch r.Status {
		case testcase.Passed:
			continue
		case testcase.Invalid:
			fmt.Fprintln(a.Stdout, a.problemText(project.Problem{
				File: r.At.File, Line: r.At.Line, Column: r.At.Column, Message: r.Message, Suggestion: r.Suggestion,
			}))
			continue
		case testcase.Failed:
		}
		message := r.Message
		if r.Diff != nil {
			message = r.Diff.String()
		}
		fmt.Fprintf(a.Stdout, "%s %s: %s: %s\n    %s\n", a.style.bold(r.At.String()+":"), a.style.red("FAILED"), r.Test.Asset, r.Test.Name,
			strings.ReplaceAll(message, "\n", "\n    "))
	}
	text := plural(counts[testcase.Passed], "test") + " passed"
	if n := counts[testcase.Failed]; n > 0 {
		text += fmt.Sprintf(", %d failed", n)
	}
	if n := counts[testcase.Invalid]; n > 0 {
		text += fmt.Sprintf(", %s in test files", plural(n, "problem"))
	}
	a.note("%s", text)
}

var testColumns = []column[testcase.Result]{
	{Name: "file", Value: func(r testcase.Result) any { return r.At.File }},
	{Name: "line", Value: func(r testcase.Result) any { return r.At.Line }},
	{Name: "column", Value: func(r testcase.Result) any { return r.At.Column }},
	{Name: "asset", Value: func(r testcase.Result) any { return orNil(assetOf(r.Test)) }},
	{Name: "name", Value: func(r testcase.Result) any { return orNil(r.Test.Name) }},
	{Name: "status", Value: func(r testcase.Result) any { return string(r.Status) }},
	{Name: "message", Value: func(r testcase.Result) any { return orNil(r.Message) }},
	{Name: "suggestion", Value: func(r testcase.Result) any { return orNil(r.Suggestion) }},
	{Name: "diff", Value: func(r testcase.Result) any { return orNil(diffOf(r.Diff)) }},
}

func assetOf(t *testcase.Test) string {
	if t.Asset == (ids.AssetKey{}) {
		return ""
	}
	return t.Asset.String()
}

func diffOf(d *testcase.Diff) string {
	if d == nil {
		return ""
	}
	return d.String()
}
