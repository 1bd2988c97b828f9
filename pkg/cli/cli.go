// Package cli is the servo command: what people type, and what they read.
//
// Data goes to standard output, in the format that -o names; everything else,
// progress and errors, to standard error. Nothing here reads the environment,
// the clock or a terminal: [Env] has them all, so that tests run whole commands.
//
// # Exit codes
//
//   - 0: done.
//   - 1: the work failed: a run, a project with problems, a folder that is damaged.
//   - 2: the command was not understood.
//   - 130: interrupted.
//
// # Who does the work
//
// Commands that change something need the process that owns the state folder.
// Where there is one they talk to it; where there is none they are it, for as
// long as they run. Commands that only read never need it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// Env is the world that a command runs in.
type Env struct {
	// Args are the arguments, without the program's name.
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Environ is the environment, "NAME=value" each.
	Environ []string
	// Dir is the working folder.
	Dir string
	// Program is the path of the servo program.
	Program string
	// User is who types.
	User  string
	Clock clock.Clock
	// Signals are interrupts and requests to end. It may be nil.
	Signals <-chan os.Signal
	// Terminal tells whether a stream is a terminal, and how wide it is. It may be nil.
	Terminal func(stream any) (width int, ok bool)
	// RawMode switches a terminal to raw mode, and returns what switches it back. Where
	// it is nil, the query shell has no line editing.
	RawMode func(stream any) (restore func() error, err error)
	// OpenStore opens the stores that are not folders, by their names; nil: there are
	// none.
	OpenStore func(ctx context.Context, name string) (blob.Store, io.Closer, error)
	// CloudSecrets finds secrets of Google Secret Manager; nil: nothing does.
	CloudSecrets secret.Source
	// OpenTraces opens what sends spans to where --traces says; nil: nothing does.
	OpenTraces service.OpenTraces
}

// getenv is a variable of the environment.
func (e *Env) getenv(name string) string {
	value, _ := e.lookupEnv(name)
	return value
}

// lookupEnv is a variable of the environment, if there is one.
func (e *Env) lookupEnv(name string) (string, bool) {
	for _, v := range slices.Backward(e.Environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// width is how wide a stream is, if it is a terminal.
func (e *Env) width(stream any) (int, bool) {
	if e.Terminal == nil {
		return 0, false
	}
	return e.Terminal(stream)
}

var (
	// errInterrupted is why a context ended: somebody asked for it.
	errInterrupted = errors.New("interrupted")
	// errReported says that the command failed and has said why.
	errReported = errors.New("reported")
)

// usageError is a command that was not understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// app is one invocation.
type app struct {
	Env
	dir      string
	state    string
	secrets  string
	output   string
	logLevel string

	// traces are asked for by flags of the commands that do something; tracer makes them.
	traces service.Traces
	tracer *trace.Tracer

	format render.Format
	logger *slog.Logger
	style  style
	signal *signals
	// redactor hides secrets in what goes to standard error.
	redactor secret.Redactor
	// quiet holds back the log.
	quiet atomic.Bool
}

// Main runs the command and gives its exit code.
func Main(ctx context.Context, env Env) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &app{Env: env, logger: slog.New(slog.DiscardHandler)}
	_, terminal := env.width(env.Stderr)
	a.style = style{on: terminal && env.getenv("NO_COLOR") == "" && env.getenv("TERM") != "dumb"}
	a.signal = listen(env.Signals, func(os.Signal, int) { cancel(errInterrupted) })
	defer a.signal.stop()

	root := a.root()
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	service.Flush(ctx, a.tracer, a.logger)
	return a.exit(ctx, err)
}

// exit says what went wrong, if so, and gives the exit code.
func (a *app) exit(ctx context.Context, err error) int {
	var usage *usageError
	switch {
	case errors.Is(err, errInterrupted), err != nil && errors.Is(context.Cause(ctx), errInterrupted):
		if errors.Is(err, errReported) {
			return exitInterrupted
		}
		fmt.Fprintln(a.Stderr, "servo: interrupted")
		return exitInterrupted
	case err == nil:
		return exitDone
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, syscall.EPIPE):
		return exitFailed // who read has gone: there is nobody to tell
	case errors.As(err, &usage):
		fmt.Fprintf(a.Stderr, "servo: %s\n", a.style.errorText(err.Error()))
		return exitUsage
	}
	fmt.Fprintf(a.Stderr, "servo: %s\n", a.style.errorText(err.Error()))
	return exitFailed
}

// note tells the user something that is not data.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.redactor.Writer(a.Stderr), format+"\n", args...)
}

// signals hands signals to whoever has asked for them last.
type signals struct {
	mu     sync.Mutex
	handle func(s os.Signal, n int)
	n      int
	done   chan struct{}
	ended  sync.WaitGroup
}

func listen(from <-chan os.Signal, handle func(os.Signal, int)) *signals {
	s := &signals{handle: handle, done: make(chan struct{})}
	s.ended.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case sig := <-from:
				s.mu.Lock()
				s.n++
				handle, n := s.handle, s.n
				s.mu.Unlock()
				handle(sig, n)
			}
		}
	})
	return s
}

// take makes handle the one that is called, with how many signals there were
// since; the function that it gives puts the old one back.
func (s *signals) take(handle func(sig os.Signal, n int)) (giveBack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.handle
	s.handle, s.n = handle, 0
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handle, s.n = old, 0
	}
}

func (s *signals) stop() {
	close(s.done)
	s.ended.Wait()
}

// setup reads the global flags.
func (a *app) setup(cmd *cobra.Command, _ []string) error {
	var err error
	if a.format, err = render.ParseFormat(a.output); err != nil {
		return &usageError{err}
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return usagef("unknown log level %q: choose one of debug, info, warn, error", a.logLevel)
	}
	a.logger = slog.New(&logHandler{slog.NewTextHandler(a.redactor.Writer(a.Stderr), &slog.HandlerOptions{Level: level}), &a.quiet})
	if err = checkTraces(&a.traces); err != nil {
		return err
	}
	a.tracer, err = a.traces.Open(cmd.Context(), a.OpenTraces, "servo", fmt.Sprintf("servo-%d", os.Getpid()), a.logger)
	return err
}

// checkTraces reports what is wrong with the flags of traces, also of a ratio of no traces.
func checkTraces(t *service.Traces) error {
	checked := *t
	if checked.URL == "" {
		checked.URL = "http://localhost"
	}
	if err := checked.Check(); err != nil {
		return &usageError{err}
	}
	return nil
}

// traceFlags are flags of a command that does something.
func (a *app) traceFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&a.traces.URL, "traces", "", service.TracesUsage)
	flags.Float64Var(&a.traces.Ratio, "trace-ratio", 1, service.TraceRatioUsage)
}

// logHandler is a log that can be held back.
type logHandler struct {
	slog.Handler
	quiet *atomic.Bool
}

// Enabled implements [slog.Handler].
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return !h.quiet.Load() && h.Handler.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(attrs), h.quiet}
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name), h.quiet}
}
