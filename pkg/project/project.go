// Package project reads a user's project: servo.yaml, and the assets declared in
// files below assets/.
//
// Reading never stops at the first problem: [Load] reports all of them at once,
// each with its file, line and column. Files come from strangers, so sizes,
// counts, depths and aliases have limits, and nothing outside the project's
// folder is read.
package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
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

// Project is a project as its files declare it.
type Project struct {
	Name string
	// Domain is the tenant and workspace.
	Domain ids.Domain
	// Root is the absolute path of the project's folder.
	Root string
	// Pools are the named limits on tasks that run at once: name → slots.
	Pools map[string]int32
	// MaxConcurrentTasks limits the whole workspace; 0: the default.
	MaxConcurrentTasks int32
	// MaxParallelism limits each run; 0: no limit of its own.
	MaxParallelism int32
	Workers        Workers
	Defaults       Defaults
	// Data are the folders, relative to Root, whose files queries may read; empty: "data".
	Data []string
	// Assets are sorted by key, with the defaults filled in.
	Assets []plan.Asset
}

// Workers is how workers on this machine execute tasks. Zero: the worker decides.
type Workers struct {
	// Concurrency is how many tasks are executed at once.
	Concurrency int
	// MemoryLimit is DuckDB's, in bytes.
	MemoryLimit int64
	// Threads are DuckDB's.
	Threads int
}

// Defaults are what an asset has that says nothing else.
type Defaults struct {
	Retries             plan.Retries
	TimeoutSec          int32 // 0: none
	HeartbeatTimeoutSec int32 // 0: the system's default
	Pool                string
	Priority            int32
	// Keep says which superseded outputs are kept. With All, logs are kept, too.
	Keep plan.Keep
	// KeepLogs is how long logs are kept; 0: the default of the collector.
	KeepLogs time.Duration
}

// Ref is a table that a query names.
type Ref struct {
	Catalog string
	Schema  string
	Table   string
	// Offset is where it stands in the query, in bytes; -1: unknown.
	Offset int
}

// SQLParser finds the tables that queries read, each of which should be one
// SELECT statement, without the tables that a query defines itself (WITH). There
// is one answer a query. An error is the parser's own failure, and ends the load.
type SQLParser func(ctx context.Context, queries []string) ([]Parsed, error)

// Parsed is what a query reads, by offset, or what is wrong with it.
type Parsed struct {
	Refs []Ref
	// Lookbacks are filters that require rows from before the partition, by offset.
	Lookbacks []Lookback
	Bad       *SyntaxError
}

// Lookback is a filter whose lower bound of a column is at least a day before a variable, such as
// day >= getvariable('date') - 7. Every row of a result has to meet it.
type Lookback struct {
	// Offset is where the column stands in the query, in bytes.
	Offset   int
	Column   string // as it is written
	Variable string // in lower case
	// Tables are the tables that the column's values come from.
	Tables []Ref
}

// SyntaxError says what is wrong with a query, and where.
type SyntaxError struct {
	Offset  int // in bytes
	Message string
}

// Options are what Load needs besides files.
type Options struct {
	// ParseSQL parses the queries of SQL assets.
	ParseSQL SQLParser
}

// Load reads the project in the folder dir. An error that is a [Problems] is
// about the user's files; if the project is not nil then, its assets without problems
// can be run.
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

// LoadFS reads the project in a file system, whose place on this machine is root.
func LoadFS(ctx context.Context, files fs.FS, root string, o Options) (*Project, error) {
	l := loader{files: files, parse: o.ParseSQL, project: Project{Root: root, Domain: ids.Domain{Tenant: "default", Workspace: "default"}}}
	l.project.Defaults.Retries = defaultRetries()
	l.readConfig()
	if err := l.readAssets(ctx); err != nil {
		return nil, err
	}
	l.unreadable = l.problems.files()
	if err := l.parseQueries(ctx); err != nil {
		return nil, err
	}
	l.link()
	if len(l.problems) == 0 {
		return &l.project, nil
	}
	problems := l.problems.Sorted()
	if problems.ofProject() {
		return nil, problems
	}
	l.project.breakAssets(problems, append(l.cyclic, l.twice...))
	return &l.project, problems
}

// loader reads one project.
type loader struct {
	files    fs.FS
	parse    SQLParser
	project  Project
	problems Problems
	read     int64 // bytes so far
	pools    []place
	assets   []declared
	// unreadable are the files whose declarations have problems, apart from their queries.
	unreadable map[string]bool
	// cyclic are the files of the assets on a cycle, and twice those of assets that another file declares, too.
	cyclic, twice []string
}

// place is where a word stands in a file; lines and columns count from 1.
type place struct {
	file         string
	line, column int
	word         string
}

// declared is an asset, and where it says what.
type declared struct {
	plan.Asset
	at place
	// query is where Work.SQL starts.
	query place
	deps  []dep
	// lookbacks are the filters of the query that require rows of earlier days.
	lookbacks []Lookback
}

// dep is a dependency, and where it is named: in deps, or in the query.
type dep struct {
	key   ids.AssetKey
	at    place
	query bool
}
