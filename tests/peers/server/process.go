// Package server starts the servers that peers need, each on a free port of loopback and
// in a folder of the measurement, and ends them.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Running is a server that answers.
type Running struct {
	// Address is what its clients are given, Admin a second one.
	Address, Admin string
	// Stop ends it, and returns when it has ended.
	Stop func() error
}

// Start starts a server with a folder of its own.
type Start func(ctx context.Context, dir string) (Running, error)

// None is for a peer without a server.
func None(context.Context, string) (Running, error) {
	return Running{Stop: func() error { return nil }}, nil
}

const (
	startWithin = 60 * time.Second
	stopWithin  = 20 * time.Second
)

// process is a child that ends when this program does, however that ends.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // once it has ended
}

// run starts a program that logs into a folder. As says who is to run it, if not who
// runs this.
func run(dir string, as *syscall.Credential, program string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()                                                                               // the child has its own
	p := &process{cmd: exec.Command(program, args...), log: log.Name(), ended: make(chan struct{})} //nolint:noctx // ended below
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// Telemetry would ask for hosts elsewhere, and wait for them.
	p.cmd.Env = append(os.Environ(), "DO_NOT_TRACK=1", "RESTATE_DISABLE_TELEMETRY=true")
	p.cmd.SysProcAttr = ChildOf(as)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends it, with a signal, and by force where that does not help.
func (p *process) stop(with syscall.Signal) error {
	_ = p.cmd.Process.Signal(with)
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopWithin):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return fmt.Errorf("%s did not end within %s", filepath.Base(p.cmd.Path), stopWithin)
}

// await waits until a server answers. One that does not is ended.
func (p *process) await(ctx context.Context, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // nothing is measured yet
		case <-p.ended:
			return fmt.Errorf("%s ended (%v): %s", filepath.Base(p.cmd.Path), p.err, p.said())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not answer: %w; %s", filepath.Base(p.cmd.Path), err, p.said()), p.stop(syscall.SIGTERM))
		}
	}
}

// said is the end of its log.
func (p *process) said() string {
	content, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " / ")
}

// accepts says whether somebody listens on an address.
func accepts(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// freePorts are ports on which nobody listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // answers at once
		if err != nil {
			return nil, err
		}
		defer l.Close() // not before all are found: they are to be different
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
