package work

import (
	"os"
	"strconv"
	"strings"
)

// Flushes returns the number of flush requests to a disk since boot, by any process, or 0 if it is unknown.
func Flushes(device string) int64 {
	content, err := os.ReadFile("/proc/diskstats")
	if err != nil || device == "" {
		return 0
	}
	const name, flushes = 2, 18 // fields of a line
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > flushes && fields[name] == device {
			n, _ := strconv.ParseInt(fields[flushes], 10, 64)
			return n
		}
	}
	return 0
}
