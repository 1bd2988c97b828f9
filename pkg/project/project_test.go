package project_test

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/projecttest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/space"
)

var options = project.Options{ParseSQL: projecttest.Parse}

// archive returns the files of a txtar archive and the problems that it expects.
func archive(t *testing.T, name string) (files fstest.MapFS, problems string) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	require.NoError(t, err)
	files = fstest.MapFS{}
	for _, f := range a.Files {
		if f.Name == "problems" {
			problems = strings.TrimSpace(string(f.Data))
			continue
		}
		files[f.Name] = &fstest.MapFile{Data: f.Data}
	}
	return files, problems
}

var rewrite = flag.Bool("rewrite", false, "write the reported problems to testdata/problems")

// TestLoadReportsEveryProblem reads testdata/problems. Each file there contains a project and the problems that Load
// must report for it.
func TestLoadReportsEveryProblem(t *testing.T) {
	names, err := filepath.Glob("testdata/problems/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			files, want := archive(t, name)
			_, err := project.LoadFS(t.Context(), files, "/p/demo", options)
			var problems project.Problems
			require.ErrorAs(t, err, &problems)
			if *rewrite {
				rewriteProblems(t, name, err.Error())
				return
			}
			require.Equal(t, want, err.Error())
		})
	}
}

func rewriteProblems(t *testing.T, name, problems string) {
	t.Helper()
	a, err := txtar.ParseFile(name)
	require.NoError(t, err)
	for i, f := range a.Files {
		if f.Name == "problems" {
			a.Files[i].Data = []byte(problems + "\n")
		}
	}
	require.NoError(t, os.WriteFile(name, txtar.Format(a), 0o600))
}

func TestLoadReadsSchedules(t *testing.T) {
	files, _ := archive(t, "testdata/good.txtar")
	p, err := project.LoadFS(t.Context(), files, "/p/demo", options)
	require.NoError(t, err)
	require.Equal(t, []event.Schedule{
		{
			Name: "nightly", Cron: "30 2 * * 1-5", Timezone: "Europe/Paris", Gap: "skip", Repeated: "both", JitterSec: 300,
			Start: event.At(time.Date(2024, 12, 31, 23, 0, 0, 0, time.UTC)), End: event.At(time.Date(2035, 1, 1, 5, 0, 0, 0, time.UTC)),
			Run: event.RunSpec{
				Assets: []string{"clean/daily", "raw/*"}, Partitions: []string{"date=latest,2012-01-01"}, AllowIncomplete: true,
				Labels: map[string]string{"team": "data"}, MaxParallelism: 8,
			},
			Overlap: "buffer_one", CatchUp: "latest", WindowSec: 86_400, PauseAfterFailures: 5, SLASec: 7200, Paused: true,
		},
		{Name: "often", EverySec: 5_400, Run: event.RunSpec{Assets: []string{"*"}, Upstream: true, Only: "missing"}},
	}, p.Schedules)
}

// A project with a broken schedule must not be deployable, because its release would remove the schedule.
func TestBrokenScheduleStopsProject(t *testing.T) {
	files, _ := archive(t, "testdata/good.txtar")
	files["schedules/often.yml"] = &fstest.MapFile{Data: []byte("often: {every: 1s, run: {assets: [raw/weather]}}")}
	p, err := project.LoadFS(t.Context(), files, "/p/demo", options)
	require.ErrorContains(t, err, "schedules/often.yml:1:16: every is 1s")
	require.Nil(t, p)
}

func TestLoadFillsInDefaults(t *testing.T) {
	files, _ := archive(t, "testdata/good.txtar")
	p, err := project.LoadFS(t.Context(), files, "/p/demo", options)
	require.NoError(t, err)
	require.Equal(t, "weather_demo", p.Name)
	require.Equal(t, ids.Domain{Tenant: "acme", Workspace: "dev"}, p.Domain)
	require.Equal(t, "/p/demo", p.Root)
	require.Equal(t, map[string]int32{"heavy": 2, "light": 20}, p.Pools)
	require.Equal(t, int32(500), p.MaxConcurrentTasks)
	require.Equal(t, int32(16), p.MaxParallelism)
	require.Equal(t, project.Workers{Concurrency: 4, MemoryLimit: 1_000_000_000, Threads: 2}, p.Workers)

	byKey := map[string]plan.Asset{}
	var order []string
	for _, a := range p.Assets {
		require.Len(t, a.Code, 16)
		a.Code = ""
		byKey[a.Key.String()] = a
		order = append(order, a.Key.String())
	}
	require.Equal(t, []string{"analytics/monthly", "clean/daily", "default/loose", "list/one", "list/two", "raw/weather"}, order)

	policy := plan.Retries{MaxAttempts: 2, InitialDelayMS: 5_000, MaxDelayMS: 3_600_000, MultiplierPermille: 2_000, JitterPermille: 100, UserErrors: true}
	require.Equal(t, plan.Asset{
		Key: ids.AssetKey{Namespace: "raw", Name: "weather"}, File: "assets/deeply/nested/raw/weather.sql",
		Query:       plan.Source{File: "assets/deeply/nested/raw/weather.sql", Line: 1, Column: 1},
		Work:        plan.Work{SQL: "SELECT * FROM read_csv('data/weather.csv')"},
		WorkerQueue: "default", Pool: "light", Priority: 1, TriggerRule: "all_success",
		Retries: policy, TimeoutSec: 600, HeartbeatTimeoutSec: 30,
	}, byKey["raw/weather"], "only defaults, and a key from the path")

	require.Equal(t, plan.Asset{
		Key: ids.AssetKey{Namespace: "clean", Name: "daily"}, File: "assets/anything.sql", Query: plan.Source{File: "assets/anything.sql", Line: 19, Column: 1},
		Description: "Days of weather.", Owners: []string{"me@example.com"}, Tags: []string{"a", "b"},
		Deps: []ids.AssetKey{{Namespace: "default", Name: "loose"}, {Namespace: "raw", Name: "weather"}},
		Work: plan.Work{
			SQL:        "WITH w AS (SELECT * FROM raw.weather)\nSELECT * FROM w",
			Dimensions: map[string]string{"date": "DATE"},
		},
		Partitions: space.New(space.Dimension{
			Name: "date", Kind: space.Daily, Start: "2012-01-01", End: "2015-12-31", Timezone: "Europe/Paris",
		}),
		WorkerQueue: "big", Pool: "heavy", Priority: -5, TriggerRule: "all_done",
		Retries:    plan.Retries{MaxAttempts: 5, InitialDelayMS: 5_000, MaxDelayMS: 120_000, MultiplierPermille: 1_500, JitterPermille: 0, UserErrors: true},
		TimeoutSec: 5400, HeartbeatTimeoutSec: 60,
	}, byKey["clean/daily"], "explicit fields win; retries merge field by field")

	require.Equal(t, plan.Work{
		Command: []string{"python3", "x.py", "--flag"}, InputFormat: "csv", Env: map[string]string{"LEVEL": "3", "NAME": "x"},
		Secrets: map[string]string{"TOKEN": "file:api-token", "KEY": "gcp:projects/p/secrets/k"},
	}, byKey["list/one"].Work)
	require.Equal(t, []string{"shared"}, byKey["list/two"].Tags, "an alias expands to its target")
	require.Equal(t, []ids.AssetKey{{Namespace: "list", Name: "one"}}, byKey["list/two"].Deps)
	require.Equal(t, plan.Work{Command: []string{"y"}, Output: plan.OutputNone}, byKey["list/two"].Work)
}

func TestLoadAcceptsEmptyConfig(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":     {Data: []byte("# nothing yet\n")},
		"assets/a/b.sql": {Data: []byte("\xef\xbb\xbf/* servo\r\nretries: {max_attempts: 3, initial_delay: 2h}\r\n*/\r\nSELECT 1;\r\n")},
	}
	p, err := project.LoadFS(t.Context(), files, "/p/my project", options)
	require.NoError(t, err)
	require.Equal(t, "my project", p.Name)
	require.Equal(t, ids.Domain{Tenant: "default", Workspace: "default"}, p.Domain)
	require.Equal(t, "SELECT 1", p.Assets[0].Work.SQL)
	require.Equal(t, plan.Retries{
		MaxAttempts: 3, InitialDelayMS: 7_200_000, MaxDelayMS: 7_200_000, MultiplierPermille: 2_000, JitterPermille: 100, UserErrors: true,
	}, p.Assets[0].Retries, "no delay exceeds max_delay")
}

func TestRetriesOfUserErrorsAreOptIn(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":          {Data: []byte("name: x\n")},
		"assets/a/asks.sql":   {Data: []byte("/* servo\nretries: {initial_delay: 1s}\n*/\nSELECT 1")},
		"assets/a/silent.sql": {Data: []byte("SELECT 1")},
	}
	p, err := project.LoadFS(t.Context(), files, "/p", options)
	require.NoError(t, err)
	policy := plan.Retries{MaxAttempts: 3, InitialDelayMS: 10_000, MaxDelayMS: 3_600_000, MultiplierPermille: 2_000, JitterPermille: 100}
	require.Equal(t, policy, p.Assets[1].Retries)
	policy.InitialDelayMS, policy.UserErrors = 1_000, true
	require.Equal(t, policy, p.Assets[0].Retries)
}

func TestLoadReportsMissingProject(t *testing.T) {
	_, err := project.Load(t.Context(), t.TempDir(), options)
	require.ErrorContains(t, err, "servo.yaml:1:1: no servo.yaml in /")
	require.ErrorContains(t, err, "assets:1:1: the project has no assets folder: put .sql and .yaml files into it")
	_, err = project.Load(t.Context(), filepath.Join(t.TempDir(), "none"), options)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestLoadRejectsBinaryAndLargeFiles(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":           {},
		"assets/a/large.sql":   {Data: make([]byte, project.MaxFileBytes+1)},
		"assets/a/latin.sql":   {Data: []byte("SELECT 1,\n  'caf\xe9'")},
		"assets/a/zero.sql":    {Data: []byte("SELECT \x00")},
		"assets/a/pipe.sql":    {Mode: fs.ModeNamedPipe},
		"assets/a/README.md":   {Data: []byte("\xff")},
		"assets/.hidden/x.sql": {Data: []byte("nonsense")},
		"assets/a/.x.sql":      {Data: []byte("nonsense")},
	}
	_, err := project.LoadFS(t.Context(), files, "/p", options)
	require.EqualError(t, err, `assets/a/large.sql:1:1: the file is larger than 1048576 bytes
assets/a/latin.sql:2:7: byte 0xe9 is not UTF-8: save it as UTF-8
assets/a/pipe.sql:1:1: not a regular file
assets/a/zero.sql:1:8: the file contains a zero byte, so it is not text`)
}

func TestSymbolicLinksStayInsideProject(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret.sql"), []byte("SELECT 'secret'"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "servo.yaml"), nil, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "assets", "a"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "query.txt"), []byte("SELECT 1"), 0o600))
	link := func(target, name string) {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, "assets", "a", name)))
	}
	link("../../query.txt", "inside.sql")
	p, err := project.Load(t.Context(), dir, options)
	require.NoError(t, err)
	require.Equal(t, "SELECT 1", p.Assets[0].Work.SQL)
	require.Equal(t, dir, p.Root)

	link(filepath.Join(outside, "secret.sql"), "absolute.sql")
	link("../../../../../../../../"+filepath.Join(outside, "secret.sql"), "relative.sql")
	link(filepath.Join(outside, "secret.sql"), "notes.txt")
	link("nothing.sql", "broken.sql")
	link("../../assets", "loop")
	_, err = project.Load(t.Context(), dir, options)
	require.EqualError(t, err, `assets/a/absolute.sql:1:1: the symbolic link points outside the project or is broken: copy the file into the project
assets/a/broken.sql:1:1: the symbolic link points outside the project or is broken: copy the file into the project
assets/a/loop:1:1: symbolic links to folders are not followed: move the folder to where the link is
assets/a/relative.sql:1:1: the symbolic link points outside the project or is broken: copy the file into the project`)
}

func TestLoadFailsIfParserFails(t *testing.T) {
	files := fstest.MapFS{"servo.yaml": {}, "assets/a/b.sql": {Data: []byte("SELECT 1")}}
	broken := errors.New("parser failed")
	_, err := project.LoadFS(t.Context(), files, "/p", project.Options{
		ParseSQL: func(context.Context, []string) ([]project.Parsed, error) { return nil, broken },
	})
	require.ErrorIs(t, err, broken)
}
