package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// drainTime limits the wait for a command's output after its process group is dead. By then, only a process that has
// left the group can keep the pipe open.
const drainTime = 2 * time.Second

// starter starts all processes from one locked OS thread. With Pdeathsig, the kernel kills a child when the *thread*
// that started the child exits. The Go runtime may end any thread that is not locked.
type starter struct {
	requests chan func()
	done     chan struct{}
}

func newStarter() *starter {
	adoptOrphans()
	s := &starter{requests: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for request := range s.requests {
			request()
		}
	}()
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	started := make(chan error)
	s.requests <- func() { started <- cmd.Start() }
	return <-started
}

func (s *starter) close() {
	close(s.requests)
	<-s.done
}

// process is a command and its descendants.
type process struct {
	w   *Worker
	cmd *exec.Cmd
	// tag is a string in the environment of this command, and of no other command.
	tag string
	// started is the time when the process started, as startedAt returns it.
	started uint64
}

// launch starts a program in its own process group, without a shell. The tag identifies the processes that the program
// starts.
func (w *Worker) launch(cmd *exec.Cmd, tag string) (*process, error) {
	cmd.SysProcAttr, cmd.WaitDelay = newProcessGroup(), drainTime
	w.commands.mu.Lock()
	defer w.commands.mu.Unlock() // the lock is held until the started command is in the list
	if err := w.starter.start(cmd); err != nil {
		return nil, err
	}
	p := &process{w: w, cmd: cmd, tag: tag, started: startedAt(cmd.Process.Pid)}
	if w.commands.running == nil {
		w.commands.running = map[*process]bool{}
	}
	w.commands.running[p] = true
	return p, nil
}

// commands is the set of running commands of a worker.
type commands struct {
	mu      sync.Mutex
	running map[*process]bool
}

// startedBy reports whether any running command is old enough to have started a process with the given start time.
func (c *commands) startedBy(started uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.running {
		if p.started <= started {
			return true
		}
	}
	return false
}

func (c *commands) remove(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, p)
}

// wait waits until the process exits. If ctx is done first, wait sends SIGTERM and, after killGrace, SIGKILL. When wait
// returns, no process of the group is left. On Linux, no descendant is left, even if it has left the group or the
// session.
func (p *process) wait(ctx context.Context, c clock.Clock) error {
	pid := p.cmd.Process.Pid
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		waitExit(pid)
	}()
	select {
	case <-exited:
	case <-ctx.Done():
		signalGroup(pid, syscall.SIGTERM)
		stop := background(context.WithoutCancel(ctx), func(ctx context.Context) {
			if c.Sleep(ctx, killGrace) == nil {
				signalGroup(pid, syscall.SIGKILL)
			}
		})
		<-exited
		stop()
	}
	// The command is dead but not yet reaped, so its process id still identifies the group.
	signalGroup(pid, syscall.SIGKILL)
	p.w.commands.remove(p)
	if left := p.killEscaped(p.w.commands.startedBy); left > 0 {
		p.w.cfg.Logger.WarnContext(ctx, "could not kill processes that a command left behind", "command", p.cmd.Args[0], "processes", left)
	}
	err := p.cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // the command exited with 0, but a process that could not be killed keeps the output open
	}
	return err
}

// signalGroup sends a signal to a process group. It ignores errors, because the group may be gone.
func signalGroup(pid int, signal syscall.Signal) { _ = syscall.Kill(-pid, signal) }

// exitFailure returns the failure of a command, with the end of its stderr.
func exitFailure(err error, stderr *lastLines, name string) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("wait for %s: %w", name, err))
	}
	code, text, signalled := CodeExitStatus, fmt.Sprintf("%s exited with status %d", name, exit.ExitCode()), false
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		signalled = true
		code, text = CodeSignal, fmt.Sprintf("%s was killed by %s", name, signalName(status.Signal()))
	}
	if end := lastText(stderr); end != "" {
		text += ":\n" + end
	}
	if signalled {
		return &failure{code, CategoryUser, true, errors.New(text)}
	}
	return &failure{code, CategoryUser, true, exitStatusError{errors.New(text), exit.ExitCode()}}
}

// signalName returns the name of a signal, for example "SIGSEGV".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return s.String()
}

// lastText returns the end of stderr, from the beginning of a line.
func lastText(stderr *lastLines) string {
	text := stderr.tail.bytes()
	if stderr.tail.total > int64(len(text)) {
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok && len(rest) > 0 {
			text = rest
		}
	}
	return strings.TrimSpace(string(text))
}

// makeReadable restores the owner's access to folders from which a command has removed it.
func makeReadable(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700) // WalkDir reads the folder afterwards
		}
		return nil
	})
}
