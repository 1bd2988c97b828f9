package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/servo-orchestration/servo/pkg/trace"
)

// flushTimeout is how long the last spans may take to be sent when a process's work has
// ended: Cloud Run kills it 10 seconds after it was told to end.
const flushTimeout = 1500 * time.Millisecond

// OpenTraces opens what sends spans somewhere.
type OpenTraces func(context.Context, trace.Options, *slog.Logger) (*trace.Tracer, error)

// Traces are where a process's spans are sent, if anywhere: a part of its flags.
type Traces struct {
	// URL takes OTLP over HTTP; "": spans are not made.
	URL string
	// Ratio is how many traces of all are sent.
	Ratio float64
	// Project is that of Google Cloud which has the traces, for the log.
	Project string
}

// What flags of traces say of themselves, in every program.
const (
	TracesUsage       = "where spans are sent, by OTLP over HTTP, for example http://localhost:4318 (default: nowhere)"
	TraceRatioUsage   = "fraction of traces to send (0 < N ≤ 1); use the same in all services and workers"
	TraceProjectUsage = "the project of Google Cloud that has the traces, for log lines to name it"
)

func (t *Traces) flags(f *flag.FlagSet) {
	f.StringVar(&t.URL, "traces", "", TracesUsage)
	f.Float64Var(&t.Ratio, "trace-ratio", 1, TraceRatioUsage)
	f.StringVar(&t.Project, "trace-project", "", TraceProjectUsage)
}

// Check reports what is wrong with them.
func (t *Traces) Check() error {
	if t.URL == "" {
		return nil
	}
	var problems []error
	if u, err := url.Parse(t.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		problems = append(problems, fmt.Errorf("--traces %q is not a URL like http://localhost:4318", t.URL))
	}
	if !(t.Ratio > 0 && t.Ratio <= 1) { // also of what is no number
		problems = append(problems, fmt.Errorf("--trace-ratio is %g; must be more than 0, and 1 at most", t.Ratio))
	}
	return errors.Join(problems...)
}

// Open gives what makes spans; nil: they are not to be made. Open may be nil, of a program
// that has no way to send them.
func (t *Traces) Open(ctx context.Context, open OpenTraces, service, instance string, logger *slog.Logger) (*trace.Tracer, error) {
	switch {
	case t.URL == "":
		return nil, nil //nolint:nilnil // a nil tracer is one that makes no spans
	case open == nil:
		return nil, fmt.Errorf("--traces %s: this program has no way to send them; servo-cloud has", t.URL)
	}
	return open(ctx, trace.Options{Endpoint: t.URL, Ratio: t.Ratio, Service: service, Instance: instance}, logger)
}

// Flush sends the last spans. It ends soon, whether they are taken or not.
func Flush(ctx context.Context, tracer *trace.Tracer, logger *slog.Logger) {
	if !tracer.On() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		logger.WarnContext(ctx, "the last traces were not taken", slog.Any("error", err))
	}
}
