package worker

import "golang.org/x/sys/unix"

func physicalMemory(func(string) ([]byte, error)) int64 {
	bytes, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return int64(bytes) //nolint:gosec // no machine has 2^63 bytes
}
