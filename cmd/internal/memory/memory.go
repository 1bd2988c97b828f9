// Package memory adjusts Go's garbage collector: in programs for one machine, to the size of the live heap; in
// services, to the memory of the container.
package memory

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// share is the percentage of the container's memory that Go may use. C stacks, mapped files
// and the kernel's buffers for the process need the rest.
const share = 90

// limits are the files that contain the memory limit of a container: with cgroups version 2, and with version 1.
var limits = []string{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"}

// unlimited is the smallest number that is read as "no limit". Without a limit, cgroups version 1 report a larger
// number.
const unlimited = 1 << 60

// Limit sets the soft memory limit of this process to 90 % of its container's memory. GOMEMLIMIT overrides it. If the
// container has no limit, Limit does nothing.
func Limit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return // the runtime has already applied GOMEMLIMIT
	}
	if of := container("/"); of > 0 {
		debug.SetMemoryLimit(of / 100 * share)
	}
}

// container returns the container's memory limit in bytes, from the files below the folder "root". It returns 0 if
// there is no limit.
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
