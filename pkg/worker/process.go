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

// drainTime is how long what a command printed may take to arrive after its
// process group is dead: only a process that left the group still holds it up.
const drainTime = 2 * time.Second

// starter starts processes from one OS thread, which lives as long as it does.
// The kernel ends a child with its parent (Pdeathsig) when the parent's *thread*
// ends, and the runtime ends threads as it likes, but for the locked ones.
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

// process is a command and all that it started.
type process struct {
	w   *Worker
	cmd *exec.Cmd
	// tag is a text in the command's environment that no other command has.
	tag string
	// started is when it started, on the system's clock.
	started uint64
}

// launch starts a program in a process group of its own, without a shell. The tag tells
// the processes that it starts from those of other commands.
func (w *Worker) launch(cmd *exec.Cmd, tag string) (*process, error) {
	cmd.SysProcAttr, cmd.WaitDelay = newProcessGroup(), drainTime
	w.commands.mu.Lock()
	defer w.commands.mu.Unlock() // a command that has started is in the list
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

// commands are the commands that a worker runs.
type commands struct {
	mu      sync.Mutex
	running map[*process]bool
}

// startedBy reports whether a running command is old enough to have started a process.
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

// wait waits for the process to end; when ctx is done first, it asks it to end,
// and then makes it. Nothing that it started is left afterwards, on Linux even if it left the
// group or the session.
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
	// The leader is dead and not yet reaped: its number is still that of its group.
	signalGroup(pid, syscall.SIGKILL)
	p.w.commands.remove(p)
	if left := p.killEscaped(p.w.commands.startedBy); left > 0 {
		p.w.cfg.Logger.WarnContext(ctx, "processes that a command left behind cannot be killed", "command", p.cmd.Args[0], "processes", left)
	}
	err := p.cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it ended well; a process that could not be killed holds its output open
	}
	return err
}

// signalGroup signals a process group; that it is gone already is fine.
func signalGroup(pid int, signal syscall.Signal) { _ = syscall.Kill(-pid, signal) }

// exitFailure says how a command failed, with what it complained of last.
func exitFailure(err error, stderr *lastLines, name string) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("wait for %s: %w", name, err))
	}
	code, text := CodeExitStatus, fmt.Sprintf("%s ended with status %d", name, exit.ExitCode())
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code, text = CodeSignal, fmt.Sprintf("%s was killed by %s", name, signalName(status.Signal()))
	}
	if complaint := complaintOf(stderr); complaint != "" {
		text += ":\n" + complaint
	}
	return &failure{code, CategoryUser, true, errors.New(text)}
}

// signalName returns the name of a signal, such as SIGSEGV.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return s.String()
}

// complaintOf is the end of what was written to stderr, from the beginning of a line.
func complaintOf(stderr *lastLines) string {
	text := stderr.tail.bytes()
	if stderr.tail.total > int64(len(text)) {
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok && len(rest) > 0 {
			text = rest
		}
	}
	return strings.TrimSpace(string(text))
}

// makeReadable lets the owner look into folders that a command has closed.
func makeReadable(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700) // before it is read
		}
		return nil
	})
}
