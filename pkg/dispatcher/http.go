package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// refresh folds everything in the ledger and returns a snapshot that contains it.
func (d *Dispatcher) refresh(ctx context.Context) (*snapshot.Snapshot, error) {
	result, err := d.cfg.Compactor.Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return nil, err
	}
	if len(result.Unreadable) > 0 {
		return nil, fmt.Errorf("the state of %s cannot be brought up to date: ledger entry %s, or a plan that it names, cannot be read; "+
			"restore it, or record with `servo admin skip` that it is lost", d.cfg.Domain, result.Unreadable[0])
	}
	snap, err := d.cfg.Snapshots.Await(ctx, result.Revision-1)
	if err != nil {
		return nil, err
	}
	var caughtUp event.Time
	if err := caughtUp.UnmarshalText([]byte(result.CaughtUpAt)); err != nil {
		return nil, err
	}
	fresh := *snap
	fresh.CaughtUpAt = max(fresh.CaughtUpAt, caughtUp)
	return &fresh, nil
}

func (d *Dispatcher) write(w http.ResponseWriter, r *http.Request, v any) {
	if err := httpx.JSON(w, http.StatusOK, v); err != nil {
		d.cfg.Logger.DebugContext(r.Context(), "answer not delivered", slog.Any("error", err))
	}
}

func writeProblem(w http.ResponseWriter, p *contract.Problem) {
	_ = httpx.Problem(w, *p) // if this fails, the client has disconnected
}

func internal(err error) *contract.Problem {
	return &contract.Problem{Title: "Internal error", Status: http.StatusInternalServerError, Detail: err.Error()}
}
