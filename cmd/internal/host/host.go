// Package host connects package cli to the operating system, for servo and servo-cloud.
package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/servo-orchestration/servo/cmd/internal/memory"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/service"
)

// Cloud contains the functions that need a cloud's client libraries. If a field is nil, the program does not have
// this function.
type Cloud struct {
	// OpenStore opens stores that are not folders.
	OpenStore func(context.Context, string) (blob.Store, io.Closer, error)
	// OpenTraces opens the exporter of traces.
	OpenTraces service.OpenTraces
	// Secrets reads secrets from Secret Manager.
	Secrets secret.Source
}

// Run runs the command line and returns the exit code.
func Run(cloud Cloud) int {
	memory.TuneGarbage()
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(os.Stderr, "servo: the working directory does not exist: %v: change to another directory\n", err)
		return 1
	}
	signals := make(chan os.Signal, 4) //nolint:mnd // room for all signals that arrive before the first one is handled
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	env := cli.Env{
		Args: os.Args[1:], Name: os.Args[0], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Dir: dir,
		Clock: clock.System{}, Signals: signals, Terminal: terminal, RawMode: rawMode, OpenStore: cloud.OpenStore, OpenTraces: cloud.OpenTraces, CloudSecrets: cloud.Secrets,
	}
	if program, err := os.Executable(); err == nil {
		env.Program = program
	}
	if u, err := user.Current(); err == nil {
		env.User = u.Username
	}
	return cli.Main(context.Background(), env)
}

// terminal reports whether a stream is a terminal, and its width in characters.
func terminal(stream any) (width int, ok bool) {
	f, isFile := stream.(*os.File)
	if !isFile {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// rawMode switches a terminal to raw mode and returns a function that restores it.
func rawMode(stream any) (restore func() error, err error) {
	f, isFile := stream.(*os.File)
	if !isFile {
		return nil, fmt.Errorf("%T is not a terminal", stream)
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return func() error { return term.Restore(int(f.Fd()), before) }, nil
}
