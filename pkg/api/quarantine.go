package api

import (
	"net/http"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
)

func (h handler) candidates(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	all, err := engine.Candidates(snap.State)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "outputs": all}, nil
}

// resolve returns a handler that decides about an output in quarantine.
func (h handler) resolve(decision string) func(*http.Request) (int, any, error) {
	return func(r *http.Request) (int, any, error) {
		var body struct {
			Reason string `json:"reason"`
		}
		if err := decode(r, &body); err != nil {
			return 0, nil, err
		}
		if len(body.Reason) > event.MaxMessage {
			return 0, nil, refuse(http.StatusBadRequest, "reason has %d bytes: at most %d are allowed", len(body.Reason), event.MaxMessage)
		}
		snap, err := h.Engine.Current(r.Context())
		if err != nil {
			return 0, nil, err
		}
		c, err := engine.FindCandidate(snap.State, r.PathValue("materialization"))
		if err != nil {
			return 0, nil, err
		}
		if err := h.engineOf(r).Resolve(r.Context(), c, decision, body.Reason); err != nil {
			return 0, nil, err
		}
		return http.StatusOK, c, nil
	}
}
