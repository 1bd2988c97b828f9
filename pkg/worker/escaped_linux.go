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

// How long escaped processes are killed before they are left to the system.
const (
	killRounds   = 100
	killPatience = 1000 // milliseconds for one process to die; longer only in a system call that hangs
)

// adoptOrphans makes this process the parent of descendants whose own parent has ended:
// a process that leaves its group and its session still becomes a child of the worker.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it, only the group is killed
}

// child is a child of this process, as /proc/PID/stat describes it.
type child struct {
	pid, group, session int
	zombie              bool
	started             uint64 // in clock ticks since the machine started
}

// startedAt is when a process started, in clock ticks since the machine started; 0: unknown.
func startedAt(pid int) uint64 {
	c, err := readChild(pid)
	if err != nil {
		return 0
	}
	return c.started
}

// killEscaped kills and reaps what a command has left behind outside of its process group:
// adopted processes that have its tag in their environment, that are in a session of one of
// them, or that no running command can have started. The command has ended and is not yet
// reaped. It returns how many processes did not die.
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

// escaped reports whether an adopted process is one of the command's.
func (p *process) escaped(c child, own int, sessions map[int]bool, others func(started uint64) bool) bool {
	switch {
	case c.group == p.cmd.Process.Pid, c.session != own && sessions[c.session]:
		return true
	case !c.zombie && p.tag != "" && hasTag(c.pid, p.tag):
		return true
	}
	// It left its session and hides where it comes from. Commands stay in the worker's
	// session, so this is none; and it is younger than the command that started it.
	return c.session != own && !others(c.started)
}

// adopted lists the children of this process's first thread, to which the kernel gives
// orphans; the commands themselves are children of the starter's thread.
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
	const ( // fields after the name, which is in parentheses and may hold anything
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

// hasTag reports whether a process was started with a text in its environment.
func hasTag(pid int, tag string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(env, []byte(tag))
}

// reap kills a child, waits until it is dead, and takes it off the system's list.
func reap(c child) bool {
	if !c.zombie {
		_ = unix.Kill(c.pid, unix.SIGKILL) // of another user: it stays
		fd, err := unix.PidfdOpen(c.pid, 0)
		if err == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, killPatience) //nolint:gosec // a descriptor is small
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
