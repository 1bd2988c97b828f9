// Package memory bounds the Go heap of a service by the memory of its container.
package memory

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// share is the part of the container's memory that Go may use, in percent. The rest is
// for stacks of C code, mapped files and what the kernel keeps for the process.
const share = 90

// limits are the files that say how much memory a container has, of cgroups 2 and 1.
var limits = []string{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"}

// unlimited is what cgroups 1 say, at least, when there is no limit.
const unlimited = 1 << 60

// Limit sets the soft memory limit of this process to 90 % of its container's memory.
// GOMEMLIMIT overrides it. Without a container nothing changes.
func Limit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return // the runtime has read it
	}
	if of := container("/"); of > 0 {
		debug.SetMemoryLimit(of / 100 * share)
	}
}

// container returns the memory of the container in bytes, by the files below a root; 0: it
// has no limit.
func container(root string) int64 {
	for _, name := range limits {
		data, err := os.ReadFile(root + name)
		if err != nil {
			continue
		}
		of, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err == nil && of > 0 && of < unlimited {
			return of
		}
	}
	return 0
}
