package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// PeakRSS is the most resident memory, in bytes, that a process has had: by its
// number, or "self". 0: this system does not say.
func PeakRSS(process string) int64 {
	status, err := os.ReadFile(filepath.Join("/proc", process, "status"))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		value, ok := bytes.CutPrefix(line, []byte("VmHWM:"))
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
		if err != nil {
			return 0
		}
		return kib << 10 //nolint:mnd // kibibytes
	}
	return 0
}
