package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"
)

// PeakRSS returns the peak resident memory of a process in bytes, or 0 if it is unknown. The parameter process is a pid
// or "self".
func PeakRSS(process string) int64 { return kibibytes(process, "status", "VmHWM:") }

// residentMemory returns the value of a line of /proc/PID/smaps_rollup, in bytes.
func residentMemory(process, line string) int64 { return kibibytes(process, "smaps_rollup", line) }

// resetPeakRSS resets the peak of this process, so that each workload has its own.
func resetPeakRSS() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // on failure, the peak is not reset
}

// kibibytes finds the line that begins with name in a file of /proc/PID. The value of this line is in KiB; kibibytes
// returns it in bytes.
func kibibytes(process, file, name string) int64 {
	text, err := os.ReadFile(filepath.Join("/proc", process, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(line, []byte(name))
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

// cpuTime returns the CPU time of a process so far, or 0 if it is unknown.
func cpuTime(process string) time.Duration {
	text, err := os.ReadFile(filepath.Join("/proc", process, "stat"))
	if err != nil {
		return 0
	}
	// The name is in parentheses and may contain spaces. After it, utime and stime are the 12th and
	// 13th fields, in hundredths of a second.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const utime, stime = 11, 12
	if len(fields) <= stime {
		return 0
	}
	var total int64
	for _, field := range [][]byte{fields[utime], fields[stime]} {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0
		}
		total += ticks
	}
	return time.Duration(total) * 10 * time.Millisecond //nolint:mnd // a tick
}
