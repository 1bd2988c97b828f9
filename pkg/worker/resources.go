package worker

import (
	"context"
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

// queryMemory is the fraction of the machine's memory that all concurrent queries share by default. The rest of the
// memory is for commands, the page cache and the worker itself.
const queryMemory = 0.5

const (
	// leastMemory is the minimum memory of a query, in bytes: with less, almost every query fails. A query gets a further
	// thread from idle cores only if it then has at least leastMemory for each thread: each thread of DuckDB has buffers
	// of its own. On a busy machine, sorts that succeed with one thread failed when each thread had only a quarter of
	// leastMemory.
	leastMemory = 64 << 20
	// unknownMemory is the assumed memory of a machine whose memory cannot be determined, in bytes.
	unknownMemory = 4 << 30
)

// machine holds the resources that a worker divides among its tasks.
type machine struct {
	memory int64 // memory of this machine or container, in bytes
	cores  int
}

func thisMachine() machine {
	memory := memoryOf(os.ReadFile)
	if memory <= 0 {
		memory = unknownMemory
	}
	return machine{memory: memory, cores: runtime.GOMAXPROCS(0)}
}

// MachineMemory returns the memory of this machine or container in bytes. Tasks that declare more fail
// with [CodeResourcesExceeded].
func MachineMemory() int64 { return thisMachine().memory }

// memoryShare returns DuckDB's memory limit, in bytes, for each query if the given number of queries run at once.
func (m machine) memoryShare(concurrency int) int64 {
	return max(leastMemory, int64(queryMemory*float64(m.memory))/int64(max(1, concurrency)))
}

// threads returns how many threads each query may use while the given number of tasks are running. If there are fewer
// running tasks than slots, a query also uses the idle cores.
func (m machine) threads(running int) int { return max(1, m.cores/max(1, running)) }

// memoryLimit returns the memory limit of a query of the attempt in DuckDB's syntax, the setting that determines this
// limit, and how to raise it.
func (a *attempt) memoryLimit() (limit, from, advice string) {
	if r := a.claim.resources; r != nil && r.MemoryBytes > 0 {
		return strconv.FormatInt(r.MemoryBytes, 10) + "B", "resources.memory of " + a.env.AssetKey, "raise it"
	}
	advice = "set resources.memory of " + a.env.AssetKey + ", or raise workers.memory_limit or lower workers.concurrency in servo.yaml"
	limit, from = a.w.share()
	return limit, from, advice
}

// share returns the memory limit, in DuckDB's syntax, of a query whose asset declares no memory, and the setting that
// determines this limit.
func (w *Worker) share() (limit, from string) {
	if w.cfg.DuckDB.MemoryLimit != "" {
		return w.cfg.DuckDB.MemoryLimit, "workers.memory_limit"
	}
	share := w.machine.memoryShare(w.cfg.MaxConcurrent)
	return strconv.FormatInt(share, 10) + "B",
		fmt.Sprintf("the default share: 50 %% of %s, divided among %d concurrent tasks", megabytes(w.machine.memory), w.cfg.MaxConcurrent)
}

// reserve waits until the attempt's memory fits into the memory that the running tasks do not use.
func (a *attempt) reserve(ctx context.Context) error {
	// Ignore an error: the attempt loads the plan again later, and then reports the error.
	if p, err := a.w.loadPlan(ctx, a); err == nil {
		a.claim.resources = p.Assets[a.env.AssetKey].Resources
	}
	if a.exceeded() != nil {
		return nil //nolint:nilerr // the attempt itself returns this error before it needs memory
	}
	limit, _, _ := a.memoryLimit()
	bytes, known := bytesOf(limit)
	if !known {
		bytes = a.w.machine.memoryShare(a.w.cfg.MaxConcurrent)
	}
	r := &reservation{bytes: bytes, declared: a.claim.resources != nil && a.claim.resources.MemoryBytes > 0}
	if err := a.w.memory.reserve(ctx, r, a.w.cfg.Clock.Now); err != nil {
		return err
	}
	a.claim.memory = r
	return nil
}

// exceeded returns an error if the asset declares more memory than this machine has.
func (a *attempt) exceeded() error {
	if r := a.claim.resources; r != nil && r.MemoryBytes > a.w.machine.memory {
		return permanent(CodeResourcesExceeded, "%s needs %s of memory, but the worker has only %s: lower resources.memory, or use a queue with larger workers",
			a.env.AssetKey, megabytes(r.MemoryBytes), megabytes(a.w.machine.memory))
	}
	return nil
}

var sizePattern = regexp.MustCompile(`^([0-9]{1,18}) ?([KMGT]i?)?B$`)

var sizeUnits = map[string]int64{
	"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// bytesOf returns a memory limit in bytes. It returns false if only DuckDB can parse the limit.
func bytesOf(limit string) (int64, bool) {
	m := sizePattern.FindStringSubmatch(limit)
	if m == nil {
		return 0, false
	}
	count, err := strconv.ParseInt(m[1], 10, 64)
	unit := sizeUnits[m[2]]
	if err != nil || count > math.MaxInt64/unit {
		return 0, false
	}
	return count * unit, true
}

// advice returns environment variables that tell a command how much memory and how many threads it should use. Servo
// does not enforce these limits.
func (a *attempt) advice() []string {
	env := []string{"SERVO_THREADS=" + strconv.Itoa(a.threads())}
	limit, _, _ := a.memoryLimit()
	if bytes, known := bytesOf(limit); known {
		env = append(env, "SERVO_MEMORY_BYTES="+strconv.FormatInt(bytes, 10))
	}
	return env
}

// threads returns the number of threads for a query that the attempt starts now.
func (a *attempt) threads() int {
	if r := a.claim.resources; r != nil && r.Threads > 0 {
		return r.Threads
	}
	threads := a.w.threadsNow()
	limit, _, _ := a.memoryLimit()
	if bytes, known := bytesOf(limit); known && a.w.cfg.DuckDB.Threads == 0 {
		threads = min(threads, int(max(1, bytes/leastMemory)))
	}
	return threads
}

// threadsNow returns the number of threads for a query that starts now and whose asset declares no number of threads.
func (w *Worker) threadsNow() int {
	if w.cfg.DuckDB.Threads > 0 {
		return w.cfg.DuckDB.Threads
	}
	return w.machine.threads(len(w.slots))
}

// explainMemory adds the memory limit, and the setting that determines it, to an out-of-memory error.
func (a *attempt) explainMemory(err error) error {
	var f *failure
	if !errors.As(err, &f) || f.code != CodeOutOfMemory {
		return err
	}
	limit, from, advice := a.memoryLimit()
	if bytes, err := strconv.ParseInt(strings.TrimSuffix(limit, "B"), 10, 64); err == nil {
		limit = megabytes(bytes)
	}
	return &failure{f.code, f.category, f.retryable, fmt.Errorf("out of memory at %s (%s): %s: %w", limit, from, advice, f.err)}
}

func megabytes(bytes int64) string { return strconv.FormatInt(bytes/1_000_000, 10) + "MB" }

// memoryOf returns the memory of this machine or the limit of its container, whichever is less, in bytes. It returns
// 0 if the memory is unknown.
func memoryOf(read func(string) ([]byte, error)) int64 {
	memory := physicalMemory(read)
	for _, name := range limitFiles(read) {
		data, err := read(name)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64) // the text "max", which is not a number, means no limit
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
