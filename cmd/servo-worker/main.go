// Command servo-worker is a worker of Servo as a service. It is servo, which takes the
// stores of a cloud as well, and is a worker where no command is given: see
// `servo-worker worker --help`.
//
// It is a program of its own because the clients of a cloud take 30 MiB of memory
// that servo on a laptop does without.
package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
)

func main() { os.Exit(run()) }

func run() int {
	signals := make(chan os.Signal, 4) //nolint:mnd // nobody asks so often before the first is seen
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	args := os.Args[1:]
	if len(args) == 0 || strings.HasPrefix(args[0], "-") { // as SERVO_BIN it is given commands
		args = append([]string{"worker"}, args...)
	}
	env := cli.Env{
		Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Clock: clock.System{}, Signals: signals, OpenStore: binding.OpenStore,
	}
	if dir, err := os.Getwd(); err == nil {
		env.Dir = dir
	}
	if program, err := os.Executable(); err == nil {
		env.Program = program
	}
	return cli.Main(context.Background(), env)
}
