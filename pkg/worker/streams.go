package worker

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

const (
	// holdFor is how long a stream waits for the other stream to end its line.
	holdFor = 500 * time.Millisecond
	// maxHeld is how many bytes a stream collects while it waits.
	maxHeld = 64 << 10
)

// streams writes the standard output and the standard error of a command to one log, line by line. A program may write
// a line in several parts. Without this type, parts of the other stream could end up in the middle of the line.
//
// While one stream has an unfinished line in the log, the text of the other stream waits for the end of this line. If
// it has waited for holdFor, a line break ends the unfinished line.
type streams struct {
	to   io.Writer
	held chan struct{} // has an element if text may be waiting

	mu sync.Mutex
	// open is the stream whose unfinished line ends the log; nil if the log ends with a whole line. Only the other stream
	// may have waiting text.
	open *stream
	all  [2]stream
}

// stream is one of the streams of a command.
type stream struct {
	of      *streams
	waiting []byte
}

func newStreams(to io.Writer) *streams {
	m := &streams{to: to, held: make(chan struct{}, 1)}
	m.all[0].of, m.all[1].of = m, m
	return m
}

// Write implements [io.Writer].
func (s *stream) Write(p []byte) (int, error) {
	m := s.of
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(p)
	if m.open == s {
		ended := bytes.LastIndexByte(p, '\n') + 1
		m.put(s, p[:ended])
		p = p[ended:]
		if ended > 0 {
			m.release()
		}
	}
	if m.open == nil || m.open == s {
		m.put(s, p)
		return n, nil
	}
	s.waiting = append(s.waiting, p...)
	if len(s.waiting) > maxHeld {
		m.breakLine()
	} else if len(p) > 0 {
		select {
		case m.held <- struct{}{}:
		default:
		}
	}
	return n, nil
}

// put writes text of a stream to the log.
func (m *streams) put(s *stream, p []byte) {
	if len(p) == 0 {
		return
	}
	_, _ = m.to.Write(p) // writing to memory cannot fail
	m.open = s
	if p[len(p)-1] == '\n' {
		m.open = nil
	}
}

// release writes the waiting text. The log must end with a whole line.
func (m *streams) release() {
	for i := range m.all {
		s := &m.all[i]
		text := s.waiting
		s.waiting = nil
		m.put(s, text)
	}
}

// breakLine ends the unfinished line in the log if text is waiting for its end.
func (m *streams) breakLine() {
	if len(m.all[0].waiting)+len(m.all[1].waiting) > 0 {
		m.put(m.open, []byte{'\n'})
		m.release()
	}
}

// flush writes text that is still waiting.
func (m *streams) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breakLine()
}

// run flushes text that has waited for holdFor, until ctx is done.
func (m *streams) run(ctx context.Context, c clock.Clock) {
	for {
		select {
		case <-m.held:
		case <-ctx.Done():
			return
		}
		if c.Sleep(ctx, holdFor) != nil {
			return
		}
		m.flush()
	}
}
