package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/server"
)

// output returns the standard output of a program.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr := prepare(cmd)
	err := cmd.Run()
	return out.Bytes(), failure(ctx, cmd, err, stderr)
}

// converse starts a program, writes an order to its standard input as one line, and calls the function "hear" with its
// standard output. Then it closes the standard input, and the program must end.
func converse(ctx context.Context, cmd *exec.Cmd, order []byte, hear func(said io.Reader) error) error {
	stderr := prepare(cmd)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err := in.Write(append(order, '\n'))
	if err == nil {
		err = hear(out)
	}
	_ = in.Close() // the program may have ended
	// The program's failure explains more than an error of reading its output.
	if ended := failure(ctx, cmd, cmd.Wait(), stderr); ended != nil {
		return ended
	}
	return err
}

// prepare arranges that a program ends when this program ends, gracefully if possible. The returned buffer receives
// the program's stderr.
func prepare(cmd *exec.Cmd) (stderr *bytes.Buffer) {
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	cmd.SysProcAttr = server.ChildOf(nil)
	// SIGTERM lets the program end its children.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return stderr
}

// failure returns the error of a program, with the last lines of the program's stderr.
func failure(ctx context.Context, cmd *exec.Cmd, err error, stderr *bytes.Buffer) error {
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), errors.Join(ctx.Err(), err), strings.Join(lines[max(0, len(lines)-5):], " / "))
}
