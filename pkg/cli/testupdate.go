package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// testRun is the outcome of the selected tests, and the problems of test files.
type testRun struct {
	results  []testcase.Result
	problems project.Problems
}

// testFile is a test file in which the expected rows of some tests differ from the rows that their queries returned.
type testFile struct {
	path          string
	mode          fs.FileMode
	before, after string
	names         map[string]bool // the names of the updated tests
}

// updateTests changes tests whose expected rows differ from the rows that their queries returned: it writes the
// returned rows into the test files. Then it executes the tests again. If an updated test of a file does not pass, it
// restores the file.
func (a *app) updateTests(ctx context.Context, p *project.Project, first testRun, execute func(context.Context) (testRun, error)) (testRun, error) {
	files, err := rewrittenTests(p, first.results)
	if err != nil || len(files) == 0 {
		return first, err
	}
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if err := files[name].write(files[name].after); err != nil {
			return first, fmt.Errorf("update %s: %w", name, err)
		}
	}
	again, err := execute(ctx)
	updated, kept := 0, 0
	var failed []error
	for _, name := range names {
		f := files[name]
		if problem := f.rejected(name, again, err); problem != nil {
			failed = append(failed, problem, f.write(f.before))
			again.keep(name, first)
			continue
		}
		kept++
		updated += len(f.names)
	}
	if updated > 0 {
		a.note("updated the expected rows of %s in %s", plural(updated, "test"), plural(kept, "file"))
	}
	return again, errors.Join(append(failed, err)...)
}

// rewrittenTests returns the test files to update, by name. Each contains its text before and after the update.
func rewrittenTests(p *project.Project, results []testcase.Result) (map[string]*testFile, error) {
	files := map[string]*testFile{}
	failed := slices.DeleteFunc(slices.Clone(results), func(r testcase.Result) bool { return r.Actual == nil })
	slices.SortStableFunc(failed, func(a, b testcase.Result) int { // rewrite from the end, so that the positions of earlier rows stay valid
		x, y := a.Test.Expect.RowsAt, b.Test.Expect.RowsAt
		return cmp.Or(cmp.Compare(y.Line, x.Line), cmp.Compare(y.Column, x.Column))
	})
	for i := range failed {
		t := failed[i].Test
		name := t.Expect.RowsAt.File
		f := files[name]
		if f == nil {
			path, err := filepath.EvalSymlinks(filepath.Join(p.Root, filepath.FromSlash(name)))
			if err != nil {
				return nil, fmt.Errorf("update %s: %w", name, err)
			}
			info, err := os.Stat(path)
			if err != nil {
				return nil, fmt.Errorf("update %s: %w", name, err)
			}
			text, err := os.ReadFile(path) //nolint:gosec // a test file of the project
			if err != nil {
				return nil, fmt.Errorf("update %s: %w", name, err)
			}
			f = &testFile{path: path, mode: info.Mode().Perm(), before: string(text), after: string(text), names: map[string]bool{}}
			files[name] = f
		}
		after, err := testcase.Update(f.after, t.Expect.RowsAt, failed[i].Actual)
		if err != nil {
			return nil, fmt.Errorf("update %s: %w: write the rows of this test by hand", t.Expect.RowsAt, err)
		}
		f.after, f.names[t.Name] = after, true
	}
	return files, nil
}

// write replaces the file atomically.
func (f *testFile) write(text string) error {
	temporary := f.path + ".servo-new"
	if err := os.WriteFile(temporary, []byte(text), f.mode); err != nil {
		return err
	}
	return os.Rename(temporary, f.path)
}

// rejected returns an error if an updated test of the file does not pass, if the tests could not be executed again, or
// if the updated file could not be read.
func (f *testFile) rejected(name string, run testRun, err error) error {
	if err != nil {
		return fmt.Errorf("%s is unchanged, because its tests could not be executed again", name)
	}
	for i := range run.results {
		r := &run.results[i]
		if r.Test.At.File == name && f.names[r.Test.Name] && r.Status != testcase.Passed {
			return fmt.Errorf("%s is unchanged, because the test %q does not pass with the rows that its query returned (%s): write them by hand",
				name, r.Test.Name, cmp.Or(r.Message, string(r.Status)))
		}
	}
	at := slices.IndexFunc(run.problems, func(p project.Problem) bool { return p.File == name })
	if at >= 0 {
		return fmt.Errorf("%s is unchanged, because it could not be read with the new rows: %s: write them by hand", name, run.problems[at].Message)
	}
	return nil
}

// keep replaces the results and the problems of one test file in r with those from the test run other.
func (r *testRun) keep(file string, other testRun) {
	r.results = slices.DeleteFunc(r.results, func(x testcase.Result) bool { return x.Test.At.File == file })
	r.problems = slices.DeleteFunc(r.problems, func(x project.Problem) bool { return x.File == file })
	for i := range other.results {
		if other.results[i].Test.At.File == file {
			r.results = append(r.results, other.results[i])
		}
	}
	for _, x := range other.problems {
		if x.File == file {
			r.problems = append(r.problems, x)
		}
	}
}
