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

// output is what a program prints.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	complaint := prepare(cmd)
	err := cmd.Run()
	return out.Bytes(), failure(ctx, cmd, err, complaint)
}

// converse starts a program and gives it an order, a line. What it then prints is heard
// while it runs; afterwards it is given no more, at which it is to end.
func converse(ctx context.Context, cmd *exec.Cmd, order []byte, hear func(said io.Reader) error) error {
	complaint := prepare(cmd)
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
	_ = in.Close() // it may have ended
	// Why a program has failed says more than that nothing was heard of it.
	if ended := failure(ctx, cmd, cmd.Wait(), complaint); ended != nil {
		return ended
	}
	return err
}

// prepare has a program end with this one, and in order; what it complains of is kept.
func prepare(cmd *exec.Cmd) (complaint *bytes.Buffer) {
	complaint = new(bytes.Buffer)
	cmd.Stderr = complaint
	cmd.SysProcAttr = server.ChildOf(nil)
	// It may have children, which end with it if it may end in order.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return complaint
}

// failure is an error of a program with the end of what it complains of.
func failure(ctx context.Context, cmd *exec.Cmd, err error, complaint *bytes.Buffer) error {
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
	return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), errors.Join(ctx.Err(), err), strings.Join(lines[max(0, len(lines)-5):], " / "))
}
