package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/project"
)

const (
	// startWait is how long to wait for another process to start or to end.
	startWait = 15 * time.Second
	startPoll = 100 * time.Millisecond
	// slowWait is how long to wait for an owner that is alive but does not answer.
	slowWait = 2 * time.Minute
	// dyingWait is how long a process may take to end after its connections have broken.
	dyingWait = 2 * time.Second
	// lookEvery is how often to check the process that does the work.
	lookEvery = time.Second
	// maxTrouble is how long the store may reject writes before the command fails.
	maxTrouble = 15 * time.Second
)

// session sends commands that change a state folder. Either this process owns the folder, or the session talks to the
// process that owns it.
type session struct {
	*engine.Engine
	stack *embedded.Stack // nil: another process owns the folder
	owner embedded.Owner
	cloud bool // services in the cloud own the state
	slow  bool // the user was told that the owner does not answer
	dir   string
	close func() error
}

// open becomes the owner of the state folder or, if another process is the owner, talks to that process.
func (a *app) open(ctx context.Context, o embedded.Options) (*session, error) {
	if inCloud(o.Dir) {
		return a.openCloud(ctx, o)
	}
	began, told := a.Clock.Now(), false
	for {
		stack, err := embedded.Start(ctx, o)
		if err == nil {
			return a.ownSession(stack, o.Dir), nil
		}
		locked, ok := errors.AsType[*embedded.LockedError](err)
		switch {
		case !ok && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)):
			return nil, fmt.Errorf("%w: no write permission on %s; fix it, or choose another folder with --state", err, o.Dir)
		case !ok:
			return nil, err
		}
		found := ended
		if locked.Owner.PID != 0 {
			found = look(ctx, o.Dir, locked.Owner)
		}
		if found == serving {
			if !told && !answers(ctx, locked.Owner) {
				a.noteSilent(locked.Owner)
			}
			remote, err := embedded.Attach(ctx, o, locked.Owner)
			if err != nil {
				return nil, err
			}
			return &session{Engine: remote, owner: locked.Owner, dir: o.Dir, close: func() error { return nil }}, nil
		}
		waited := a.Clock.Now().Sub(began)
		switch {
		case found == silent && waited > slowWait:
			return nil, fmt.Errorf("%w; it is alive, but has not answered for %s: nothing was changed; try again, or stop it if it hangs", locked, view.Span(slowWait))
		case found == silent && !told:
			told = true
			a.noteSilent(locked.Owner)
		case found == ended && waited > startWait:
			return nil, fmt.Errorf("%w; it accepts no requests: stop it, and try again", locked)
		}
		if err := a.Clock.Sleep(ctx, startPoll); err != nil {
			return nil, err
		}
	}
}

// noteSilent says that the owner is alive but does not answer.
func (a *app) noteSilent(o embedded.Owner) {
	a.note("servo: process %d, which owns the state folder, is alive but does not answer yet; waiting for it", o.PID)
}

// gone reports whether the process that owns the folder has ended.
func (s *session) gone(ctx context.Context) bool {
	return s.stack == nil && !s.cloud && look(ctx, s.dir, s.owner) == ended
}

// executor describes the process or services that execute requests, if this process does not.
func (s *session) executor() string {
	if s.cloud {
		return "the services of " + s.dir
	}
	return fmt.Sprintf("process %d (owner of %s)", s.owner.PID, s.dir)
}

// ownSession returns a session on a stack in this process. While the session closes, the log is suppressed, because
// errors of interrupted executions are expected then.
func (a *app) ownSession(stack *embedded.Stack, dir string) *session {
	return &session{Engine: stack.Engine, stack: stack, dir: dir, close: func() error {
		a.quiet.Store(true)
		err := stack.Close()
		a.quiet.Store(false)
		a.warnUnpublished(dir, stack.Domain())
		return err
	}}
}

// owner returns the process that owns a state folder. It returns false if there is none, or if that process has
// ended.
func owner(ctx context.Context, dir string) (embedded.Owner, bool) {
	o, err := embedded.ReadOwner(dir)
	return o, err == nil && look(ctx, dir, o) != ended
}

// condition is what is known about the owner of a state folder.
type condition int

const (
	serving condition = iota // it accepts connections, but may not answer
	silent                   // it did not accept a connection in time, and nothing proves that it has ended
	ended                    // it has ended, or no longer serves
)

// dialWait is how long an owner may take to accept a connection, and answerWait how long it may take to answer.
const (
	dialWait   = time.Second
	answerWait = 2 * time.Second
)

// look returns the condition of an owner. It reports the owner as ended only with a proof: its process does not exist,
// its record is gone, replaced or without a valid URL, or the operating system refuses connections to its port. A
// timeout proves nothing: on a busy machine, a live owner or this process itself may need longer than dialWait.
func look(ctx context.Context, dir string, o embedded.Owner) condition {
	if o.PID <= 0 || errors.Is(syscall.Kill(o.PID, 0), syscall.ESRCH) {
		return ended
	}
	if current, err := embedded.ReadOwner(dir); errors.Is(err, fs.ErrNotExist) || err == nil && current != o {
		return ended // the process has released the folder, or another one owns it
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return ended // the record has no valid URL, so no process serves
	}
	d := net.Dialer{Timeout: dialWait}
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return afterFailedDial(err)
	}
	_ = conn.Close() // an accepted connection proves that the owner has not ended
	return serving
}

// answers reports whether an owner answers a request in time. An accepted connection is no answer: the operating
// system accepts connections even for a process that is suspended.
func answers(ctx context.Context, o embedded.Owner) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL+"/healthz", nil)
	if err != nil {
		return false
	}
	client := o.Client()
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil
}

// afterFailedDial returns the condition of an owner that could not be dialled. Any error except a refused connection
// may be a problem of this process, such as too many open files, or of the machine.
func afterFailedDial(err error) condition {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return ended
	}
	return silent
}

// ownerLost reports whether a session failed because the owner has gone. A killed process
// breaks its connections one by one, and may accept new ones for a moment. After a broken call,
// ownerLost therefore gives the owner time to die before it concludes that the owner is alive.
func (a *app) ownerLost(ctx context.Context, s *session, err error) bool {
	if s.cloud {
		return false
	}
	broken := isBroken(err)
	for deadline := a.Clock.Now().Add(dyingWait); ctx.Err() == nil; {
		if s.gone(ctx) {
			return true
		}
		if !broken || a.Clock.Now().After(deadline) || a.Clock.Sleep(ctx, startPoll) != nil {
			return false
		}
	}
	return false
}

// isBroken reports whether an error means that a connection broke.
func isBroken(err error) bool {
	_, broken := errors.AsType[net.Error](err)
	return broken || errors.Is(err, io.ErrUnexpectedEOF)
}

// do opens a session and calls f.
func (a *app) do(ctx context.Context, p *project.Project, f func(context.Context, *session) error) error {
	s, err := a.open(ctx, a.options(p))
	if err != nil {
		return err
	}
	err = a.guard(ctx, s, f)
	if err != nil && s.stack == nil && (errors.Is(err, errOwnerGone) || isBroken(err) && a.ownerLost(ctx, s, err)) {
		err = unconfirmed(err)
	}
	return errors.Join(err, s.close())
}

// unconfirmed returns the error of a command if the owner of the folder ended before it answered.
func unconfirmed(err error) error {
	if errors.Is(err, engine.ErrDurable) {
		return fmt.Errorf("%w before it confirmed the command: the command is recorded, and takes effect when another process, such as `servo dev`, becomes the owner of the folder", errOwnerGone)
	}
	return fmt.Errorf("%w before it confirmed the command, which may or may not have taken effect: see `servo status`, and repeat the command if it has not", errOwnerGone)
}

// lostError is the error of a function that was cancelled because the owner has ended.
type lostError struct{ during error }

// Error implements error.
func (e *lostError) Error() string { return errOwnerGone.Error() }

// Unwrap returns errOwnerGone, and the error of the function.
func (e *lostError) Unwrap() []error { return []error{errOwnerGone, e.during} }

// errOwnerGone means that the process that executed the requests of the session has ended.
var errOwnerGone = errors.New("the process that owned the state folder has ended")

// guard runs f and cancels it when the work cannot continue: the store rejects writes, the
// server has ended, or the owner has gone.
func (a *app) guard(ctx context.Context, s *session, f func(context.Context, *session) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for a.Clock.Sleep(ctx, lookEvery) == nil {
			if err := a.trouble(ctx, s); err != nil {
				cancel(err)
			}
		}
	}()
	err := f(ctx, s)
	cause := context.Cause(ctx)
	cancel(nil)
	<-done
	switch {
	case err == nil || cause == nil:
		return err
	case errors.Is(cause, errOwnerGone):
		return &lostError{err}
	}
	return cause
}

// trouble returns the reason why the work cannot continue, or nil.
func (a *app) trouble(ctx context.Context, s *session) error {
	if s.stack == nil {
		return a.ownerTrouble(ctx, s)
	}
	since, err := s.stack.Failure()
	if err == nil || a.Clock.Now().Sub(since) < maxTrouble {
		return nil
	}
	hint := "fix the cause, and run the same command again: nothing is lost"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		hint = "free space on the disk, and run the same command again: nothing is lost"
	}
	return fmt.Errorf("the state folder %s has not been writable for %s: %w; %s",
		s.dir, view.Span(a.Clock.Now().Sub(since)), err, hint)
}

// ownerTrouble returns errOwnerGone if the owner has ended. It tells the user when the owner stops answering.
func (a *app) ownerTrouble(ctx context.Context, s *session) error {
	if s.cloud {
		return nil
	}
	switch look(ctx, s.dir, s.owner) {
	case ended:
		return errOwnerGone
	case silent:
		if !s.slow && ctx.Err() == nil { // a cancelled call of look proves nothing
			s.slow = true
			a.noteSilent(s.owner)
		}
	case serving:
		s.slow = false
	}
	return nil
}
