package worker

import (
	"fmt"
	"sync"
)

// logEnd is how much is kept of the beginning, and as much of the end, of what a
// task prints.
const logEnd = 5 << 20

// boundedLog keeps the beginning and the end of what is written to it. Its zero
// value is ready to use; it is safe for concurrent use.
type boundedLog struct {
	mu   sync.Mutex
	head []byte
	tail tail
}

// Write implements [io.Writer].
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail.limit = logEnd
	n := len(p)
	if room := logEnd - len(l.head); room > 0 {
		room = min(room, n)
		l.head = append(l.head, p[:room]...)
		p = p[room:]
	}
	l.tail.write(p)
	return n, nil
}

func (l *boundedLog) printf(format string, args ...any) { fmt.Fprintf(l, format, args...) }

// bytes is the log, with a line where something is left out.
func (l *boundedLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.tail.bytes()
	text := make([]byte, 0, len(l.head)+len(end)+100)
	text = append(text, l.head...)
	if out := l.tail.total - int64(len(end)); out > 0 {
		text = fmt.Appendf(text, "\n… %d bytes omitted …\n", out)
	}
	return append(text, end...)
}

// tail keeps the last bytes that are written to it.
type tail struct {
	limit int
	ring  []byte
	next  int   // where the oldest byte is, once the ring is full
	total int64 // bytes written
}

func (t *tail) write(p []byte) {
	t.total += int64(len(p))
	if over := len(p) - t.limit; over > 0 {
		p = p[over:]
	}
	if room := t.limit - len(t.ring); room > 0 {
		room = min(room, len(p))
		t.ring = append(t.ring, p[:room]...)
		p = p[room:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.next:], p)
		t.next = (t.next + n) % t.limit
		p = p[n:]
	}
}

func (t *tail) bytes() []byte {
	return append(append(make([]byte, 0, len(t.ring)), t.ring[t.next:]...), t.ring[:t.next]...)
}

// lastLines keeps the end of what a command complains of. It is written to by
// one goroutine, and read when that has ended.
type lastLines struct{ tail tail }

// Write implements [io.Writer].
func (l *lastLines) Write(p []byte) (int, error) {
	l.tail.limit = maxComplaint
	l.tail.write(p)
	return len(p), nil
}

// maxComplaint is how much of stderr an error message holds.
const maxComplaint = 2 << 10
