package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/service"
)

// network connects a process to the other processes. In a URL, the host is a kind of machine: a load balancer picks a
// machine of this kind at random.
type network struct{ p *process }

var _ service.Network = network{}

func (n network) Listen(context.Context, string, *slog.Logger) (service.Endpoint, error) {
	return endpoint(n), nil
}

func (n network) Client() *http.Client {
	return &http.Client{
		Transport:     transport(n),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type endpoint struct{ p *process }

func (e endpoint) URL() string { return "http://" + e.p.machine.kind }

func (endpoint) Close() error { return nil }

func (e endpoint) Serve(ctx, work context.Context, h http.Handler) error {
	w := e.p.machine.w
	k := &call{proc: e.p, label: "serve"}
	k.begin = func() {
		e.p.handler, e.p.work = h, work
		close(k.done)
	}
	if err := w.park(ctx, k); err != nil {
		return nil //nolint:nilerr // the request was cancelled before it began
	}
	<-ctx.Done()
	return nil
}

var (
	errRefused = errors.New("connection refused")
	errReset   = errors.New("connection reset")
)

type transport struct{ p *process }

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // cannot fail: the body is in memory
	}
	w := t.p.machine.w
	var got answer
	k := &call{proc: t.p, label: fmt.Sprintf("http %s %s %x", r.Method, r.URL, hashOf(string(body)))}
	k.begin = func() {
		w.request(r.Method, r.URL, r.Header, body, t.p, func(a answer) {
			got = a
			close(k.done)
		})
	}
	if err := w.park(r.Context(), k); err != nil {
		return nil, err
	}
	if got.err != nil {
		return nil, got.err
	}
	return &http.Response{
		Status: http.StatusText(got.status), StatusCode: got.status, Header: got.header, Request: r,
		Body: io.NopCloser(bytes.NewReader(got.body)), ContentLength: int64(len(got.body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// answer is the result of a request.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// request is a request that a process serves.
type request struct {
	w      *world
	id     int
	to     *process
	name   string
	answer func(answer) // called once
}

// request sends a request. The parameter "from" is the process that sends it; nil: the cloud sends it. The driver calls
// the function "then" with the answer, unless the sending process has died.
func (w *world) request(method string, u *url.URL, header http.Header, body []byte, from *process, then func(answer)) {
	fault := w.faults.network()
	answered := false
	reply := func(a answer) {
		if answered {
			return
		}
		answered = true
		w.callAfter(w.faults.latency(), from, func() { then(a) })
	}
	w.callAfter(w.faults.latency()+fault.delay, nil, func() {
		to := w.route(u.Hostname())
		if to == nil || fault.before {
			reply(answer{err: fmt.Errorf("%s %s: %w", method, u, errRefused)})
			return
		}
		if fault.after {
			lost := reply
			reply = func(answer) { lost(answer{err: fmt.Errorf("%s %s: %w", method, u, errReset)}) }
		}
		w.requests++
		r := &request{w: w, id: w.requests, to: to, name: u.Path, answer: func(a answer) { reply(a) }}
		w.note("request %d %s to %s", r.id, u.Path, to.id)
		r.serve(method, u, header, body)
	})
}

// route draws one of the serving processes on machines of a kind. It returns nil if there is none.
func (w *world) route(kind string) *process {
	var live []*process
	for _, m := range w.machines {
		if m.kind == kind && m.alive != nil && m.alive.handler != nil {
			live = append(live, m.alive)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[w.faults.rng.IntN(len(live))]
}

// serve starts a goroutine in which the receiving process handles the request.
func (r *request) serve(method string, u *url.URL, header http.Header, body []byte) {
	p := r.to
	req, err := http.NewRequestWithContext(context.WithValue(p.work, serving{}, r.id), method, u.String(), bytes.NewReader(body))
	if err != nil {
		r.answer(answer{err: err})
		return
	}
	maps.Copy(req.Header, header)
	p.open = append(p.open, r)
	p.wg.Go(func() {
		rec := &recorder{header: http.Header{}, status: http.StatusOK}
		p.handler.ServeHTTP(rec, req)
		k := &call{proc: p, label: fmt.Sprintf("respond %09d", r.id)}
		k.begin = func() {
			p.open = slices.DeleteFunc(p.open, func(o *request) bool { return o == r })
			r.w.note("respond %d %s %d", r.id, r.name, rec.status)
			if p.machine.kind == "compactor" && rec.status < http.StatusMultipleChoices {
				r.w.oracle.checkAnswer(p, body, rec.body.Bytes())
			}
			r.answer(answer{status: rec.status, header: rec.header, body: rec.body.Bytes()})
			close(k.done)
		}
		_ = r.w.park(context.Background(), k) // if the process dies, it sends no answer
	})
}

// breakOff answers a request with a connection reset, because the process that served it has died.
func (r *request) breakOff() {
	r.answer(answer{err: fmt.Errorf("%s: %w", r.name, errReset)})
}

// recorder records a response.
type recorder struct {
	header http.Header
	status int
	begun  bool
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if !r.begun {
		r.status, r.begun = status, true
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.begun = true
	return r.body.Write(b)
}

// push sends a body from the cloud to a service: a queue task or a notification about an object.
func (w *world) push(to string, header http.Header, body []byte, then func(answer)) {
	u, err := url.Parse(to)
	if err != nil {
		then(answer{err: err})
		return
	}
	w.request(http.MethodPost, u, header, body, nil, then)
}

// backoff returns how long the cloud waits before it tries again.
func backoff(try int, first, most time.Duration) time.Duration {
	return min(first<<min(try, 20), most)
}
