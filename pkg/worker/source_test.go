package worker_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// TestTasksExecuteInTheArchiveOfTheirRelease changes the project's folder after it was packed.
func TestTasksExecuteInTheArchiveOfTheirRelease(t *testing.T) {
	a, err := source.Build(fstest.MapFS{
		"data/x.csv":   {Data: []byte("n\n1\n")},
		"scripts/a.sh": {Data: []byte("cat data/x.csv >$SERVO_OUTPUT/out.txt\n")},
	}, nil)
	require.NoError(t, err)
	w := newFixture(t, nil, map[string]plan.Work{
		"a/query":   query("SELECT * FROM read_csv('data/x.csv')"),
		"a/command": {Command: []string{"sh", "scripts/a.sh"}},
	}, task("a/query", "", nil), task("a/command", "", nil))
	w.file("data/x.csv", "n\n2\n")
	w.plan.Source = a.SHA
	w.storePlan()
	missing := w.failed("a/query")
	require.Equal(t, worker.CodeProjectMissing, missing.Code)
	require.False(t, missing.Retryable)

	_, err = w.store.Create(t.Context(), release.SourceRef(domain, a.SHA), a.Data)
	require.NoError(t, err)
	require.Equal(t, "n\n1\n", w.read(w.run("a/command").Output.URI+"out.txt"))
	require.Equal(t, int64(1), w.run("a/query").Output.RowCount)
	require.NoError(t, w.worker.Close(t.Context()))
	kept, err := os.ReadDir(filepath.Join(w.config.ScratchDir, "source"))
	require.NoError(t, err)
	require.Len(t, kept, 3, "the archive stays for later runs, with its stamps and its lock")
}

func TestDamagedArchivesFailTheTask(t *testing.T) {
	a, err := source.Build(fstest.MapFS{"x": {}}, nil)
	require.NoError(t, err)
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1")}, task("a/b", "", nil))
	w.plan.Source = a.SHA
	w.storePlan()
	_, err = w.store.Create(t.Context(), release.SourceRef(domain, a.SHA), []byte("hello"))
	require.NoError(t, err)
	got := w.failed("a/b")
	require.Equal(t, worker.CodeProjectMissing, got.Code)
	require.Contains(t, got.Message, "damaged")
	require.Contains(t, got.Message, "deploy the project again")
}
