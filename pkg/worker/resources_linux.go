package worker

import (
	"strconv"
	"strings"
)

func physicalMemory(read func(string) ([]byte, error)) int64 {
	data, err := read("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" {
			kilobytes, _ := strconv.ParseInt(fields[1], 10, 64) // 0: unknown
			return kilobytes << 10
		}
	}
	return 0
}
