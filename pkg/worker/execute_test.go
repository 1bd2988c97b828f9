package worker_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func TestExecutorReadsVerifiedFiles(t *testing.T) {
	store := memblob.New(memblob.Options{})
	inputs := map[string]plan.InputSet{"raw/a": from("raw/a")}
	w := newFixture(t, store, map[string]plan.Work{"raw/a": query("SELECT 1 AS x"), "mart/b": shell(""), "mart/c": shell(""), "mart/d": shell("")},
		task("raw/a", "", nil), task("mart/b", "", inputs, "raw/a"), task("mart/c", "", inputs, "raw/a"), task("mart/d", "", inputs, "raw/a"))
	key := w.run("raw/a").Output.URI + "data.parquet"
	sound := w.read(key)
	var read []string
	w.config.Executor = func(_ context.Context, e worker.Execution) error {
		files, err := e.Files()
		if err != nil {
			return fmt.Errorf("read the inputs: %w", err)
		}
		for _, f := range files {
			content, err := os.ReadFile(f.Path)
			require.NoError(t, err)
			require.Equal(t, key, f.Key)
			read = append(read, string(content))
		}
		_, err = e.Output()
		return err
	}
	_, w.server = w.open(w.config)
	put := func(content string) {
		_, err := store.Put(t.Context(), key, []byte(content))
		require.NoError(t, err)
	}

	put(strings.Repeat("x", len(sound)))
	got := w.failed("mart/b")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.False(t, got.Retryable)
	require.Contains(t, got.Message, "input file "+key+" is damaged")
	require.NoError(t, store.Delete(t.Context(), key))
	got = w.failed("mart/c")
	require.Equal(t, worker.CodeMissingInput, got.Code)
	require.Contains(t, got.Message, key)
	require.Empty(t, read)

	put(sound)
	w.run("mart/d")
	require.Equal(t, []string{sound}, read)
}
