package rest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// In Connect, each message of a stream has a prefix: a byte of flags, and its length in four bytes.
const (
	prefixBytes = 5
	flagEnd     = 2 // the last message, which says how the stream has ended
)

func envelope(raw []byte) []byte {
	prefixed := make([]byte, prefixBytes, prefixBytes+len(raw))
	binary.BigEndian.PutUint32(prefixed[1:], uint32(len(raw))) //nolint:gosec // a request has at most MaxBody bytes
	return append(prefixed, raw...)
}

// stream makes a call whose response is a stream, and answers with server-sent events.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, route *Route, request proto.Message) {
	if err := resume(request, r.Header.Get("Last-Event-ID")); err != nil {
		WriteProblem(w, violation(err))
		return
	}
	raw, err := proto.Marshal(request)
	if err != nil {
		WriteProblem(w, violation(err)) // a string of the message is not UTF-8
		return
	}
	events := &eventWriter{out: w, header: http.Header{}, route: route, flush: http.NewResponseController(w)}
	h.calls.ServeHTTP(events, inner(r, route, "application/connect+proto", envelope(raw)))
	events.finish()
}

// resume changes a request so that its stream continues after the last event that the client has received.
func resume(request proto.Message, id string) error {
	if id == "" {
		return nil
	}
	switch into := request.(type) {
	case *servov1.WatchRequest:
		timeline, revision, _ := strings.Cut(id, ".")
		n, err := strconv.ParseInt(revision, 10, 64)
		if err != nil {
			return &jsonpb.FieldError{Path: "Last-Event-ID", Problem: fmt.Sprintf("is %q: send the id of an event", id)}
		}
		// An event that was sent before the first revision was published has an id without a timeline. A client that
		// resumes with such an id must read everything, so the timeline is set to one that does not exist.
		into.Timeline, into.AfterRevision = cmp.Or(timeline, "none"), n
	case *servov1.TailLogRequest:
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return &jsonpb.FieldError{Path: "Last-Event-ID", Problem: fmt.Sprintf("is %q: send the id of an event", id)}
		}
		into.Offset = n
	}
	return nil
}

// eventOf returns the name and the id of the event of a message. If the name is empty, the message only says that the
// connection is alive.
func eventOf(m proto.Message) (name, id string) {
	switch m := m.(type) {
	case *servov1.WatchResponse:
		id = fmt.Sprintf("%s.%d", m.GetTimeline(), m.GetRevision())
		switch {
		case m.GetHeartbeat():
			return "", id
		case m.GetResync():
			return "resync", id
		}
		return "changes", id
	case *servov1.LogChunk:
		return "chunk", strconv.FormatInt(m.GetNextOffset(), 10)
	}
	return "message", ""
}

// eventWriter receives the response of a call. It writes each message as an event as soon as the message is complete.
type eventWriter struct {
	out    http.ResponseWriter
	flush  *http.ResponseController
	route  *Route
	header http.Header // header of the call's response
	status int
	buffer bytes.Buffer
	begun  bool  // an event was written
	ended  bool  // the response is complete
	failed error // the error of a write to the client
}

// Header implements [http.ResponseWriter].
func (e *eventWriter) Header() http.Header { return e.header }

// WriteHeader implements [http.ResponseWriter].
func (e *eventWriter) WriteHeader(status int) { e.status = status }

// Flush implements [http.Flusher]: events are flushed as they are written.
func (e *eventWriter) Flush() {}

// Write implements [http.ResponseWriter].
func (e *eventWriter) Write(p []byte) (int, error) {
	if e.failed != nil {
		return 0, e.failed
	}
	e.buffer.Write(p)
	if e.status != 0 && e.status != http.StatusOK {
		return len(p), nil // an HTTP error, whose body has no message prefixes
	}
	for e.buffer.Len() >= prefixBytes && e.failed == nil {
		size := int(binary.BigEndian.Uint32(e.buffer.Bytes()[1:]))
		if e.buffer.Len() < prefixBytes+size {
			break
		}
		prefix := e.buffer.Next(prefixBytes)
		flags := prefix[0]
		e.failed = e.message(flags, e.buffer.Next(size))
	}
	return len(p), e.failed
}

// message writes a message as an event.
func (e *eventWriter) message(flags byte, raw []byte) error {
	if flags&flagEnd != 0 {
		e.ended = true
		var end struct {
			Error *callError `json:"error"`
		}
		if err := json.Unmarshal(raw, &end); err != nil {
			return fmt.Errorf("decode the end of a stream: %w", err)
		}
		if end.Error != nil {
			return e.problem(end.Error.problem(http.StatusOK))
		}
		e.begin() // for a stream without messages
		return e.flush.Flush()
	}
	m := e.route.output.New().Interface()
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("decode a message of a stream: %w", err)
	}
	name, id := eventOf(m)
	if name == "" {
		return e.write(": alive\n\n")
	}
	data, err := jsonpb.Marshal(m)
	if err != nil {
		return e.problem(internalProblem(err))
	}
	return e.write(fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", id, name, data))
}

// begin writes the header of the response, once.
func (e *eventWriter) begin() {
	if e.begun {
		return
	}
	e.begun = true
	copyHeader(e.out, e.header)
	e.out.Header().Set("Content-Type", "text/event-stream")
	e.out.Header().Set("Cache-Control", "no-store")
	e.out.Header().Set("X-Content-Type-Options", "nosniff")
	e.out.WriteHeader(http.StatusOK)
}

func (e *eventWriter) write(event string) error {
	e.begin()
	_, err := e.out.Write([]byte(event))
	return errors.Join(err, e.flush.Flush())
}

// problem answers with a problem document. If events have been written already, it writes the document as an event.
func (e *eventWriter) problem(p *servov1.Problem) error {
	if e.begun {
		return e.write(fmt.Sprintf("event: problem\ndata: %s\n", append(encodeProblem(p), '\n')))
	}
	e.begun = true
	copyHeader(e.out, e.header)
	WriteProblem(e.out, p)
	return nil
}

// finish completes the response to the client if the response of the call is incomplete.
func (e *eventWriter) finish() {
	switch {
	case e.ended || e.failed != nil:
	case e.status != 0 && e.status != http.StatusOK:
		_ = e.problem(problemOf(e.status, e.buffer.Bytes())) // the client has disconnected if this fails
	default:
		_ = e.problem(problem(http.StatusInternalServerError, "internal", "Internal error", "the stream ended without its last message")) // the client has disconnected if this fails
	}
}
