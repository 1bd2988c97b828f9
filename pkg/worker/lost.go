package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A worker records in a file which attempts it executes. If its process dies, the next worker that shares the scratch
// folder finds the file in the dead worker's folder, and marks these attempts as lost: see [SweepScratch]. A lost
// attempt is not executed again, because it may have killed the process. When it is redelivered, the worker reports
// WORKER_INTERRUPTED, and the control plane decides whether another attempt follows. See ADR 127.
//
// The worker flushes neither the file nor the marks to the disk. The death of a process loses no data that it has
// written, because the operating system keeps this data. After a power failure, the file may be outdated. A lost
// attempt may then be executed again, which is allowed.
const (
	executingFile = "executing" // in the worker's folder
	lostDir       = "lost"      // in the folder that workers share; contains an empty file for each lost attempt
)

const (
	// executingWidth is the length of a line of the file. A line contains the id of an attempt, or is blank. A line never
	// crosses a page of memory, so that a process that is killed writes either the whole line or nothing.
	executingWidth = 64
	// lostKept is how long an attempt stays marked as lost. The mark is needed only until a worker has reported the
	// loss, because the attempt is not redelivered after the report.
	lostKept = 7 * 24 * time.Hour
)

// executing is the record of the attempts that a worker executes.
type executing struct {
	file *os.File
	free chan int64 // offsets of the blank lines
}

// openExecuting creates a record that holds up to the given number of attempts. It writes all lines at once, as blank
// lines. To record an attempt later, the worker overwrites a line. So the file does not grow, and a full disk does not
// prevent the recording of an attempt.
func openExecuting(dir string, most int) (*executing, error) {
	file, err := os.OpenFile(filepath.Join(dir, executingFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	e := &executing{file: file, free: make(chan int64, most)}
	for i := range most {
		e.free <- int64(i) * executingWidth
	}
	if _, err := file.WriteAt(bytes.Repeat(executingLine(""), most), 0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return e, nil
}

// executingLine returns a line of the record.
func executingLine(attemptID string) []byte {
	return fmt.Appendf(nil, "%-*s\n", executingWidth-1, attemptID)
}

// begin records that an attempt is being executed, until the function end is called.
func (e *executing) begin(attemptID string) (end func() error, err error) {
	offset := <-e.free
	if _, err := e.file.WriteAt(executingLine(attemptID), offset); err != nil {
		e.free <- offset
		return nil, err
	}
	return func() error {
		_, err := e.file.WriteAt(executingLine(""), offset)
		e.free <- offset
		return err
	}, nil
}

// attemptName matches the ids of attempts, which become names of files.
var attemptName = regexp.MustCompile(`^[0-9A-Za-z_-]+$`)

// markLost reads which attempts the dead worker of a folder was executing, and marks these attempts as lost. A mark
// needs space and the disk may be full, so markLost first removes the folders of these attempts.
func markLost(parent, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, executingFile)) //nolint:gosec // the folder of a worker
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the worker died before it accepted tasks
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		id := strings.TrimSpace(line)
		if len(line) != executingWidth || !attemptName.MatchString(id) {
			continue
		}
		if err := os.MkdirAll(filepath.Join(parent, lostDir), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(parent, lostDir, id), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// forgetLost removes the marks of attempts that were lost long ago.
func forgetLost(parent string, now time.Time) error {
	marks, err := os.ReadDir(filepath.Join(parent, lostDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, mark := range marks {
		info, err := mark.Info()
		if err != nil || now.Sub(info.ModTime()) < lostKept {
			continue
		}
		if err := os.Remove(filepath.Join(parent, lostDir, mark.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// errLost is the error of an attempt whose worker has died.
var errLost = errors.New("the process that executed the attempt has died: it was killed, crashed or ran out of memory")

// survive returns an error if the attempt is marked as lost: a worker died while it executed the attempt. Otherwise,
// survive records that this worker executes the attempt. The function end removes the record. If the attempt cannot be
// recorded, survive logs a warning and returns no error.
func (a *attempt) survive(ctx context.Context) (end func(), err error) {
	if a.w.scratch.lost(a.env.AttemptID) {
		return nil, fail(CodeInterrupted, CategoryInfrastructure, errLost)
	}
	warn := func(err error) {
		a.log.WarnContext(ctx, "could not record which attempts are executed", "error", err)
	}
	done, err := a.w.executing.begin(a.env.AttemptID)
	if err != nil {
		warn(err) // execute the attempt: its worker will probably survive
		return func() {}, nil
	}
	return func() {
		if err := done(); err != nil {
			warn(err)
		}
	}, nil
}
