package worker_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

var large = flag.Bool("large", false, "run as many queries as a machine with 32 cores does")

// Each query sorts or groups more rows than fit into its share of the memory, so it uses the whole share and spills.
// All queries run at once on a simulated machine, whose cores and memory the worker divides among them. With so little
// memory, each query has one thread.
func TestConcurrentQueriesFitTheMachine(t *testing.T) {
	const share, beside = 64 << 20, 24 << 20
	machines := []int{2}
	switch {
	case *large:
		machines = []int{2, 8, 32}
	case !testing.Short():
		machines = []int{2, 8}
	}
	for _, cores := range machines {
		t.Run(strconv.Itoa(cores)+"cores", func(t *testing.T) {
			concurrency := 2 * cores
			memory := int64(2 * share * concurrency)
			queries := []string{
				"SELECT range AS i, hash(range) AS h, repeat(md5(CAST(range AS VARCHAR)), 3) AS text FROM range(600_000) ORDER BY h",
				"SELECT hash(range) AS h, repeat(md5(CAST(range AS VARCHAR)), 3) AS text, count(*) AS n FROM range(600_000) GROUP BY ALL",
			}
			assets, tasks := map[string]plan.Work{}, make([]plan.Task, concurrency)
			for i := range tasks {
				key := fmt.Sprintf("a/q%d", i)
				assets[key] = query("SELECT count(*) AS n, max(text) AS most FROM (" + queries[i%2] + ")")
				tasks[i] = task(key, "", nil)
			}
			w := newFixture(t, nil, assets, tasks...)
			w.config.DuckDB, w.config.MaxConcurrent = worker.DuckDB{}, concurrency
			w.worker, w.server = w.open(w.config)
			w.worker.SetMachine(cores, memory)

			before := resident(t, "VmRSS:")
			require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600)) // resets VmHWM
			var answers []<-chan int
			for _, task := range tasks {
				answers = append(answers, w.deliverLater(task.TaskKey))
			}
			for _, answer := range answers {
				require.Equal(t, http.StatusOK, <-answer)
			}
			peak := resident(t, "VmHWM:")
			w.control.mu.Lock()
			defer w.control.mu.Unlock()
			require.Len(t, w.control.ends, concurrency)
			for _, end := range w.control.ends {
				require.Equal(t, event.Succeeded, end.Outcome, "%+v", end.Error)
			}
			t.Logf("%d queries with %d MB each: the resident memory grew from %d MB to %d MB, %d %% of the machine",
				concurrency, share/1_000_000, before/1_000_000, peak/1_000_000, (peak-before)*100/memory)
			// DuckDB uses some memory in addition to its limit, up to 24 MB for each query. With shares of 120 MB or more,
			// this is at most a fifth of a share. All shares together are half of the memory, so all queries use at most 60 %
			// of the memory.
			require.Less(t, peak-before, int64(concurrency)*(share+beside))
		})
	}
}

// resident returns a memory counter of this process, in bytes.
func resident(t *testing.T, field string) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(data), field)
	require.True(t, found)
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kb << 10
}
