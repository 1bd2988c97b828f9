// Package usage measures the memory and CPU time of processes, as servo-bench does for its own processes.
package usage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Usage is the resource use of all descendants of a process.
type Usage struct {
	// PSS is their proportional memory in bytes: shared memory counts once.
	PSS int64
	// CPU is their CPU time so far, including that of ended children. So the difference of two measurements includes
	// processes that began and ended in between.
	CPU time.Duration
	// Children are the pids of the direct children that have not ended, sorted.
	Children []int
	// Programs is the resource use by program name.
	Programs map[string]Part
}

// Part is the resource use of all processes of one program.
type Part struct {
	Processes int   `json:"processes"`
	PSS       int64 `json:"pss_bytes"`
}

// Below returns the resource use of all descendants of a process, without the process itself. The parameter "proc" is
// the file system at /proc.
func Below(proc fs.FS, pid int) (Usage, error) {
	u := Usage{Programs: map[string]Part{}}
	all, err := processes(proc)
	if err != nil {
		return u, err
	}
	for parents := []int{pid}; len(parents) > 0; parents = parents[1:] {
		for _, p := range all[parents[0]] {
			parents = append(parents, p.pid)
			if parents[0] == pid && !p.ended {
				u.Children = append(u.Children, p.pid)
			}
			if err := u.add(proc, p); err != nil {
				return u, err
			}
		}
	}
	slices.Sort(u.Children)
	return u, nil
}

func (u *Usage) add(proc fs.FS, p process) error {
	u.CPU += p.cpu
	if p.ended {
		return nil
	}
	pss, err := p.memory(proc)
	if err != nil {
		return fmt.Errorf("memory of %s: %w", p.name, err)
	}
	u.PSS += pss
	part := u.Programs[p.name]
	part.Processes++
	part.PSS += pss
	u.Programs[p.name] = part
	return nil
}

// process is a process as /proc describes it.
type process struct {
	pid, parent int
	name        string
	ended       bool // the process has ended, but its parent has not waited for it
	cpu         time.Duration
}

// processes returns all processes by their parents.
func processes(proc fs.FS) (map[int][]process, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, err
	}
	all := map[int][]process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		p, err := read(proc, pid)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[p.parent] = append(all[p.parent], p)
	}
	return all, nil
}

// gone reports whether a process ended before its file was read.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

func read(proc fs.FS, pid int) (process, error) {
	p := process{pid: pid}
	text, err := fs.ReadFile(proc, path.Join(strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, err
	}
	// The name is in parentheses and may contain spaces and parentheses.
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return p, fmt.Errorf("process %d: cannot read %q", pid, text)
	}
	p.name = string(text[from+1 : to])
	fields := bytes.Fields(text[to+1:])
	const state, parent, utime, cstime = 0, 1, 11, 14 // the fields after the name
	if len(fields) <= cstime {
		return p, fmt.Errorf("process %d: cannot read %q", pid, text)
	}
	p.ended = fields[state][0] == 'Z' || fields[state][0] == 'X'
	if p.parent, err = strconv.Atoi(string(fields[parent])); err != nil {
		return p, err
	}
	for _, field := range fields[utime : cstime+1] { // user and system time of the process, and of its ended children
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return p, err
		}
		p.cpu += time.Duration(ticks) * 10 * time.Millisecond //nolint:mnd // ticks are hundredths of a second
	}
	return p, nil
}

// memory returns the proportional memory of a process, or 0 if the process has ended. It fails if the system does not
// report the proportional memory.
func (p process) memory(proc fs.FS) (int64, error) {
	text, err := fs.ReadFile(proc, path.Join(strconv.Itoa(p.pid), "smaps_rollup"))
	if errors.Is(err, syscall.ESRCH) { // the process is exiting and has released its memory
		return 0, nil
	}
	if gone(err) {
		if now, again := read(proc, p.pid); gone(again) || now.ended {
			return 0, nil
		}
	}
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(line, []byte("Pss:"))
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
		return kib << 10, err //nolint:mnd // kibibytes
	}
	return 0, errors.New("smaps_rollup has no line Pss")
}
