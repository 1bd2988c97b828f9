package worker

import (
	"context"
	"fmt"
	"io"
	"slices"
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
	// closed says that nothing follows.
	closed bool
	// more is closed when there is more to read or nothing follows; nil while nobody waits.
	more chan struct{}
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
	l.wake()
	return n, nil
}

// close says that nothing follows.
func (l *boundedLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

func (l *boundedLog) wake() {
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// read returns what was written from an offset on, at most chunk bytes of it, and the offset
// of what follows. A line says where something is left out. Where nothing is to be read yet,
// more is closed when there is; more is nil when nothing follows.
func (l *boundedLog) read(at int64, chunk int) (text []byte, next int64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	head := int64(len(l.head))
	first := head + l.tail.total - int64(len(l.tail.ring)) // what lies between is left out
	switch end := head + l.tail.total; {
	case at < head:
		text = slices.Clone(l.head[at:min(head, at+int64(chunk))])
		return text, at + int64(len(text)), nil
	case at < first:
		return fmt.Appendf(nil, omitted, first-at), first, nil
	case at < end:
		text = l.tail.from(int(at-first), chunk)
		return text, at + int64(len(text)), nil
	case l.closed:
		return nil, at, nil
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return nil, at, l.more
}

// followChunk is how much of a log is read at once.
const followChunk = 64 << 10

// follow writes the log to w as it is written, until nothing follows or ctx ends.
func (l *boundedLog) follow(ctx context.Context, w io.Writer) error {
	for at := int64(0); ; {
		text, next, more := l.read(at, followChunk)
		switch {
		case len(text) > 0:
			if _, err := w.Write(text); err != nil {
				return err
			}
		case more == nil:
			return nil
		default:
			select {
			case <-more:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		at = next
	}
}

// omitted is the line where something is left out.
const omitted = "\n… %d bytes omitted …\n"

func (l *boundedLog) printf(format string, args ...any) { fmt.Fprintf(l, format, args...) }

// bytes is the log, with a line where something is left out.
func (l *boundedLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.tail.bytes()
	text := make([]byte, 0, len(l.head)+len(end)+100)
	text = append(text, l.head...)
	if out := l.tail.total - int64(len(end)); out > 0 {
		text = fmt.Appendf(text, omitted, out)
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

// from returns at most n bytes, starting at the i-th of those that are kept.
func (t *tail) from(i, n int) []byte {
	i = (t.next + i) % len(t.ring)
	oldest := t.next
	end := len(t.ring)
	if i < oldest {
		end = oldest
	}
	return slices.Clone(t.ring[i:min(end, i+n)])
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
