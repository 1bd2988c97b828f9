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
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Binding a query resolves its columns, functions, types and files without executing it. Empty files with the known
// columns replace the inputs of the query. Bind finds the columns of a query's output by binding the query, and reads
// the columns of a command's output from the footers of its files.

// Binding holds the arguments of [Bind].
type Binding struct {
	// Root is the absolute path of the folder with the project's files. Data are the project's data folders.
	Root string
	Data []string
	// Scratch is an empty folder for working files. State is the state folder.
	Scratch, State string
	// Assets are all assets of the project. Bind omits broken assets, and assets that depend on them.
	Assets []plan.Asset
	// Outputs returns the Parquet files of the newest output of an asset. If the parameter all is true, it returns the
	// files of all visible outputs. It returns no files if the asset has no known output.
	Outputs func(ctx context.Context, asset ids.AssetKey, all bool) ([]string, error)
}

// Bound is the result of [Bind].
type Bound struct {
	// Problems are the errors of the queries that would fail, sorted so that upstream assets come first.
	Problems []BindProblem
	// Skipped are the assets whose queries were not bound, because they read assets with unknown columns, or files that do
	// not exist. Unknown are the assets whose columns stay unknown until their first run: a command computes the asset, its
	// query uses extensions, or its query reads a file that does not exist.
	Skipped, Unknown []ids.AssetKey
	// Missing are the files of extensions that do not exist on this machine. Workers may have them.
	Missing []BindProblem
}

// BindProblem is an error in a query, with its place in the user's file.
type BindProblem struct {
	File                string
	Line, Column        int
	Message, Suggestion string
}

// bindMemory is a memory limit that is enough to bind any query and to read the start of files.
const bindMemory = "512MB"

// Bind binds the queries of a project, each after its upstream queries. It executes no query. Errors of queries are
// part of the result.
func Bind(ctx context.Context, b Binding) (_ *Bound, err error) {
	bd, err := bindAll(ctx, b, nil)
	if err != nil {
		return nil, fmt.Errorf("bind queries: %w", err)
	}
	if err := bd.close(); err != nil {
		return nil, fmt.Errorf("bind queries: %w", err)
	}
	slices.SortFunc(bd.result.Unknown, plan.CompareKeys)
	bd.result.Unknown = slices.Compact(bd.result.Unknown)
	return bd.result, nil
}

// bindAll binds the queries of a project. It also finds the columns of the given assets, even if no query reads these
// assets. The caller must close the result.
func bindAll(ctx context.Context, b Binding, read []ids.AssetKey) (_ *binder, err error) {
	graph, err := plan.NewGraph(sound(b.Assets))
	if err != nil {
		return nil, err
	}
	order, err := graph.Topological()
	if err != nil {
		return nil, err
	}
	bd := &binder{
		Binding: b, queries: map[ids.AssetKey]*resolvedQuery{}, read: map[string]bool{}, known: map[string]*schema{},
		isExternal: map[ids.AssetKey]bool{}, result: &Bound{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, bd.close())
		}
	}()
	for _, key := range read {
		bd.read[key.SQL()] = true
	}
	if err := bd.open(ctx); err != nil {
		return nil, err
	}
	assets := make([]*plan.Asset, len(order))
	for i, key := range order {
		assets[i], _ = graph.Asset(key)
	}
	if err := bd.confine(ctx, assets); err != nil {
		return nil, err
	}
	for _, asset := range assets {
		if err := bd.bind(ctx, asset); err != nil {
			return nil, fmt.Errorf("query of %s: %w", asset.Key, err)
		}
	}
	return bd, nil
}

// sound returns the assets that are not broken and depend on no broken asset.
func sound(assets []plan.Asset) []plan.Asset {
	assets = slices.DeleteFunc(slices.Clone(assets), func(a plan.Asset) bool { return a.Broken != "" })
	for {
		known := make(map[ids.AssetKey]bool, len(assets))
		for i := range assets {
			known[assets[i].Key] = true
		}
		missing := func(dep ids.AssetKey) bool { return !known[dep] }
		assets = slices.DeleteFunc(assets, func(a plan.Asset) bool { return slices.ContainsFunc(a.Deps, missing) })
		if len(assets) == len(known) {
			return assets
		}
	}
}

// binder binds the queries of one project.
type binder struct {
	Binding
	// The database users is sandboxed, and executes the user's queries. The database own executes only the binder's
	// statements.
	users, own *database
	queries    map[ids.AssetKey]*resolvedQuery
	read       map[string]bool       // the tables that queries read
	known      map[string]*schema    // the schemas by "namespace.name"
	isExternal map[ids.AssetKey]bool // whether the query of an asset uses extensions: then its columns come from outputs
	files      int                   // the number of files that have been written
	result     *Bound
}

// schema describes how the columns of an asset were found.
type schema struct {
	asset *plan.Asset
	// made means that the columns were read from outputs, and not from a query. The field all means that every visible
	// output was read, and not only the newest one.
	made, all bool
}

func (b *binder) open(ctx context.Context) (err error) {
	if b.users, err = openDatabase(ctx, b.Scratch, bindMemory, 1); err != nil {
		return err
	}
	b.own, err = openDatabase(ctx, b.Scratch, bindMemory, 1)
	return err
}

func (b *binder) close() error {
	var errs []error
	for _, d := range []*database{b.users, b.own} {
		if d != nil {
			errs = append(errs, d.close())
		}
	}
	return errors.Join(errs...)
}

// confine parses the queries, and confines the database to the files that these queries may read.
func (b *binder) confine(ctx context.Context, assets []*plan.Asset) error {
	var paths []string
	reads := false
	for _, asset := range assets {
		if asset.Work.SQL == "" {
			continue
		}
		query, err := b.users.resolvePaths(ctx, strings.TrimRight(asset.Work.SQL, "; \t\r\n"), b.Root, asset.Query)
		if err != nil {
			continue // the project's loader reports an invalid query
		}
		b.queries[asset.Key] = query
		paths = append(paths, query.paths...)
		reads = reads || query.reads
		for _, table := range query.tables {
			b.read[table] = true
		}
	}
	var readable sandbox
	if reads {
		state, _ := os.Stat(b.State) // nil if there is no state folder yet
		var err error
		if readable, err = dataFiles(b.Root, &plan.Plan{Data: b.Data}, state, paths); err != nil {
			return err
		}
	}
	if _, err := b.users.exec(ctx, "SET VARIABLE servo_root = "+quote(b.Root)); err != nil {
		return err
	}
	readable.directories = append(readable.directories, b.Scratch)
	return b.users.lock(ctx, readable)
}

// bind finds the columns of an asset, and reports the errors of its query.
func (b *binder) bind(ctx context.Context, asset *plan.Asset) error {
	if asset.Work.SQL == "" {
		return b.describeOutput(ctx, asset, false)
	}
	query := b.queries[asset.Key]
	if asset.ReadsItself() {
		if err := b.defineDeclared(ctx, asset); err != nil {
			return err
		}
	}
	if query == nil {
		return nil
	}
	if done, err := b.external(ctx, asset, query); done || err != nil {
		return err
	}
	if b.missing(asset, query) {
		return nil
	}
	unset, err := b.setPartition(ctx, asset)
	if err != nil {
		return err
	}
	defer unset()
	statement := query.description()
	columns, err := b.users.describe(ctx, statement)
	if err != nil && ctx.Err() == nil && b.widen(ctx, query) {
		columns, err = b.users.describe(ctx, statement)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return b.define(ctx, &schema{asset: asset}, columns)
	case b.report(asset, &statement, err):
		return nil
	}
	b.result.Skipped = append(b.result.Skipped, asset.Key)
	if err := b.describeOutput(ctx, asset, false); err != nil {
		return err
	}
	if table := asset.Key.SQL(); b.read[table] && b.known[table] == nil {
		b.result.Unknown = append(b.result.Unknown, asset.Key)
	}
	return nil
}

// missing reports whether the query of an asset reads upstream assets whose columns are not known. If so, it adds the
// asset to b.result.Skipped. It adds an upstream asset to b.result.Unknown if no query determines the columns of that
// asset.
func (b *binder) missing(asset *plan.Asset, query *resolvedQuery) bool {
	missing := false
	for _, dep := range asset.Deps {
		if b.known[dep.SQL()] != nil || !slices.Contains(query.tables, dep.SQL()) {
			continue
		}
		missing = true
		if of := b.queries[dep]; of == nil || b.isExternal[dep] {
			b.result.Unknown = append(b.result.Unknown, dep)
		}
	}
	if missing {
		b.result.Skipped = append(b.result.Skipped, asset.Key)
	}
	return missing
}

// setPartition sets the project's variables and the variables of the asset's first partition. unset resets the
// variables of the partition.
func (b *binder) setPartition(ctx context.Context, asset *plan.Asset) (unset func(), err error) {
	for _, statement := range setVars(asset.Work.Vars) {
		if _, err := b.users.exec(ctx, statement); err != nil {
			return func() {}, err
		}
	}
	if asset.Partitions == nil {
		return func() {}, nil
	}
	var names []string
	unset = func() {
		for _, name := range names {
			_, _ = b.users.exec(ctx, "RESET VARIABLE "+quoteName(name))
		}
	}
	for i := range asset.Partitions.Dimensions {
		d := &asset.Partitions.Dimensions[i]
		statements := []string{}
		names = append(names, partitionVariable(&asset.Work, d.Name))
		value := d.Start
		if d.IsTime() {
			names = append(names, d.Name+"_start", d.Name+"_end")
			statements = append(statements, setInstant(d.Name+"_start", time.Unix(0, 0)), setInstant(d.Name+"_end", time.Unix(0, 0)))
		} else if value = "x"; len(d.Values) > 0 {
			value = d.Values[0]
		}
		statement, err := setPartitions(&asset.Work, d.Name, ids.Partition{d.Name: value})
		if err != nil {
			return unset, err
		}
		for _, s := range append(statements, statement) {
			if _, err := b.users.exec(ctx, s); err != nil {
				return unset, err
			}
		}
	}
	return unset, nil
}

// widen looks for partitioned inputs of the query whose columns have so far been read only from the newest output. It
// reads the columns of all outputs of these inputs, and reports whether it has read any.
func (b *binder) widen(ctx context.Context, query *resolvedQuery) (changed bool) {
	for _, table := range query.tables {
		if s := b.known[table]; s != nil && s.made && !s.all && s.asset.Partitions != nil {
			changed = b.describeOutput(ctx, s.asset, true) == nil || changed
		}
	}
	return changed
}

// describeOutput reads the columns of an asset from its stored output, and defines the asset's
// table with these columns. A missing or unreadable output is not an error.
func (b *binder) describeOutput(ctx context.Context, asset *plan.Asset, all bool) error {
	if b.Outputs == nil || !b.read[asset.Key.SQL()] {
		return nil
	}
	files, err := b.Outputs(ctx, asset.Key, all)
	if err != nil || len(files) == 0 {
		return ctx.Err()
	}
	columns, err := b.own.describe(ctx, statement{text: "DESCRIBE SELECT * FROM " + readParquet(files)})
	if err != nil {
		return ctx.Err() // a run that reads the file reports the error
	}
	return b.define(ctx, &schema{asset: asset, made: true, all: all}, columns)
}

// defineDeclared defines the table of an asset that reads itself, with the columns that the asset
// declares.
func (b *binder) defineDeclared(ctx context.Context, asset *plan.Asset) error {
	columns, err := b.own.describe(ctx, statement{text: "DESCRIBE " + plan.EmptyRows(asset.Work.Checks, nil)})
	if err != nil {
		return ctx.Err() // the type is unknown, which the project's loader reports
	}
	return b.define(ctx, &schema{asset: asset}, columns)
}

// define creates an empty table for an asset. Its columns have the types that DuckDB returns when it reads them from a
// Parquet file. If a column cannot be stored in a file, the columns of the asset stay unknown.
func (b *binder) define(ctx context.Context, s *schema, columns []resultColumn) error {
	if !b.read[s.asset.Key.SQL()] {
		return nil
	}
	columns = withPartitionColumns(s.asset, columns)
	list, declared := make([]string, len(columns)), quality.DeclaredIntegers(s.asset.Work.Checks)
	for i, c := range columns {
		kind, _ := storedType(c, declared)
		list[i] = "CAST(NULL AS " + kind + ") AS " + quoteName(c.name)
	}
	b.files++
	file := filepath.Join(b.Scratch, strconv.Itoa(b.files)+".parquet")
	if _, err := b.own.exec(ctx, "COPY (SELECT "+strings.Join(list, ", ")+" WHERE false) TO "+quote(file)+" (FORMAT parquet)"); err != nil {
		return ctx.Err()
	}
	name := quoteName(s.asset.Key.Namespace)
	for _, statement := range []string{
		"CREATE SCHEMA IF NOT EXISTS " + name,
		"CREATE OR REPLACE VIEW " + name + "." + quoteName(s.asset.Key.Name) + " AS SELECT * FROM " + readParquet([]string{file}),
	} {
		if _, err := b.users.exec(ctx, statement); err != nil {
			return err
		}
	}
	b.known[s.asset.Key.SQL()] = s
	return nil
}

// report adds an error of a query to the problems. It returns false, and adds nothing, if the error might not occur in a
// run, or might occur only for some partitions.
func (b *binder) report(asset *plan.Asset, s *statement, err error) bool {
	e, ok := asQueryError(err, s.text)
	if !ok {
		return false
	}
	offset := s.origin(e.position)
	switch e.kind {
	case "Binder", "Catalog", "Not implemented":
	case kindPermission, "IO", "Invalid Input":
		// A file may be missing if its name depends on the partition.
		i := s.query.literalIn(e.message)
		if i < 0 {
			return false
		}
		offset = s.query.literals[i].at
	default:
		return false
	}
	line, column, _ := locate(s.query.written, max(offset, 0), asset.Query)
	problem := BindProblem{File: asset.File, Line: line, Column: column}
	message, more, _ := strings.Cut(strings.TrimSpace(e.message), "\n")
	problem.Message = strings.TrimRight(strings.ReplaceAll(message, b.Root+"/", ""), "!")
	problem.Suggestion = b.suggestion(s.query, message, more)
	notUsed, _ := errors.AsType[*failure](explainExternal(&queryError{kind: e.kind, message: e.message, position: -1}, &asset.Work))
	switch {
	case notUsed != nil:
		problem.Message, problem.Suggestion = cutLast(notUsed.Error(), ": add ")
		problem.Suggestion = "add " + problem.Suggestion
	case strings.HasSuffix(e.message, loadWithCommand):
		problem.Suggestion = loadWithCommand
	case e.kind == kindPermission && remoteFile(e.message):
		problem.Suggestion = "a query has no network access: " + loadWithCommand
	case e.kind == kindPermission:
		problem.Suggestion = "queries may read files in the project's data folders only: \"data\", or the folders that servo.yaml lists under `data`. Files whose names begin with a dot are hidden, and a pattern must not match them"
	}
	b.result.Problems = append(b.result.Problems, problem)
	return true
}

// ambiguous returns advice about a column name that is ambiguous because inputs of the query have a partition column
// with this name. It returns nil if no input has one.
func (b *binder) ambiguous(query *resolvedQuery, message string) []string {
	var offer []string
	for _, table := range query.tables {
		if s := b.known[table]; s != nil && slices.ContainsFunc(s.asset.PartitionColumns(), func(c space.Column) bool {
			return strings.Contains(strings.ToLower(message), `"`+c.Name+`"`)
		}) {
			offer = append(offer, s.asset.Key.String())
		}
	}
	if len(offer) == 0 {
		return nil
	}
	slices.Sort(offer)
	return []string{"qualify the column with its table", "the dimensions of " + strings.Join(slices.Compact(offer), ", ") +
		" are columns, too; partition_columns: false turns this off"}
}

// suggestion returns the names that DuckDB suggests. It also names the inputs whose columns were read from outputs,
// because a run may change these columns.
func (b *binder) suggestion(query *resolvedQuery, message, more string) string {
	var parts []string
	more, _, _ = strings.Cut(more, "\n")
	if candidates, ok := strings.CutPrefix(more, "Candidate bindings: "); ok {
		parts = append(parts, "did you mean "+candidates+"?")
	}
	if strings.HasPrefix(message, "Ambiguous reference") {
		parts = append(parts, b.ambiguous(query, message)...)
	}
	for _, table := range query.tables {
		switch s := b.known[table]; {
		case s == nil || !s.made:
		case s.all:
			parts = append(parts, "the columns of "+s.asset.Key.String()+" are the columns of its outputs")
		default:
			parts = append(parts, "the columns of "+s.asset.Key.String()+" are the columns of its newest output")
		}
	}
	return strings.Join(slices.Compact(parts), "; ")
}
