// Package project reads a user's project: servo.yaml, and the assets declared in files below assets/. This package
// is not a stable API.
//
// Reading does not stop at the first problem: [Load] reports all problems at once, each with
// its file, line and column. Files are untrusted, so sizes, counts, depths and aliases are
// limited, and files outside the project's folder are never read.
package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Names in a project.
const (
	ConfigFile = "servo.yaml"
	AssetsDir  = "assets"
)

// Limits of a project.
const (
	MaxFileBytes  = 1 << 20
	MaxTotalBytes = 256 << 20
	MaxFiles      = 100_000 // files and folders below assets/
	MaxAssets     = 20_000
)

// Project is a project as declared by its files.
type Project struct {
	Name string
	// Domain is the tenant and workspace.
	Domain ids.Domain
	// Environment holds the settings of the chosen environment, or of the base.
	Environment Environment
	// Environments are the environments of the project, sorted by name. Each contains all its settings, also those that
	// it takes from the base.
	Environments []Environment
	// Vars are the project's variables by name.
	Vars map[string]plan.Var
	// Root is the absolute path of the project's folder.
	Root string
	// Pools maps the name of a pool to its slots, which limit the number of tasks that run in the pool at once.
	Pools map[string]int32
	// MaxConcurrentTasks limits the number of running tasks of the whole workspace. 0: the default.
	MaxConcurrentTasks int32
	// MaxParallelism limits the number of running tasks of each run. 0: no limit per run.
	MaxParallelism int32
	Workers        Workers
	Defaults       Defaults
	// Data lists the folders whose files queries may read: the folders in `data`, relative to Root, and those in
	// sources.paths. If the project sets no data folder, Data contains "data".
	Data []string
	// Extensions is the folder with the files of DuckDB's extensions. It may be relative to Root.
	Extensions string
	// Publish contains the places where outputs are published. Nil: there are none. The settings of each asset
	// determine whether it is published.
	Publish *release.Places
	// Pricing contains the prices for estimates. Nil: there are none.
	Pricing *estimate.Prices
	// Assets are sorted by key, with the defaults filled in.
	Assets []plan.Asset
	// Schedules are sorted by name.
	Schedules []event.Schedule
	// Channels are sorted by name. Alerts are the rules that send messages to these channels.
	Channels []release.Channel
	Alerts   []event.AlertRule
	// Watched are the deadlines, freshness and SLAs of assets, sorted by asset.
	Watched []event.WatchedAsset
	// Problems is the set of files that have problems.
	Problems map[string]bool
}

// Workers configures the workers on this machine. For a field that is 0, the worker uses its own default.
type Workers struct {
	// Concurrency is the number of tasks to execute at once.
	Concurrency int
	// MemoryLimit is DuckDB's limit in bytes.
	MemoryLimit int64
	// Threads is DuckDB's number of threads.
	Threads int
}

// Defaults are the values of the fields that assets do not set themselves.
type Defaults struct {
	Retries             plan.Retries
	TimeoutSec          int32 // 0: none
	HeartbeatTimeoutSec int32 // 0: the system's default
	Pool                string
	Priority            int32
	// Keep determines which superseded outputs are kept. If Keep.All is set, all logs are also kept.
	Keep plan.Keep
	// KeepLogs is how long to keep logs. 0: the collector's default.
	KeepLogs time.Duration
}

// Ref is a table name in a query.
type Ref struct {
	Catalog string
	Schema  string
	Table   string
	// Offset is the position in the query in bytes. -1: unknown.
	Offset int
}

// SQLParser returns the tables that queries read, except tables that a query defines itself (WITH). The results are
// in the order of the queries; a query that is not a single SELECT has an error in its result. If the parser itself
// fails, SQLParser returns an error, and Load fails.
type SQLParser func(ctx context.Context, queries []string) ([]Parsed, error)

// Parsed contains the tables and files that a query reads, in the order of their offsets, or the error of the query.
type Parsed struct {
	Refs []Ref
	// Lookbacks are the expressions that need rows of earlier days than the partition, in the order of their offsets.
	Lookbacks []Lookback
	Output    Output
	// Variables are the names that the query passes to getvariable, in the order of their offsets.
	Variables []Variable
	// Tree describes the computation of the query.
	Tree *plan.Tree
	// Files are the names of files that the query passes as literals to table functions, such as
	// read_csv('data/x.csv').
	Files []string
	Bad   *SyntaxError
}

// Variable is a variable that a query reads. The name is empty if it is not a literal in the query.
type Variable struct {
	Name   string // in lower case
	Offset int    // in bytes; -1: unknown
}

// Column is a column of a table. Its name is in lower case.
type Column struct {
	Ref
	Name string
}

// Output describes the columns of the result of a query.
type Output struct {
	Named map[string]Origin // the origin of each named column, in lower case
	// Rest are the tables that the result includes with all of their columns, unchanged and under their own names. A
	// column of the result that Named contains has the origin in Named instead.
	Rest []Ref
	// Complete is true if the result has no columns besides those of Named and Rest.
	Complete bool
}

// Origin is the origin of a column's values: a variable, or a column of one of several tables. The zero value means
// that the origin is unknown.
type Origin struct {
	Variable string
	Columns  []Column
	Change   Change
}

// Change says how much the values of a column may differ from their [Origin].
type Change int

// The changes, from the smallest to the greatest.
const (
	Unchanged Change = iota
	Retyped          // the values are equal, but may have another type
	Rewritten        // a conversion may have changed the values, for example an hour to a date
	Hidden           // readers may get another column of this name instead
)

// Lookback is an expression that needs rows of days before the partition. An example is a filter that every row must
// satisfy: day >= getvariable('date') - 7.
type Lookback struct {
	// Offset is the position of the column in the query in bytes.
	Offset   int
	Column   string // the column as it is written
	Variable string // in lower case; "": the expression compares columns
	// Columns are the stored columns to which Column may refer.
	Columns []Column
	// Days lists the names of columns in the expression that must contain the day of the partition; otherwise, the
	// expression is not a lookback. Each item lists the stored columns to which one name may refer: exactly one of them
	// must exist, and contain the day.
	Days [][]Column
	// Window is true if the expression is a window function whose window is ordered by the column.
	Window bool
	// From is the first day that the expression needs, relative to the day of the partition: -7 is a week earlier. 0:
	// unknown.
	From int64
	// Count is the variable of the project that says how many days the expression needs, such as var_days. "": none. If
	// the variable is not an integer, the expression is not a lookback.
	Count string
}

// SyntaxError describes an error in a query.
type SyntaxError struct {
	Offset  int // in bytes
	Message string
}

// Options holds the dependencies of Load.
type Options struct {
	// ParseSQL parses the queries of SQL assets.
	ParseSQL SQLParser
	// CheckBatches examines the queries of assets that set batch. Nil: they are not examined.
	CheckBatches BatchChecker
	// Environment is the name of an environment of servo.yaml. Empty: the base.
	Environment string
	// User replaces $USER in the name of a workspace.
	User string
	// Validate makes Load return a project even if its settings or schedules have problems. Such a project must not
	// run. In this project, an asset is marked as broken only if a problem prevents DuckDB from binding its query.
	Validate bool
}

// Load reads the project in the folder dir. An error of type [Problems] lists problems in the user's files. If Load
// also returns a project, the assets without problems can run.
func Load(ctx context.Context, dir string, o Options) (*Project, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find project folder %s: %w", dir, err)
	}
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open project folder: %w", err)
	}
	p, err := LoadFS(ctx, folder.FS(), root, o)
	return p, errors.Join(err, folder.Close())
}

// LoadFS reads the project in a file system. The parameter root is the path of the project on this machine.
func LoadFS(ctx context.Context, files fs.FS, root string, o Options) (*Project, error) {
	l := newLoader(files, root, o)
	l.readConfig()
	if err := l.readAssets(ctx); err != nil {
		return nil, err
	}
	if err := l.readSchedules(ctx); err != nil {
		return nil, err
	}
	l.unreadable = l.problems.files()
	if err := l.parseQueries(ctx); err != nil {
		return nil, err
	}
	if err := l.parseChecks(ctx); err != nil {
		return nil, err
	}
	l.unbound = l.problems.files()
	l.link()
	if err := l.checkMixing(ctx); err != nil {
		return nil, err
	}
	l.linkSchedules()
	l.linkAlerts()
	l.linkPromises()
	l.fingerprint()
	if len(l.problems) == 0 {
		return &l.project, nil
	}
	problems := l.problems.Sorted()
	bad := problems.files()
	switch {
	case l.options.Validate:
		bad = l.unbound
		l.breakReaders()
	case problems.ofProject():
		return nil, problems
	}
	l.project.breakAssets(bad, append(l.cyclic, l.twice...))
	release.SetCodes(l.project.Assets) // broken assets get no fingerprint
	return &l.project, problems
}

// newLoader returns a loader of a project with the defaults of its settings.
func newLoader(files fs.FS, root string, o Options) *loader {
	l := &loader{files: files, options: o, project: Project{Root: root}}
	l.project.setDefaults()
	return l
}

// setDefaults sets the defaults of servo.yaml.
func (p *Project) setDefaults() {
	p.Domain = ids.Domain{Tenant: "default", Workspace: "default"}
	p.Defaults.Retries = defaultRetries()
	p.Environment.Deploy = DeployAuto
}

// loader reads one project.
type loader struct {
	files     fs.FS
	options   Options
	project   Project
	problems  Problems
	read      int64 // bytes read so far
	pools     []place
	assets    []declared
	schedules []schedule
	alerts    []alertRule
	channels  []string // the names of all channels, including those with problems
	// unreadable contains the files with problems outside of their queries.
	unreadable map[string]bool
	// nameless means that the key of an asset is unknown, because its declaration has a problem.
	nameless bool
	// unbound contains the files whose queries DuckDB cannot bind: files with problems outside of their queries, and
	// files whose queries read unknown tables.
	unbound map[string]bool
	// cyclic are the files of assets on a cycle. twice are the files with assets that another file also declares.
	cyclic, twice []string
	// places are the settings about publishing in servo.yaml. Nil: there are none. published means that servo.yaml has
	// such settings in at least one environment.
	places    *places
	published bool
	// external is the field sources.extensions in servo.yaml. Nil: there is none.
	external *external
}

// place is the position of a word in a file. Lines and columns are counted from 1.
type place struct {
	file         string
	line, column int
	word         string
}

// declared is an asset with the positions of its declarations.
type declared struct {
	plan.Asset
	at place
	// query is where Work.SQL starts in the file.
	query place
	deps  []dep
	// lookbacks are the expressions in the query that need rows of earlier days.
	lookbacks []Lookback
	output    Output
	// files are the files that the query names. code are the patterns in the field `code`.
	files []string
	code  []place
	// contract are the checks that the field `columns` defines. checks are the checks in the field `checks`.
	contract, checks []check
	samples          int
	quarantine       *quarantine // nil: none
	publish          *publish    // nil: publish.select in servo.yaml decides
	promises         promises
	// batchAt is the position of `batch`. partitioned means that the file declares partitions, even if this declaration
	// has a problem. independent means that the author declares that each row depends only on the inputs of its own
	// partition.
	batchAt     place
	partitioned bool
	independent bool
	// uses are the extensions that the query uses.
	uses []place
}

// dep is a dependency and the position of its name, in deps or in the query.
type dep struct {
	key   ids.AssetKey
	at    place
	query bool
	// check means that a check names the dependency.
	check bool
	// mapping determines which partitions are read. If it is nil, the mapping is inferred.
	mapping *space.Map
	// requires is the field `requires`, or "".
	requires string
	// requireQuality is the field require_quality.
	requireQuality bool
}
