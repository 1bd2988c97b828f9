package worker

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// queryMemory is the fraction of the machine's memory that all queries may use together. The rest
// is for commands, the page cache and the process itself.
const queryMemory = 0.5

const (
	// leastMemory is the minimum for one query: with less, DuckDB fails almost any query.
	leastMemory = 64 << 20
	// unknownMemory is assumed when the machine's memory cannot be determined.
	unknownMemory = 4 << 30
)

// machine holds the resources that a worker divides among its tasks.
type machine struct {
	memory int64 // bytes, of this machine or container
	cores  int
}

func thisMachine() machine {
	memory := memoryOf(os.ReadFile)
	if memory <= 0 {
		memory = unknownMemory
	}
	return machine{memory: memory, cores: runtime.GOMAXPROCS(0)}
}

// memoryShare returns DuckDB's memory limit in bytes for each of concurrency queries.
func (m machine) memoryShare(concurrency int) int64 {
	return max(leastMemory, int64(queryMemory*float64(m.memory))/int64(max(1, concurrency)))
}

// threads returns the number of threads of a query when that many tasks run. With fewer running
// tasks than slots, a query uses the idle cores.
func (m machine) threads(running int) int { return max(1, m.cores/max(1, running)) }

// memoryLimit returns the memory limit of each query in DuckDB's syntax, and its origin.
func (w *Worker) memoryLimit() (limit, from string) {
	if w.cfg.DuckDB.MemoryLimit != "" {
		return w.cfg.DuckDB.MemoryLimit, "workers.memory_limit"
	}
	share := w.machine.memoryShare(w.cfg.MaxConcurrent)
	return strconv.FormatInt(share, 10) + "B",
		fmt.Sprintf("the default share, 50 %% of %s ÷ %d tasks at once", megabytes(w.machine.memory), w.cfg.MaxConcurrent)
}

var sizePattern = regexp.MustCompile(`^([0-9]{1,18}) ?([KMGT]i?)?B$`)

var sizeUnits = map[string]int64{
	"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// advice returns the memory and the threads that a command should use, as environment variables. Servo
// does not enforce them.
func (w *Worker) advice() []string {
	env := []string{"SERVO_THREADS=" + strconv.Itoa(w.threadsNow())}
	limit, _ := w.memoryLimit()
	m := sizePattern.FindStringSubmatch(limit)
	if m == nil {
		return env // a form that only DuckDB knows
	}
	count, err := strconv.ParseInt(m[1], 10, 64)
	if unit := sizeUnits[m[2]]; err == nil && count <= math.MaxInt64/unit {
		env = append(env, "SERVO_MEMORY_BYTES="+strconv.FormatInt(count*unit, 10))
	}
	return env
}

// threadsNow returns the number of threads of a query that starts now.
func (w *Worker) threadsNow() int {
	if w.cfg.DuckDB.Threads > 0 {
		return w.cfg.DuckDB.Threads
	}
	return w.machine.threads(len(w.slots))
}

// explainMemory adds the memory limit and its origin to an out-of-memory error.
func (w *Worker) explainMemory(err error) error {
	var f *failure
	if !errors.As(err, &f) || f.code != CodeOutOfMemory {
		return err
	}
	limit, from := w.memoryLimit()
	if bytes, err := strconv.ParseInt(strings.TrimSuffix(limit, "B"), 10, 64); err == nil {
		limit = megabytes(bytes)
	}
	return &failure{f.code, f.category, f.retryable, fmt.Errorf(
		"out of memory at %s (%s): raise workers.memory_limit, or lower workers.concurrency, in servo.yaml: %w", limit, from, f.err)}
}

func megabytes(bytes int64) string { return strconv.FormatInt(bytes/1_000_000, 10) + "MB" }

// memoryOf returns the memory of this machine or its container, whichever is less; 0: unknown.
func memoryOf(read func(string) ([]byte, error)) int64 {
	memory := physicalMemory(read)
	for _, name := range limitFiles(read) {
		data, err := read(name)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64) // "max": no limit
		if err == nil && limit > 0 && (memory == 0 || limit < memory) {
			memory = limit
		}
	}
	return memory
}

// limitFiles returns the files with the memory limits of the process's control group and its
// ancestors.
func limitFiles(read func(string) ([]byte, error)) []string {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	files := []string{v1 + "/memory.limit_in_bytes"}
	data, err := read("/proc/self/cgroup")
	if err != nil {
		return files
	}
	for line := range strings.Lines(string(data)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			for group = path.Clean("/" + group); ; group = path.Dir(group) {
				files = append(files, path.Join(v2, group, "memory.max"))
				if group == "/" {
					break
				}
			}
		}
	}
	return files
}
