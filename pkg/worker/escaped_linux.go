package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits for killing processes that have left the process group of their command.
const (
	killRounds = 100
	killWait   = 1000 // how long to wait for a process to die, in milliseconds; only a process in a hanging system call takes longer
)

// adoptOrphans makes this process the new parent of orphaned descendants. So even a process that has left the group and
// the session of its command becomes a child of the worker.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // if it fails, only process groups are killed
}

// child is a child of this process, as /proc/PID/stat describes it.
type child struct {
	pid, group, session int
	zombie              bool
	started             uint64 // in clock ticks since the machine booted
}

// startedAt returns the start time of a process, in clock ticks since the machine booted, or 0 if it is unknown.
func startedAt(pid int) uint64 {
	c, err := readChild(pid)
	if err != nil {
		return 0
	}
	return c.started
}

// killEscaped kills and reaps the adopted processes that descend from a command: those in its process group, those with
// the command's tag in their environment, those in the session of a process that killEscaped has already found, and
// those that no other running command can have started. Call it after the command has exited, but before the command is
// reaped. It returns the number of processes that did not die.
func (p *process) killEscaped(others func(started uint64) bool) (left int) {
	own, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	leader := p.cmd.Process.Pid
	sessions, stuck := map[int]bool{}, map[int]bool{}
	for range killRounds {
		found := false
		for _, pid := range adopted() {
			if pid == leader || stuck[pid] {
				continue
			}
			c, err := readChild(pid)
			if err != nil || !p.escaped(c, own, sessions, others) {
				continue
			}
			found = true
			if c.session != own {
				sessions[c.session] = true
			}
			if !reap(c) {
				stuck[pid] = true
			}
		}
		if !found {
			break
		}
	}
	return len(stuck)
}

// escaped reports whether an adopted process belongs to the command.
func (p *process) escaped(c child, own int, sessions map[int]bool, others func(started uint64) bool) bool {
	switch {
	case c.group == p.cmd.Process.Pid, c.session != own && sessions[c.session]:
		return true
	case !c.zombie && p.tag != "" && hasTag(c.pid, p.tag):
		return true
	}
	// If the child has left the worker's session, it is not a command, because commands stay in that session. A command
	// started the child, so that command is older than the child. If no other running command is older than the child,
	// only p can have started it. If p is younger, too, the child may be older than the worker. Such a child is never
	// killed: it is only reaped after its end.
	return c.session != own && !others(c.started) && (c.zombie || c.started >= p.started)
}

// adopted lists the children of this process's main thread, which adopts orphans. It does not list the commands,
// because they are children of the starter's thread.
func adopted() []int {
	pid := strconv.Itoa(os.Getpid())
	text, err := os.ReadFile("/proc/self/task/" + pid + "/children")
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// readChild reads /proc/PID/stat.
func readChild(pid int) (child, error) {
	const ( // indexes of fields after the name, which is in parentheses and may contain anything
		state   = 0
		group   = 2
		session = 3
		started = 19
	)
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return child{}, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= started {
		return child{}, fmt.Errorf("read /proc/%d/stat: %q", pid, text)
	}
	c := child{pid: pid, zombie: fields[state] == "Z"}
	var groupErr, sessionErr, startedErr error
	c.group, groupErr = strconv.Atoi(fields[group])
	c.session, sessionErr = strconv.Atoi(fields[session])
	c.started, startedErr = strconv.ParseUint(fields[started], 10, 64)
	return c, errors.Join(groupErr, sessionErr, startedErr)
}

// hasTag reports whether a process was started with the tag in its environment.
func hasTag(pid int, tag string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(env, []byte(tag))
}

// reap kills a child, waits until it is dead, and reaps it. It reports whether the child is gone.
func reap(c child) bool {
	if !c.zombie {
		_ = unix.Kill(c.pid, unix.SIGKILL) // fails for another user's process
		fd, err := unix.PidfdOpen(c.pid, 0)
		if err == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, killWait) //nolint:gosec // a file descriptor fits into 32 bits
			_ = unix.Close(fd)
		}
	}
	for {
		got, err := unix.Wait4(c.pid, nil, unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return got == c.pid || err != nil
		}
	}
}
