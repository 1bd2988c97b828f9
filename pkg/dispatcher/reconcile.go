package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/compactor"
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
	// Revision is one that the state acted on must have reached.
	Revision int64 `json:"revision,omitempty"`
	// Sweep asks for anti-entropy as well.
	Sweep bool `json:"sweep,omitempty"`
}

// RegisterControl adds the routes of the platform to a mux: hand-overs from the
// compactor, notifications of manifests, and the sweeper's requests.
func RegisterControl(mux *http.ServeMux, find Finder) {
	reconcile := func(w http.ResponseWriter, r *http.Request, body reconcileBody) {
		if body.Sweep && !compactor.RightsOf(r.Context()).Sweep {
			writeProblem(w, &contract.Problem{Title: "Not allowed", Status: http.StatusForbidden, Field: "sweep", Detail: "this caller may not sweep"})
			return
		}
		d, problem := find.lookUp(r.Context(), ids.Domain{Tenant: body.Tenant, Workspace: body.Workspace})
		if problem == nil && body.Revision < 0 {
			problem = &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Field: "revision", Detail: "a revision is not negative"}
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
		key, err := compactor.NotifiedObject(http.MaxBytesReader(w, r.Body, maxBody))
		if errors.Is(err, compactor.ErrNoObject) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if err != nil {
			writeProblem(w, &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		domain, revision, err := manifest.ParseKey(key)
		if err != nil {
			w.WriteHeader(http.StatusNoContent) // of an object that is no manifest: nothing to do, and no retry
			return
		}
		reconcile(w, r, reconcileBody{Tenant: domain.Tenant, Workspace: domain.Workspace, Revision: revision})
	})
}

// HandOver acts on the state of a revision, or a later one, that another process
// published; with sweep, as [Dispatcher.Sweep] does.
//
// A state says what waits, not what is new: what this process has carried out
// itself a moment ago is still PENDING until its acknowledgement is folded, and
// is left alone for as long as a reconciliation would leave it.
func (d *Dispatcher) HandOver(ctx context.Context, revision int64, sweep bool) error {
	if sweep {
		return d.Sweep(ctx, revision)
	}
	snap, err := d.reached(ctx, revision)
	if err == nil && snap.Revision != revision {
		// It is behind what is at hand; or that is of projections that are no more, and
		// those that have been made anew count from below.
		snap, err = d.newest(ctx, revision)
	}
	if err != nil {
		return fmt.Errorf("wait for revision %d of %s: %w", revision, d.Domain, err)
	}
	return d.claimed(ctx, snap.Revision, control.React(snap.State.Outbox.Rows(), snap.State.Timers.Rows(), event.At(d.Clock.Now())))
}

// reached is the state of a revision, or of a later one: the one at hand, if it will do.
func (d *Dispatcher) reached(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	snap, err := d.Snapshots.Await(waiting, revision-1)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return d.newest(ctx, revision) // the first read of a large state takes what it takes
	}
	return snap, err
}

// newest is the newest state, and has at least a revision.
func (d *Dispatcher) newest(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
	snap, err := d.Snapshots.Current(ctx)
	if err != nil || snap.Revision >= revision {
		return snap, err
	}
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	return d.Snapshots.Await(waiting, revision-1)
}

// claimed carries out those actions that this process does not carry out already, and
// did not a moment ago.
func (d *Dispatcher) claimed(ctx context.Context, revision int64, actions []control.Action) error {
	now := event.At(d.Clock.Now())
	mine := actions[:0]
	for _, a := range actions {
		if d.claims.claim(claimName(a), now) {
			mine = append(mine, a)
		}
	}
	return d.execute(ctx, revision, mine, func(a control.Action, err error) {
		switch a.(type) {
		case control.CreateDispatch, control.DeleteDispatch, control.CreateTimer, control.DeleteTimer:
			if err == nil {
				d.claims.done(claimName(a), event.At(d.Clock.Now()))
				return
			}
		case control.Redispatch, control.Retime: // each sweep asks the queue
		}
		d.claims.release(claimName(a))
	})
}

// claimName tells actions apart, also those about the same queue task, and those
// about none.
func claimName(a control.Action) string {
	switch a := a.(type) {
	case control.Redispatch:
		return fmt.Sprintf("%T %s#%d", a, a.Request.DispatchID, a.Request.Generation)
	case control.Retime:
		return fmt.Sprintf("%T %s#%d", a, a.Request.TimerID, a.Request.Generation)
	case control.CreateDispatch, control.DeleteDispatch, control.CreateTimer, control.DeleteTimer:
	}
	return fmt.Sprintf("%T %s", a, a.Name())
}

// Client asks the dispatcher of a domain in another process.
type Client struct {
	Domain ids.Domain
	URL    string
	HTTP   *http.Client
}

// HandOver is [Dispatcher.HandOver] over HTTP.
func (c *Client) HandOver(ctx context.Context, revision int64, sweep bool) error {
	data, err := json.Marshal(reconcileBody{
		Tenant: c.Domain.Tenant, Workspace: c.Domain.Workspace, Revision: revision, Sweep: sweep,
	})
	if err != nil {
		return fmt.Errorf("encode reconciliation request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/reconcile", bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("ask dispatcher: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("ask dispatcher: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return fmt.Errorf("ask dispatcher: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("ask dispatcher at %s: %s: %.300s", c.URL, res.Status, answer)
	}
	return nil
}
