package worker

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// shareOfMemory is the part of the machine's memory that queries may use together. The rest is for commands, for
// the page cache and for the process itself.
const shareOfMemory = 0.5

const (
	// leastMemory is what one query gets at least: below it DuckDB refuses nearly everything.
	leastMemory = 64 << 20
	// unknownMemory is taken for the machine's memory where the system does not tell.
	unknownMemory = 4 << 30
)

// machine is what a worker divides among its tasks.
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

// memoryShare is DuckDB's memory limit for one of so many queries at once, in bytes.
func (m machine) memoryShare(concurrency int) int64 {
	return max(leastMemory, int64(shareOfMemory*float64(m.memory))/int64(max(1, concurrency)))
}

// threads is how many threads a query gets that is one of so many that run: it borrows the threads of tasks that
// do not run.
func (m machine) threads(running int) int { return max(1, m.cores/max(1, running)) }

// memoryLimit is the memory limit of each query, in DuckDB's words, and where it comes from.
func (w *Worker) memoryLimit() (limit, from string) {
	if w.cfg.DuckDB.MemoryLimit != "" {
		return w.cfg.DuckDB.MemoryLimit, "workers.memory_limit"
	}
	share := w.machine.memoryShare(w.cfg.MaxConcurrent)
	return strconv.FormatInt(share, 10) + "B",
		fmt.Sprintf("the default share, 50 %% of %s ÷ %d tasks at once", megabytes(w.machine.memory), w.cfg.MaxConcurrent)
}

// threadsNow is how many threads a query gets that starts now.
func (w *Worker) threadsNow() int {
	if w.cfg.DuckDB.Threads > 0 {
		return w.cfg.DuckDB.Threads
	}
	return w.machine.threads(len(w.slots))
}

// explainMemory returns the error of a query, with the limit and its origin if the memory did not suffice.
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

// memoryOf is the memory of this machine or, if it is less, of the container that the process is in; 0: unknown.
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

// limitFiles are where Linux keeps the memory limits of the process's control groups: its own and those above it.
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
