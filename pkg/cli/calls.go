package cli

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// calls returns the handlers of the API's calls, which read a published state without a server. A command that uses
// them prints the values and the errors that the HTTP API would return.
func (a *app) calls(v published) *api.Local {
	return api.NewLocal(api.Config{
		Engine:   engine.New(engine.Config{Handle: v.Handle, Snapshots: oneRevision{v.Snapshot}}),
		Project:  func() (*api.Project, error) { return nil, errStateOnly },
		User:     func(http.Header) string { return a.userName() },
		Logger:   slog.New(slog.DiscardHandler), // the command prints the error
		ReadOnly: true,
	})
}

// errStateOnly is the error of calls that need the project.
var errStateOnly = errors.New("this command reads the state only, not the project")

// oneRevision always provides the same published state.
type oneRevision struct{ snap *snapshot.Snapshot }

// Current implements [engine.Snapshots].
func (o oneRevision) Current(context.Context) (*snapshot.Snapshot, error) { return o.snap, nil }

// Await implements [engine.Snapshots]. It waits for the end of ctx, because no newer state follows.
func (oneRevision) Await(ctx context.Context, _ int64) (*snapshot.Snapshot, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
