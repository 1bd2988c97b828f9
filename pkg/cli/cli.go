// Package cli is the servo command line. This package is not a stable API.
//
// Data goes to standard output, in the format of -o. Progress and errors go to standard error.
// The package does not use the environment, the clock or a terminal directly: [Env] provides
// them, so that tests run whole commands.
//
// # Exit codes
//
//   - 0: success.
//   - 1: the work failed: a run failed, a project has problems, or a folder is damaged.
//   - 2: wrong usage.
//   - 4: `servo plan --check` found breaking changes or removed assets.
//   - 130: interrupted.
//
// # Which process does the work
//
// Commands that change something need the process that owns the state folder. If one exists, such a command talks to
// it. Otherwise, the command becomes the owner until it ends. Commands that only read need no owner.
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
	"github.com/spf13/pflag"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
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
	exitBreaking    = 4
	exitInterrupted = 130
)

// Env provides everything that a command needs from the system.
type Env struct {
	// Args are the arguments without the program's name.
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Environ is the environment, as "NAME=value" strings.
	Environ []string
	// Dir is the working folder.
	Dir string
	// Program is the path of the servo program. Name is the path by which the user has called the program.
	Program, Name string
	// User is the name of the user.
	User  string
	Clock clock.Clock
	// Signals delivers interrupts and termination signals. It may be nil.
	Signals <-chan os.Signal
	// Terminal reports whether a stream is a terminal, and its width. It may be nil.
	Terminal func(stream any) (width int, ok bool)
	// RawMode switches a terminal to raw mode and returns a function that restores it. If
	// RawMode is nil, the query shell has no line editing.
	RawMode func(stream any) (restore func() error, err error)
	// OpenStore opens a store in the cloud by its name. Nil: only folders are supported.
	OpenStore func(ctx context.Context, name string) (blob.Store, io.Closer, error)
	// CloudSecrets fetches secrets from Google Secret Manager. Nil: not supported.
	CloudSecrets secret.Source
	// OpenTraces opens the exporter for the target of --traces. Nil: not supported.
	OpenTraces service.OpenTraces
}

// getenv returns an environment variable, or "".
func (e *Env) getenv(name string) string {
	value, _ := e.lookupEnv(name)
	return value
}

// lookupEnv returns an environment variable and whether it is set.
func (e *Env) lookupEnv(name string) (string, bool) {
	for _, v := range slices.Backward(e.Environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// width returns the width of a stream, if it is a terminal.
func (e *Env) width(stream any) (int, bool) {
	if e.Terminal == nil {
		return 0, false
	}
	return e.Terminal(stream)
}

var (
	// errInterrupted is the cause of a context that ends because the user interrupts the command.
	errInterrupted = errors.New("interrupted")
	// errReported means that the command failed and has already printed why.
	errReported = errors.New("reported")
)

// usageError is the error of a command that the user has called with wrong arguments or flags.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// app is one invocation of the program.
type app struct {
	Env
	dir   string
	state string
	// environment is the name of an environment of servo.yaml, or "" for the base settings.
	environment string
	secrets     string
	output      string
	logLevel    string

	// traces holds the values of the flags for traces. setup creates tracer from them.
	traces service.Traces
	tracer *trace.Tracer

	// parsed caches the syntax trees of the project's queries.
	parsed duckparse.Cache
	format render.Format
	logger *slog.Logger
	style  style
	signal *signals
	// commands are the names of the program's commands.
	commands []string
	// redactor hides secrets in the output on standard error.
	redactor secret.Redactor
	// quiet suppresses the log.
	quiet atomic.Bool
}

// Main runs the command and returns its exit code.
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

// exit prints the error, if any, and returns the exit code.
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
	case errors.Is(err, errBreaking):
		fmt.Fprintf(a.Stderr, "servo: %s\n", a.style.errorText(a.completed(err.Error())))
		return exitBreaking
	case errors.Is(err, syscall.EPIPE):
		return exitFailed // the reader has closed the pipe
	case errors.As(err, &usage):
		fmt.Fprintf(a.Stderr, "servo: %s\n", a.style.errorText(a.completed(err.Error())))
		return exitUsage
	}
	fmt.Fprintf(a.Stderr, "servo: %s\n", a.style.errorText(a.completed(err.Error())))
	return exitFailed
}

// note prints a message for the user to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.redactor.Writer(a.Stderr), a.completed(fmt.Sprintf(format, args...)))
}

// warn prints a warning.
func (a *app) warn(format string, args ...any) {
	a.note("%s %s", a.style.paint(yellow, "warning:"), fmt.Sprintf(format, args...))
}

// signals passes signals to the most recent handler.
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

// replaceHandler replaces the handler of signals. The new handler also receives the number of each signal: 1 for the
// first signal after this call. The returned function restores the old handler.
func (s *signals) replaceHandler(handle func(sig os.Signal, n int)) (restore func()) {
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
	err := noEmptyFlags(cmd)
	if err != nil {
		return err
	}
	if a.format, err = render.ParseFormat(a.output); err != nil {
		return &usageError{err}
	}
	if err := a.checkFormat(cmd); err != nil {
		return err
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

// noEmptyFlags returns an error if a flag has an empty value, for example --at "$TIME" if TIME is not set. The
// commands would treat such a flag as absent. With an empty --at, the run would start immediately. With an empty
// --env, the command would use the base settings of servo.yaml.
func noEmptyFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && (f.Value.Type() == "string" && f.Value.String() == "" || f.Value.Type() == "stringSlice" && f.Value.String() == "[]") {
			err = usagef("the value of --%s is empty: write a value, or remove the flag", f.Name)
		}
	})
	return err
}

// checkTraces validates the flags for traces. It validates the sampling ratio even if no URL is set.
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

// traceFlags adds the flags for traces to a command.
func (a *app) traceFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&a.traces.URL, "traces", "", service.TracesUsage)
	flags.Float64Var(&a.traces.Ratio, "trace-ratio", 1, service.TraceRatioUsage)
	a.hideTraces(flags)
}

// hideTraces hides the flags for traces in the help of a program that cannot send traces.
func (a *app) hideTraces(flags *pflag.FlagSet) {
	if a.OpenTraces != nil {
		return
	}
	flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || strings.HasPrefix(f.Name, "trace")
	})
}

// logHandler is a log handler that can be suppressed.
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
