package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// Checks run before the commit marker exists, on the files in the scratch folder. An output that a
// check blocks therefore never becomes visible: no reader and no other task finds it.
//
// The order is: PRE checks, the work, POST checks, upload, commit marker with all results, report. If an execution
// dies before it writes the marker, it leaves no result, and the next execution repeats everything. An execution that
// finds a marker reports the results in the marker.

// Checker executes one check. If it is set, it replaces DuckDB and commands. An error means that the check itself is
// broken.
type Checker func(ctx context.Context, e Execution, c *quality.Check) (quality.Measured, error)

// samplesFolder is the folder with samples of failing rows, within the directory of an output.
const samplesFolder = "_checks"

// checkRun executes the checks of one phase.
type checkRun struct {
	*attempt
	t      *work
	phase  string
	inputs []input
	// made are the files of the output. The phase PRE has none.
	made []outputFile
	rows int64
	// cell is the partition that is being checked, if the task has several partitions. The field first contains the
	// results of the partitions that were checked earlier.
	cell  string
	first []event.CheckResult
	// all contains the files of all partitions of the output.
	all []outputFile
	// db is opened by the first check that needs it. shown means that the view of the output exists in db.
	db    *database
	shown bool
	// queries maps the names of SQL checks to their queries with absolute paths. broken maps the names of the other SQL
	// checks to the errors that occurred when their paths were made absolute.
	queries map[string]*resolvedQuery
	broken  map[string]error
	// candidate is the folder in which commands read the output.
	candidate string
	// stored is the name of a view that shows the output without the partition columns which the asset's view adds. It
	// is empty if the asset's view adds none.
	stored string
	// final contains the broken checks that a retry cannot repair.
	final map[string]bool
}

// audit runs the checks of a phase. If names is not nil, audit runs only the checks with these names. It adds the
// results of the checks to the results of the attempt, and returns an error if the results fail the task.
func (a *attempt) audit(ctx context.Context, t *work, phase string, inputs []input, made []outputFile, names []string) error {
	before, final := len(a.checkResults), map[string]bool{}
	if err := a.runChecks(ctx, t, phase, inputs, made, names, final); err != nil {
		return err
	}
	return a.gate(a.checkResults[before:], final)
}

// runChecks runs the checks of a phase and adds their results to the results of the attempt. It adds the broken checks
// that a retry cannot repair to the parameter final. If it returns an error, the attempt stops.
func (a *attempt) runChecks(
	ctx context.Context, t *work, phase string, inputs []input, made []outputFile, names []string, final map[string]bool,
) error {
	checks := slices.DeleteFunc(quality.In(t.Checks, phase), func(c *quality.Check) bool { return names != nil && !slices.Contains(names, c.Name) })
	if len(checks) == 0 {
		return nil
	}
	r := &checkRun{attempt: a, t: t, phase: phase, inputs: inputs, made: made, all: made, final: final}
	for i := range made {
		r.rows += made[i].rows
	}
	run := r.run
	if len(a.batch) > 0 && phase == quality.Post {
		run = r.auditCells
	}
	results, err := run(ctx, checks)
	if closeErr := r.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	a.checkResults = append(a.checkResults, results...)
	for i := range results {
		a.output.printf("%s\n", describeResult(&results[i]))
	}
	return nil
}

// describeResult describes a result on one line.
func describeResult(r *event.CheckResult) string {
	verdict := "passed"
	switch {
	case r.Broken:
		verdict = "broken"
	case !r.Passed:
		verdict = "failed"
	}
	text := "check " + r.Name + " " + verdict
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

func (r *checkRun) close() error {
	if r.db == nil {
		return nil
	}
	if err := r.db.close(); err != nil {
		return sqlFailure(err)
	}
	return nil
}

// run executes the checks one after another. If it returns an error, the attempt stops.
func (r *checkRun) run(ctx context.Context, checks []*quality.Check) ([]event.CheckResult, error) {
	onlyDrift := !slices.ContainsFunc(checks, func(c *quality.Check) bool { return c.Kind != quality.SchemaDrift })
	if r.w.cfg.Checker == nil && !onlyDrift {
		if err := r.scratch(); err != nil {
			return nil, err
		}
		if err := r.findProject(ctx, r.t); err != nil {
			return nil, err
		}
		if err := r.fetch(ctx, r.inputs); err != nil {
			return nil, err
		}
		for i := range r.made {
			if strings.HasPrefix(r.made[i].name, samplesFolder+"/") {
				return nil, permanent(CodeInvalidOutput, "the output has a file %.200q, but the folder %s is reserved for samples of checks: rename the file",
					r.made[i].name, samplesFolder)
			}
		}
	}
	results := make([]event.CheckResult, 0, len(checks))
	for _, c := range checks {
		var result event.CheckResult
		err := r.limited(ctx, c, func(ctx context.Context) (err error) {
			result, err = r.executeCheck(ctx, c)
			return err
		})
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if err != nil {
			f, known := errors.AsType[*failure](err)
			if known && (f.category == CategoryInfrastructure || f.category == event.CategoryTransient) || invalidFiles(err) {
				return nil, err
			}
			r.final[c.Name] = known && !f.retryable
			result = c.Broken(r.masked(err))
		}
		result.Message = r.mask.String(result.Message)
		results = append(results, result)
	}
	return results, nil
}

// invalidFiles reports whether an error of a check means that the task must not use its inputs or its output: an input
// is damaged, or the check has changed a file.
func invalidFiles(err error) bool {
	f, known := errors.AsType[*failure](err)
	return known && f.code == CodeInvalidInput || errors.Is(err, errChangedOutput)
}

// limited calls the parameter "do", whose context ends after the time limit of the check.
func (r *checkRun) limited(ctx context.Context, c *quality.Check, do func(context.Context) error) error {
	if c.Timeout() == 0 {
		return do(ctx)
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := fmt.Errorf("timed out after %s", c.Timeout())
	stop := background(limited, func(ctx context.Context) {
		if r.w.cfg.Clock.Sleep(ctx, c.Timeout()) == nil {
			cancel(late)
		}
	})
	err := do(limited)
	stop()
	if errors.Is(context.Cause(limited), late) && !invalidFiles(err) {
		return late
	}
	return err
}

// executeCheck executes one check.
func (r *checkRun) executeCheck(ctx context.Context, c *quality.Check) (event.CheckResult, error) {
	switch {
	case r.w.cfg.Checker != nil:
		m, err := r.w.cfg.Checker(ctx, Execution{RunID: r.env.RunID, TaskKey: r.env.TaskKey, Attempt: r.env.Attempt}, c)
		return c.Judge(quality.Compiled{}, m), err
	case c.Kind == quality.Command:
		return r.command(ctx, c)
	case c.Kind == quality.SchemaDrift:
		return r.drift(ctx, c)
	}
	if err := r.open(ctx); err != nil {
		return event.CheckResult{}, err
	}
	return r.sql(ctx, c)
}

// open opens a database with views of the inputs and of the output.
func (r *checkRun) open(ctx context.Context) error {
	if r.db == nil {
		if err := r.openInputs(ctx); err != nil {
			// The database may not be confined to the sandbox yet, so no other check may use it.
			closeErr := r.close()
			r.db = nil
			if closeErr != nil {
				return errors.Join(err, closeErr)
			}
			return err
		}
	}
	if r.shown {
		return nil
	}
	if err := r.showOutput(ctx); err != nil {
		return err
	}
	r.shown = true
	return nil
}

// openInputs opens a database with views of the inputs, and locks it. The database can also read the files of the
// output.
func (r *checkRun) openInputs(ctx context.Context) (err error) {
	if r.db, err = r.openDuckDB(ctx); err != nil {
		return sqlFailure(err)
	}
	readable, err := r.resolveQueries(ctx)
	if err != nil {
		return err
	}
	var statements []string
	for i := range r.inputs {
		if r.inputs[i].asset == r.asset {
			continue // in a check, the name of the asset means the new output
		}
		query, files, err := r.inputView(ctx, r.db, r.t, &r.inputs[i])
		if err != nil {
			return err
		}
		if len(files) > 0 {
			if _, problem := r.inputs[i].rows(); problem != nil { // some rows are only in text files
				if query, err = r.failingView(ctx, query, problem); err != nil {
					return err
				}
			}
			statements = append(statements, createView(r.inputs[i].asset, query)...)
			readable.files = append(readable.files, files...)
		}
	}
	readable.files = append(readable.files, parquetFiles(r.all)...)
	for _, statement := range statements {
		if _, err := r.db.exec(ctx, statement); err != nil {
			return sqlFailure(fmt.Errorf("prepare the checks: %w", err))
		}
	}
	if _, err := r.folder("checks"); err != nil {
		return err
	}
	readable.directories = append(readable.directories, r.dir)
	return r.db.lock(ctx, readable)
}

// failingView returns a query with the columns of another query. If a check reads it, the check fails with the given
// problem. The last row of the query evaluates an error in each column and in its filter, so that DuckDB never skips
// the error.
func (r *checkRun) failingView(ctx context.Context, query string, problem error) (string, error) {
	columns, err := r.db.describe(ctx, statement{text: "DESCRIBE " + query})
	if err != nil {
		return "", sqlFailure(fmt.Errorf("prepare the checks: %w", err))
	}
	fails := "error(" + quote(problem.Error()) + ")"
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = "CAST(" + fails + " AS " + c.kind + ") AS " + quoteName(c.name)
	}
	return "(" + query + ")\nUNION ALL\nSELECT " + strings.Join(list, ", ") + " WHERE CAST(" + fails + " AS BOOLEAN)", nil
}

// showOutput sets the variables of the partition and creates the view of the output.
func (r *checkRun) showOutput(ctx context.Context) error {
	keys := r.t.cellKeys()
	if r.cell != "" {
		keys = []string{r.cell}
	}
	statements, err := variables(r.t, keys...)
	if err != nil {
		return err
	}
	if files := parquetFiles(r.made); len(files) > 0 {
		query, err := r.outputView(ctx, files)
		if err != nil {
			return err
		}
		statements = append(statements, createView(r.asset, query)...)
	}
	for _, statement := range statements {
		if _, err := r.db.exec(ctx, statement); err != nil {
			return sqlFailure(fmt.Errorf("prepare the checks: %w", err))
		}
	}
	return nil
}

// parquetFiles returns the paths of the Parquet files of an output.
func parquetFiles(made []outputFile) (files []string) {
	for i := range made {
		if isParquet(made[i].name) {
			files = append(files, made[i].path)
		}
	}
	return files
}

// resolveQueries makes the paths in all SQL checks of the phase absolute, and returns the project's files that these
// checks may read.
func (r *checkRun) resolveQueries(ctx context.Context) (sandbox, error) {
	r.queries, r.broken = map[string]*resolvedQuery{}, map[string]error{}
	all := &resolvedQuery{}
	for _, c := range quality.In(r.t.Checks, r.phase) {
		if c.Kind != quality.SQL {
			continue
		}
		query, err := r.db.resolvePaths(ctx, c.Compile(quality.Target{}).Failing, r.t.root, plan.Source{})
		if err != nil {
			r.broken[c.Name] = err
			continue
		}
		r.queries[c.Name] = query
		all.reads = all.reads || query.reads
		all.paths = append(all.paths, query.paths...)
	}
	return r.projectFiles(r.t, all)
}

// sql executes a check that is a query, or that compiles to one.
func (r *checkRun) sql(ctx context.Context, c *quality.Check) (event.CheckResult, error) {
	if err := r.broken[c.Name]; err != nil {
		return event.CheckResult{}, err
	}
	if r.phase == quality.Post && c.Kind != quality.SQL && !slices.ContainsFunc(r.made, func(f outputFile) bool { return isParquet(f.name) }) {
		return event.CheckResult{}, permanent(CodeCheckError, "the output has no Parquet files, so it has no rows to check")
	}
	target := quality.Target{Table: r.asset, Now: r.w.cfg.Clock.Now(), Previous: -1, Stored: r.stored}
	if previous := r.t.task.PreviousRows; previous != nil {
		target.Previous = *previous
	}
	compiled := c.Compile(target)
	if query := r.queries[c.Name]; query != nil {
		compiled.Failing = query.text
	}
	if c.Kind == quality.Anomaly {
		return r.anomaly(ctx, c, compiled.Value)
	}
	m := quality.Measured{Rows: r.rows}
	if compiled.Count == "" {
		compiled.Count = "SELECT count(*) FROM (\n" + compiled.Failing + "\n) AS failing"
	}
	if err := r.scan(ctx, compiled.Count, &m.Failing); err != nil {
		return event.CheckResult{}, err
	}
	if compiled.Value != "" {
		var value *string
		if err := r.scan(ctx, "SELECT CAST(measured AS VARCHAR) FROM ("+compiled.Value+") AS t(measured)", &value); err != nil {
			return event.CheckResult{}, err
		}
		if value != nil {
			m.Value = *value
		}
	}
	result := c.Judge(compiled, m)
	if m.Failing > 0 && compiled.Value == "" && r.t.Samples > 0 && !r.failedBefore(c.Name) {
		r.keepSample(ctx, compiled.Failing, &result)
	}
	return result, nil
}

// scan executes a query whose result has one row and one column.
func (r *checkRun) scan(ctx context.Context, query string, to any) error {
	if err := r.db.conn.QueryRowContext(ctx, query).Scan(to); err != nil {
		return r.explainMemory(sqlFailure(err))
	}
	return nil
}

// MaxSampleBytes limits the size of a stored sample.
const MaxSampleBytes = 1 << 20

// keepSample stores some of the failing rows, and adds the first one to the message. A sample that
// cannot be stored does not change the verdict.
func (r *checkRun) keepSample(ctx context.Context, failing string, result *event.CheckResult) {
	var first string
	if r.scan(ctx, "SELECT CAST(to_json(failing) AS VARCHAR) FROM (\n"+failing+"\n) AS failing LIMIT 1", &first) == nil {
		const most = 300
		if len(first) > most {
			first = strings.ToValidUTF8(first[:most], "") + ellipsis
		}
		result.Message += "; for example " + first
	}
	file := filepath.Join(r.dir, "checks", result.Name+".parquet")
	for rows := r.t.Samples; rows > 0; rows /= 4 {
		_, err := r.db.exec(ctx, "COPY (SELECT * FROM (\n"+failing+"\n) AS failing LIMIT "+strconv.Itoa(rows)+") TO "+quote(file)+" (FORMAT parquet, COMPRESSION zstd)")
		if err != nil {
			r.log.WarnContext(ctx, "could not write the sample of a check", "check", result.Name, "error", r.masked(err))
			return
		}
		if info, err := os.Stat(file); err == nil && info.Size() <= MaxSampleBytes {
			result.Sample = r.storeSample(ctx, result.Name, file)
			return
		}
	}
}

// storeSample stores a sample in the directory of this execution, and returns its key.
func (a *attempt) storeSample(ctx context.Context, name, file string) string {
	key := a.executionPrefix() + samplesFolder + "/" + name + ".parquet"
	data, err := os.ReadFile(file) //nolint:gosec // a file of this execution
	if err == nil {
		_, err = a.w.cfg.Store.Create(ctx, key, data)
	}
	if err != nil && !errors.Is(err, blob.ErrExists) {
		a.log.WarnContext(ctx, "could not store the sample of a check", "check", name, "error", a.masked(err))
		return ""
	}
	return key
}

// gate returns an error if results fail the task. A failed or broken check of severity CRITICAL fails the task. A
// broken check of severity ERROR fails it only if a retry may repair the check and another attempt is left. The error
// is retryable if no check of severity CRITICAL has failed, and a retry may repair at least one of the broken checks.
// The parameter final contains the broken checks that a retry cannot repair.
func (a *attempt) gate(results []event.CheckResult, final map[string]bool) error {
	var failed, broken []string
	retryable := false
	for i := range results {
		r := &results[i]
		again := r.Broken && !final[r.Name]
		switch {
		case quality.Blocks(r) && !r.Broken:
			failed = append(failed, r.Name+": "+r.Message)
		case quality.Blocks(r), quality.Degrades(r) && again && a.env.Attempt < a.env.MaxAttempts:
			broken = append(broken, r.Name+": "+r.Message)
			retryable = retryable || again
		}
	}
	switch {
	case len(failed) > 0:
		return &failure{CodeCheckFailed, CategoryQuality, false, errors.New(firstOf("failed", failed))}
	case len(broken) > 0:
		return &failure{CodeCheckError, CategoryQuality, retryable, errors.New(firstOf("broken", broken))}
	}
	return nil
}

// firstOf names the first of several checks and counts the others.
func firstOf(verdict string, checks []string) string {
	text := "check " + checks[0]
	if more := len(checks) - 1; more > 0 {
		noun := "check"
		if more > 1 {
			noun = "checks"
		}
		text += fmt.Sprintf("; and %d more %s %s", more, noun, verdict)
	}
	return text
}

// adopt returns the output of an existing marker. The results in the marker become the results of the attempt. The
// marker may lack the results of some checks, because a worker that runs no checks has created it. Then adopt runs
// these checks on the committed files.
func (a *attempt) adopt(ctx context.Context, t *work, m *contract.CommitMarker) (*event.Output, error) {
	a.checkResults, a.codeChanged, a.overruled = slices.Clone(m.Checks), m.CodeChanged, true
	missing := quality.Missing(t.Checks, m.Checks)
	if err := a.gate(m.Checks, nil); err != nil || len(missing) == 0 {
		return m.Output(), err // a blocked output is a candidate for quarantine, even if it has a commit marker
	}
	inputs, err := a.resolve(ctx, t)
	if err != nil {
		return nil, err
	}
	own := []input{{asset: a.asset, parts: []part{{partitionKey: a.env.PartitionKey, marker: m}}}}
	made, err := a.committed(ctx, own)
	if err != nil {
		return nil, err
	}
	for _, phase := range []string{quality.Pre, quality.Post} {
		if err := a.audit(ctx, t, phase, inputs, made, missing); err != nil {
			return m.Output(), err
		}
	}
	return m.Output(), nil
}

// committed fetches the files of a committed output and returns them as if this task had written them. The parameter
// own is the committed output, as an input with one partition.
func (a *attempt) committed(ctx context.Context, own []input) ([]outputFile, error) {
	if err := a.fetch(ctx, own); err != nil {
		return nil, err
	}
	m := own[0].parts[0].marker
	made := make([]outputFile, len(m.Files))
	for i, f := range m.Files {
		path := own[0].parts[0].paths[i]
		made[i] = outputFile{name: f.Name, path: path, stored: true, rows: f.Rows, open: func() (*os.File, error) { return os.Open(path) }} //nolint:gosec // a fetched file
	}
	return made, nil
}

// audited reports whether a marker has a passing result for every blocking check of its asset.
func audited(checks []quality.Check, m *contract.CommitMarker) bool {
	passed := map[string]bool{}
	for i := range m.Checks {
		passed[m.Checks[i].Name] = m.Checks[i].Passed
	}
	return !slices.ContainsFunc(quality.Named(checks, quality.Critical), func(name string) bool { return !passed[name] })
}
