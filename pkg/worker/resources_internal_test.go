package worker

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
)

func TestQueriesShareTheMachine(t *testing.T) {
	t.Parallel()
	for _, cores := range []int{2, 8, 32} {
		m := machine{memory: int64(cores) * 2 << 30, cores: cores}
		concurrency := 2 * cores
		require.LessOrEqual(t, m.memoryShare(concurrency)*int64(concurrency), m.memory/2, "all queries together")
		require.Equal(t, 1, m.threads(concurrency))
		require.Equal(t, cores, m.threads(1), "a single query uses all cores")
		require.Equal(t, cores/2, m.threads(2))
	}
	require.EqualValues(t, leastMemory, machine{memory: 1 << 30, cores: 1}.memoryShare(1000))
}

func TestAdviceIsTheShareOfAQuery(t *testing.T) {
	t.Parallel()
	w := &Worker{machine: machine{memory: 8 << 30, cores: 4}, cfg: Config{MaxConcurrent: 8}, slots: make(chan struct{}, 8)}
	w.slots <- struct{}{}
	w.slots <- struct{}{}
	require.Equal(t, []string{"SERVO_THREADS=2", "SERVO_MEMORY_BYTES=536870912"}, (&attempt{w: w, identity: identity{env: &contract.Envelope{}}}).advice())
	for limit, bytes := range map[string]string{"512MB": "512000000", "2 GiB": "2147483648", "7B": "7", "80%": "", "999999999999999999TB": ""} {
		w.cfg.DuckDB = DuckDB{MemoryLimit: limit, Threads: 3}
		want := []string{"SERVO_THREADS=3"}
		if bytes != "" {
			want = append(want, "SERVO_MEMORY_BYTES="+bytes)
		}
		require.Equal(t, want, (&attempt{w: w, identity: identity{env: &contract.Envelope{}}}).advice(), limit)
	}
}

func TestThreadsHaveEnoughMemory(t *testing.T) {
	t.Parallel()
	for perCore, want := range map[int64]int{8 << 30: 32, 2 << 30: 8, 512 << 20: 2, 64 << 20: 1} {
		w := &Worker{machine: machine{memory: 32 * perCore, cores: 32}, cfg: Config{MaxConcurrent: 64}, slots: make(chan struct{}, 64)}
		a := &attempt{w: w, identity: identity{env: &contract.Envelope{}}}
		w.slots <- struct{}{}
		require.Equal(t, want, a.threads(), "an idle worker with %d MiB for each core", perCore>>20)
		w.cfg.DuckDB.Threads = 20
		require.Equal(t, 20, a.threads(), "workers.threads decides")
	}
}

func TestMemoryIsThatOfTheContainer(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"/proc/meminfo":                           "MemTotal:       16000000 kB\nMemFree: 1 kB\n",
		"/proc/self/cgroup":                       "0::/kube/pod/box\n",
		"/sys/fs/cgroup/kube/pod/box/memory.max":  "max\n",
		"/sys/fs/cgroup/kube/pod/memory.max":      "2147483648\n",
		"/sys/fs/cgroup/memory.max":               "8589934592\n",
		"/sys/fs/cgroup/memory/not-the-limit.txt": "1\n",
	}
	read := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	require.EqualValues(t, 2<<30, memoryOf(read))
	files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "1073741824\n"
	require.EqualValues(t, 1<<30, memoryOf(read), "version 1 of control groups")
}
