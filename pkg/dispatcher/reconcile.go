package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// reconcileBody is the body of POST /v1/reconcile.
type reconcileBody struct {
	Tenant    string `json:"tenant"`
	Workspace string `json:"workspace"`
	// Revision is the least revision of the state to act on.
	Revision int64 `json:"revision,omitempty"`
	// Sweep requests a sweep: see [Dispatcher.HandOver].
	Sweep bool `json:"sweep,omitempty"`
}

// RegisterControl adds the routes for other services to a mux: for requests of the compactor and the sweeper, and for
// notifications of new manifests.
func RegisterControl(mux *http.ServeMux, find Finder) {
	reconcile := func(w http.ResponseWriter, r *http.Request, body reconcileBody) {
		if body.Sweep && !remote.RightsOf(r.Context()).Sweep {
			writeProblem(w, &contract.Problem{Title: "Not allowed", Status: http.StatusForbidden, Field: "sweep", Detail: "this caller may not sweep"})
			return
		}
		d, problem := find.lookUp(r.Context(), ids.Domain{Tenant: body.Tenant, Workspace: body.Workspace})
		if problem == nil && body.Revision < 0 {
			problem = &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Field: "revision", Detail: "the revision must not be negative"}
		}
		if problem == nil {
			if err := d.HandOver(r.Context(), body.Revision, body.Sweep); err != nil {
				problem = internal(err)
			}
		}
		if problem != nil {
			writeProblem(w, problem)
			return
		}
		d.write(w, r, struct{}{})
	}
	mux.HandleFunc("POST /v1/reconcile", func(w http.ResponseWriter, r *http.Request) {
		var body reconcileBody
		if err := contract.ReadJSON(http.MaxBytesReader(w, r.Body, maxBody), &body); err != nil {
			writeProblem(w, &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		reconcile(w, r, body)
	})
	mux.HandleFunc("POST /v1/notifications", func(w http.ResponseWriter, r *http.Request) {
		key, err := remote.NotifiedObject(http.MaxBytesReader(w, r.Body, maxBody))
		if errors.Is(err, remote.ErrNoObject) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if err != nil {
			writeProblem(w, &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		domain, revision, err := manifest.ParseKey(key)
		if err != nil {
			w.WriteHeader(http.StatusNoContent) // the object is not a manifest: nothing to do, and no retry
			return
		}
		reconcile(w, r, reconcileBody{Tenant: domain.Tenant, Workspace: domain.Workspace, Revision: revision})
	})
}

// HandOver executes the actions that a state calls for. It uses the state of the given revision, which another
// process published, or of a later revision. If sweep is set, HandOver calls [Dispatcher.Sweep] instead.
//
// A state shows what is pending, not what is new. An action that this process has just executed is still PENDING
// until its acknowledgement is folded. HandOver skips such an action for as long as [Dispatcher.Reconcile] would skip
// it.
func (d *Dispatcher) HandOver(ctx context.Context, revision int64, sweep bool) error {
	if sweep {
		return d.Sweep(ctx, revision)
	}
	snap, err := d.reached(ctx, revision)
	if err == nil && snap.Revision != revision {
		// The snapshot may be from an earlier read, and need not be the newest one: the request may be late, or the
		// state may have been recreated with lower revision numbers.
		snap, err = d.newest(ctx, revision)
	}
	if err != nil {
		return fmt.Errorf("wait for revision %d of %s: %w", revision, d.cfg.Domain, err)
	}
	d.automate(snap.State, false)
	return d.executeNew(ctx, snap, control.React(snap.State.Outbox.Rows(), snap.State.Timers.Rows(), event.At(d.cfg.Clock.Now())))
}

// reached returns a snapshot of at least the given revision, and waits for it if necessary. The snapshot need not be
// the newest.
func (d *Dispatcher) reached(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	snap, err := d.cfg.Snapshots.Await(waiting, revision-1)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return d.newest(ctx, revision) // the first read of a large state may take longer
	}
	return snap, err
}

// newest returns the newest state, which has at least the given revision.
func (d *Dispatcher) newest(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
	snap, err := d.cfg.Snapshots.Current(ctx)
	if err != nil || snap.Revision >= revision {
		return snap, err
	}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	return d.cfg.Snapshots.Await(waiting, revision-1)
}

// executeNew executes those actions that this process is not executing and has not executed
// recently.
func (d *Dispatcher) executeNew(ctx context.Context, snap *snapshot.Snapshot, actions []control.Action) error {
	now := event.At(d.cfg.Clock.Now())
	mine := actions[:0]
	for _, a := range actions {
		if d.inFlight.begin(actionKey(a), now) {
			mine = append(mine, a)
		}
	}
	return d.execute(ctx, snap, mine, func(a control.Action, err error) {
		switch a.(type) {
		case control.CreateDispatch, control.DeleteDispatch, control.CreateTimer, control.DeleteTimer:
			if err == nil {
				d.inFlight.done(actionKey(a), event.At(d.cfg.Clock.Now()))
				return
			}
		case control.Redispatch, control.Retime: // not recorded as done: each sweep asks the queue again
		}
		d.inFlight.release(actionKey(a))
	})
}

// actionKey returns a key that differs between any two actions, even if they concern the same
// queue task or none.
func actionKey(a control.Action) string {
	switch a := a.(type) {
	case control.Redispatch:
		return fmt.Sprintf("%T %s#%d", a, a.Request.DispatchID, a.Request.Generation)
	case control.Retime:
		return fmt.Sprintf("%T %s#%d", a, a.Request.TimerID, a.Request.Generation)
	case control.CreateDispatch, control.DeleteDispatch, control.CreateTimer, control.DeleteTimer:
	}
	return fmt.Sprintf("%T %s", a, a.Name())
}

// Client calls the dispatcher of a domain in another process.
type Client struct {
	Domain ids.Domain
	URL    string
	HTTP   *http.Client
}

// HandOver calls [Dispatcher.HandOver] over HTTP.
func (c *Client) HandOver(ctx context.Context, revision int64, sweep bool) error {
	data, err := json.Marshal(reconcileBody{
		Tenant: c.Domain.Tenant, Workspace: c.Domain.Workspace, Revision: revision, Sweep: sweep,
	})
	if err != nil {
		return fmt.Errorf("encode reconciliation request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/reconcile", bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("call dispatcher: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("call dispatcher: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return fmt.Errorf("call dispatcher: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("call dispatcher at %s: %s: %.300s", c.URL, res.Status, answer)
	}
	return nil
}

// Refill fills an empty queue with the pending work of the given revision, or of a later revision.
func (d *Dispatcher) Refill(ctx context.Context, revision int64) error {
	snap, err := d.cfg.Snapshots.Await(ctx, revision-1)
	if err != nil {
		return err
	}
	return d.Execute(ctx, snap, control.Refill(snap.State, event.At(d.cfg.Clock.Now())))
}
