// Command servo-cloud is servo for the stores of a cloud: wherever servo takes a
// folder of state, it takes gs://BUCKET as well. See `servo-cloud --help`.
//
// It is a program of its own because the clients of a cloud take 30 MiB of memory
// that servo on a laptop does without.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
)

func main() { os.Exit(run()) }

func run() int {
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(os.Stderr, "servo-cloud: the working folder cannot be found: %v; go to one that exists\n", err)
		return 1
	}
	signals := make(chan os.Signal, 4) //nolint:mnd // nobody asks so often before the first is seen
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	env := cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Dir: dir,
		Clock: clock.System{}, Signals: signals, OpenStore: binding.OpenStore,
	}
	if program, err := os.Executable(); err == nil {
		env.Program = program
	}
	if u, err := user.Current(); err == nil {
		env.User = u.Username
	}
	return cli.Main(context.Background(), env)
}
