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

// flushTimeout limits how long a process sends its last spans at shutdown: Cloud Run kills a process 10 seconds after
// it has sent the signal to end.
const flushTimeout = 1500 * time.Millisecond

// OpenTraces connects to a receiver of spans.
type OpenTraces func(context.Context, trace.Options, *slog.Logger) (*trace.Tracer, error)

// Traces holds the values of the flags that say where a process sends its spans.
type Traces struct {
	// URL is a receiver of OTLP over HTTP. "": no spans are created.
	URL string
	// Ratio is the fraction of traces to send.
	Ratio float64
	// Project is the Google Cloud project that stores the traces. Log lines name it.
	Project string
}

// Help texts of the trace flags, which every program has.
const (
	TracesUsage       = "URL that receives spans, as OTLP over HTTP, for example http://localhost:4318 (default: none)"
	TraceRatioUsage   = "fraction of traces to send (0 < N ≤ 1); use the same value in all services and workers"
	TraceProjectUsage = "Google Cloud project of the traces, for log lines"
)

func (t *Traces) flags(f *flag.FlagSet) {
	f.StringVar(&t.URL, "traces", "", TracesUsage)
	f.Float64Var(&t.Ratio, "trace-ratio", 1, TraceRatioUsage)
	f.StringVar(&t.Project, "trace-project", "", TraceProjectUsage)
}

// Check returns the problems of the flags.
func (t *Traces) Check() error {
	if t.URL == "" {
		return nil
	}
	var problems []error
	if u, err := url.Parse(t.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		problems = append(problems, fmt.Errorf("--traces %q is not a URL like http://localhost:4318", t.URL))
	}
	if !(t.Ratio > 0 && t.Ratio <= 1) { // also false for NaN
		problems = append(problems, fmt.Errorf("--trace-ratio is %g; must be above 0 and at most 1", t.Ratio))
	}
	return errors.Join(problems...)
}

// Open returns a tracer, or nil if --traces is not set. The parameter open is nil in a program that cannot send
// spans.
func (t *Traces) Open(ctx context.Context, open OpenTraces, service, instance string, logger *slog.Logger) (*trace.Tracer, error) {
	switch {
	case t.URL == "":
		return nil, nil //nolint:nilnil // a nil tracer creates no spans
	case open == nil:
		return nil, fmt.Errorf("--traces %s: this program cannot send spans; use servo-cloud", t.URL)
	}
	return open(ctx, trace.Options{Endpoint: t.URL, Ratio: t.Ratio, Service: service, Instance: instance}, logger)
}

// Flush sends the last spans. It returns within flushTimeout, even if it cannot send them.
func Flush(ctx context.Context, tracer *trace.Tracer, logger *slog.Logger) {
	if !tracer.On() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		logger.WarnContext(ctx, "could not send the last spans", slog.Any("error", err))
	}
}
