package worker

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// logEnd is the number of bytes that a log keeps at its beginning, and also at its end.
const logEnd = contract.LogEnd

// boundedLog keeps the beginning and the end of the text that is written to it. Its zero value is
// ready to use. It is safe for concurrent use.
type boundedLog struct {
	mu   sync.Mutex
	head []byte
	tail tail
	// closed means that nothing more will be written.
	closed bool
	// more is closed at the next write or close. It is nil while no reader waits.
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

// close marks the log as complete.
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

// read returns a part of the log, beginning at an offset, and the next offset. The parameter chunk is the maximum size
// of the part, in bytes. One line replaces omitted text. If there is nothing to read yet, text is empty, and the
// channel more is closed at the next write or close. At the end of a complete log, more is nil.
func (l *boundedLog) read(at int64, chunk int) (text []byte, next int64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	head := int64(len(l.head))
	first := head + l.tail.total - int64(len(l.tail.ring)) // the text between head and first is omitted
	switch end := head + l.tail.total; {
	case at < head:
		text = slices.Clone(l.head[at:min(head, at+int64(chunk))])
		return text, at + int64(len(text)), nil
	case at < first:
		return contract.OmittedText(first - at), first, nil
	case at < end:
		text = l.tail.slice(int(at-first), chunk)
		return text, at + int64(len(text)), nil
	case l.closed:
		return nil, at, nil
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return nil, at, l.more
}

// followChunk is how many bytes of a log [boundedLog.follow] reads at once.
const followChunk = 64 << 10

// follow copies the log to w as it grows, until the log is complete or ctx is done. If omit is not nil, follow calls it
// instead of writing the line that replaces n omitted bytes.
func (l *boundedLog) follow(ctx context.Context, w io.Writer, omit func(n int64) error) error {
	for at := int64(0); ; {
		text, next, more := l.read(at, followChunk)
		switch {
		// Usually, next-at is len(text). For omitted bytes, text is the line that replaces them, which is shorter.
		case omit != nil && next-at > int64(len(text)):
			if err := omit(next - at); err != nil {
				return err
			}
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

func (l *boundedLog) printf(format string, args ...any) { fmt.Fprintf(l, format, args...) }

// bytes returns the log. One line replaces omitted text.
func (l *boundedLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.tail.bytes()
	text := make([]byte, 0, len(l.head)+len(end)+100)
	text = append(text, l.head...)
	if out := l.tail.total - int64(len(end)); out > 0 {
		text = append(text, contract.OmittedText(out)...)
	}
	return append(text, end...)
}

// tail keeps the end of the text that is written to it. The field limit is the maximum number of bytes.
type tail struct {
	limit int
	ring  []byte
	next  int   // the index of the oldest byte, if the ring is full
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

// slice returns at most n of the kept bytes, starting with byte i.
func (t *tail) slice(i, n int) []byte {
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

// lastLines keeps the end of a command's stderr. Only one goroutine writes to it. Other code reads it after that
// goroutine has ended.
type lastLines struct{ tail tail }

// Write implements [io.Writer].
func (l *lastLines) Write(p []byte) (int, error) {
	l.tail.limit = maxStderr
	l.tail.write(p)
	return len(p), nil
}

// maxStderr is the maximum number of bytes of stderr in an error message.
const maxStderr = 2 << 10
