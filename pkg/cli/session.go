package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
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
	// dyingWait is how long a process may take to end after its connections have broken.
	dyingWait = 2 * time.Second
	// lookEvery is how often to check the process that does the work.
	lookEvery = time.Second
	// maxTrouble is how long the store may reject writes before the command fails.
	maxTrouble = 15 * time.Second
)

// session gives access to change a state folder: by owning it, or by talking to the process
// that does.
type session struct {
	*engine.Engine
	stack *embedded.Stack // nil: another process owns the folder
	owner embedded.Owner
	cloud bool // services in the cloud own the state
	dir   string
	close func() error
}

// open becomes the owner of the state folder or, if another process is the owner, talks to that process.
func (a *app) open(ctx context.Context, o embedded.Options) (*session, error) {
	if inCloud(o.Dir) {
		return a.openCloud(ctx, o)
	}
	deadline := a.Clock.Now().Add(startWait)
	for {
		stack, err := embedded.Start(ctx, o)
		if err == nil {
			return a.own(stack, o.Dir), nil
		}
		locked, ok := errors.AsType[*embedded.LockedError](err)
		switch {
		case !ok && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)):
			return nil, fmt.Errorf("%w: no write permission on %s; fix it, or choose another folder with --state", err, o.Dir)
		case !ok:
			return nil, err
		}
		if locked.Owner.PID != 0 && answers(ctx, locked.Owner) {
			remote, err := embedded.Attach(ctx, o, locked.Owner)
			if err != nil {
				return nil, err
			}
			return &session{Engine: remote, owner: locked.Owner, dir: o.Dir, close: func() error { return nil }}, nil
		}
		if a.Clock.Now().After(deadline) {
			return nil, fmt.Errorf("%w; it does not answer: stop it, and try again", locked)
		}
		if err := a.Clock.Sleep(ctx, startPoll); err != nil {
			return nil, err
		}
	}
}

// gone reports whether the process that owns the folder no longer answers.
func (s *session) gone(ctx context.Context) bool {
	return s.stack == nil && !s.cloud && !answers(ctx, s.owner)
}

// who describes the process or services that execute requests, if this process does not.
func (s *session) who() string {
	if s.cloud {
		return "the services of " + s.dir
	}
	return fmt.Sprintf("process %d (owner of %s)", s.owner.PID, s.dir)
}

// own returns a session on a stack in this process. While the session closes, the log is suppressed, because errors of
// interrupted executions are expected then.
func (a *app) own(stack *embedded.Stack, dir string) *session {
	return &session{Engine: stack.Engine, stack: stack, dir: dir, close: func() error {
		a.quiet.Store(true)
		err := stack.Close()
		a.quiet.Store(false)
		a.warnUnpublished(dir, stack.Domain())
		return err
	}}
}

// owner returns the process that owns a state folder, if it exists and answers.
func owner(ctx context.Context, dir string) (embedded.Owner, bool) {
	o, err := embedded.ReadOwner(dir)
	return o, err == nil && answers(ctx, o)
}

// answers reports whether an owner accepts connections.
func answers(ctx context.Context, o embedded.Owner) bool {
	if o.PID <= 0 || errors.Is(syscall.Kill(o.PID, 0), syscall.ESRCH) {
		return false
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return false
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// ownerLost reports whether a session failed because the owner has gone. A killed process
// breaks its connections one by one, and may accept new ones for a moment. After a broken call,
// ownerLost therefore gives the owner time to die before it concludes that the owner is alive.
func (a *app) ownerLost(ctx context.Context, s *session, err error) bool {
	if s.cloud {
		return false
	}
	_, broken := errors.AsType[net.Error](err)
	broken = broken || errors.Is(err, io.ErrUnexpectedEOF)
	for deadline := a.Clock.Now().Add(dyingWait); ctx.Err() == nil; {
		if !answers(ctx, s.owner) {
			return ctx.Err() == nil
		}
		if !broken || a.Clock.Now().After(deadline) || a.Clock.Sleep(ctx, startPoll) != nil {
			return false
		}
	}
	return false
}

// do opens a session and calls f.
func (a *app) do(ctx context.Context, p *project.Project, f func(context.Context, *session) error) error {
	s, err := a.open(ctx, a.options(p))
	if err != nil {
		return err
	}
	err = a.guard(ctx, s, f)
	return errors.Join(err, s.close())
}

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
	if err != nil && cause != nil {
		return cause
	}
	return err
}

func (a *app) trouble(ctx context.Context, s *session) error {
	if s.stack == nil {
		if s.gone(ctx) && ctx.Err() == nil {
			return errOwnerGone
		}
		return nil
	}
	since, err := s.stack.Failure()
	if err == nil || a.Clock.Now().Sub(since) < maxTrouble {
		return nil
	}
	hint := "fix that, and run the same command again: nothing is lost"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		hint = "free space on the disk, and run the same command again: nothing is lost"
	}
	return fmt.Errorf("the state folder %s has not been writable for %s: %w; %s",
		s.dir, view.Span(a.Clock.Now().Sub(since)), err, hint)
}
