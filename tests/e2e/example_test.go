package e2e_test

import (
	"database/sql"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2" // DuckDB's own driver
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// inExample makes the test use the example's domain.
func inExample(t *testing.T) {
	t.Helper()
	before := acme
	acme = ids.Domain{Tenant: "default", Workspace: "default"}
	t.Cleanup(func() { acme = before })
}

// The example runs twice: without faults, and with faults. With faults, services are killed and restarted at random,
// half of the notifications are lost, and a third of the deliveries are repeated. Both runs must have the same
// result.
func TestExampleHasSameResultWithFaults(t *testing.T) {
	inExample(t)
	days, kills := "date=2012-01-01..2012-01-14", 4
	if *full {
		days, kills = "date=2012-01-01..2012-03-31", 20
	}
	calm := startCloud(t, 0, 0, "1s")
	run := calm.weather(days)
	calm.requireSucceeded(run)
	want := calm.outputs(run)

	c := startCloud(t, 500, 300, "1s")
	run = c.weather(days)
	services := []string{"compactor", "dispatcher", "sweeper"}
	for killed := range kills {
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Duration(c.pick(200))*time.Millisecond))
		name := services[c.pick(len(services))]
		if killed < len(services) {
			name = services[killed] // each service is killed at least once
		}
		c.kill(name)
		c.start(name)
	}
	c.requireSucceeded(run)
	require.Equal(t, want, c.outputs(run))
	require.Equal(t, map[string]int{"SUCCEEDED": len(want)}, c.askDuckDB("SELECT state, count(*) FROM tasks WHERE kind = 'task' GROUP BY 1"))
	require.Equal(t, map[string]int{"SUCCEEDED": 1}, c.askDuckDB("SELECT state, count(*) FROM runs GROUP BY 1"))
}

// pick returns a random number from 0 to n-1.
func (c *cloud) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// outputs describes the output of each task of a run: its number of rows and its schema. It checks that no two tasks
// share an output, and that the commit markers in the bucket name exactly these outputs.
func (c *cloud) outputs(run string) map[string]string {
	c.t.Helper()
	snap, err := c.engine.Current(c.t.Context())
	require.NoError(c.t, err)
	made, outputs := map[string]string{}, map[string]string{}
	snap.State.TasksOf(run, func(task *state.Task) bool {
		if task.OutputURI == "" {
			return true
		}
		made[task.TaskKey] = fmt.Sprintf("%d rows of %s", task.RowCount, task.SchemaHash)
		outputs[contract.CommitMarkerKeyOf(task.OutputURI)] = task.OutputURI
		return true
	})
	require.Len(c.t, outputs, len(made), "no two tasks share an output")
	for object, err := range c.parts.Store.List(c.t.Context(), blob.ListOptions{Prefix: "assets/"}) {
		require.NoError(c.t, err)
		if path.Base(object.Key) != path.Base(contract.CommitMarkerKeyOf("x/")) {
			continue
		}
		data, _, err := c.parts.Store.Get(c.t.Context(), object.Key)
		require.NoError(c.t, err)
		marker, err := contract.DecodeCommitMarker(data)
		require.NoError(c.t, err)
		require.Equal(c.t, outputs[object.Key], marker.URI, "the committed output is the one in the state")
		delete(outputs, object.Key)
	}
	require.Empty(c.t, outputs, "outputs in the state that are not committed")
	return made
}

// askDuckDB copies the tables of the bucket to this machine. It queries them with an unmodified DuckDB, through the
// views that `servo admin sql` prints.
func (c *cloud) askDuckDB(query string) map[string]int {
	c.t.Helper()
	dir := c.t.TempDir()
	for object, err := range c.parts.Store.List(c.t.Context(), blob.ListOptions{Prefix: "state/"}) {
		require.NoError(c.t, err)
		data, _, err := c.parts.Store.Get(c.t.Context(), object.Key)
		require.NoError(c.t, err)
		file := filepath.Join(dir, filepath.FromSlash(object.Key))
		require.NoError(c.t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(c.t, os.WriteFile(file, data, 0o600))
	}
	db, err := sql.Open("duckdb", "")
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, db.Close()) }()
	_, err = db.ExecContext(c.t.Context(), strings.ReplaceAll(c.servo("admin", "sql"), "gs://servo", dir))
	require.NoError(c.t, err)
	rows, err := db.QueryContext(c.t.Context(), query)
	require.NoError(c.t, err)
	defer rows.Close()
	answer := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(c.t, rows.Scan(&name, &n))
		answer[name] = n
	}
	require.NoError(c.t, rows.Err())
	return answer
}
