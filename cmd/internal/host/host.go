// Package host is the machine as the command line sees it: what servo and servo-cloud
// hand to package cli.
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

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/service"
)

// Cloud is what takes the clients of a cloud. Its zero value has nothing.
type Cloud struct {
	// OpenStore opens the stores that are not folders.
	OpenStore func(context.Context, string) (blob.Store, io.Closer, error)
	// OpenTraces opens what sends spans.
	OpenTraces service.OpenTraces
	// Secrets finds those of Secret Manager.
	Secrets secret.Source
}

// Run runs the command line, and gives the exit code.
func Run(cloud Cloud) int {
	tuneGarbage()
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(os.Stderr, "servo: the working folder cannot be found: %v; go to one that exists\n", err)
		return 1
	}
	signals := make(chan os.Signal, 4) //nolint:mnd // nobody presses Ctrl-C so often before the first is seen
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	env := cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Dir: dir,
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

// terminal tells whether a stream is a terminal, and how wide it is.
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

// rawMode switches a terminal to raw mode, and returns what switches it back.
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
