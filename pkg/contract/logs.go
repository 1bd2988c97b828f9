package contract

import (
	"bytes"
	"fmt"
)

// LogEnd is the number of bytes that are kept at each end of a long log.
const LogEnd = 5 << 20

// omitted is the line that replaces omitted text.
const omitted = "\n… %d bytes omitted …\n"

// OmittedText returns the line that replaces n omitted bytes of a log.
func OmittedText(n int64) []byte { return fmt.Appendf(nil, omitted, n) }

// ParseOmitted finds the line that replaces the middle of a long log. The line is text[from:to], and n is the number of
// bytes that it replaces. Without such a line, n is 0.
func ParseOmitted(text []byte) (from, to int, n int64) {
	if len(text) < LogEnd {
		return 0, 0, 0
	}
	if _, err := fmt.Fscanf(bytes.NewReader(text[LogEnd:]), omitted, &n); err != nil || n <= 0 {
		return 0, 0, 0
	}
	line := OmittedText(n)
	if !bytes.HasPrefix(text[LogEnd:], line) {
		return 0, 0, 0
	}
	return LogEnd, LogEnd + len(line), n
}
