// Package server starts and stops the servers of peers, each on a free loopback port and in a
// folder of the measurement.
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

// Running is a server that responds.
type Running struct {
	// Address is the address for clients. Admin is a second address, for administration.
	Address, Admin string
	// Stop stops the server and waits for its end.
	Stop func() error
}

// Start starts a server in a new folder.
type Start func(ctx context.Context, dir string) (Running, error)

// None is the Start of a peer without a server.
func None(context.Context, string) (Running, error) {
	return Running{Stop: func() error { return nil }}, nil
}

const (
	startWithin = 60 * time.Second
	stopWithin  = 20 * time.Second
)

// process is a child process that dies with this program.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // set when the process has ended
}

// run starts a program, and writes a log file to the folder "dir". The program runs as the given user, or as the
// current user if none is given.
func run(dir string, as *syscall.Credential, program string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()                                                                               // the child has a descriptor of its own
	p := &process{cmd: exec.Command(program, args...), log: log.Name(), ended: make(chan struct{})} //nolint:noctx // ended below
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// With telemetry, the program would wait for remote hosts.
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

// stop sends a signal, and kills the process if it has not ended after stopWithin.
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

// await waits until a server responds. It stops a server that does not respond in time.
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
			return fmt.Errorf("%s ended (%v): %s", filepath.Base(p.cmd.Path), p.err, p.logTail())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not respond: %w; %s", filepath.Base(p.cmd.Path), err, p.logTail()), p.stop(syscall.SIGTERM))
		}
	}
}

// logTail returns the end of the process's log.
func (p *process) logTail() string {
	content, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " / ")
}

// accepts returns a function that checks whether a server accepts connections on an address.
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

// freePorts returns different unused ports.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // Listen returns immediately
		if err != nil {
			return nil, err
		}
		defer l.Close() // close the listeners only at the end, so that the ports differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
