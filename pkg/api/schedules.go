package api

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
)

// Limits of listings of ticks.
const (
	defaultTicks = 50
	maxTicks     = 1000
)

func (h handler) schedules(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	all, err := engine.Schedules(snap.State)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "schedules": all}, nil
}

func (h handler) schedule(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	s, err := engine.FindSchedule(snap.State, r.PathValue("schedule"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s, nil
}

func (h handler) ticks(r *http.Request) (int, any, error) {
	n, err := limit(r, defaultTicks, maxTicks)
	if err != nil {
		return 0, nil, err
	}
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	ticks, err := engine.Ticks(r.Context(), snap, r.PathValue("schedule"), n)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"schedule": r.PathValue("schedule"), "ticks": ticks}, nil
}

// ScheduleCommand is the body of the routes that change a schedule.
type ScheduleCommand struct {
	Reason  string `json:"reason"`   // pause
	CatchUp bool   `json:"catch_up"` // resume
	Overlap string `json:"overlap"`  // trigger
}

// commandSchedule returns a handler that sends a command about a schedule.
func (h handler) commandSchedule(verb string) func(*http.Request) (int, any, error) {
	return func(r *http.Request) (int, any, error) {
		var body ScheduleCommand
		if err := decode(r, &body); err != nil {
			return 0, nil, err
		}
		switch {
		case len(body.Reason) > event.MaxMessage:
			return 0, nil, refuse(http.StatusBadRequest, "reason has %d bytes: at most %d are allowed", len(body.Reason), event.MaxMessage)
		case body.Overlap != "" && !slices.Contains(event.Overlaps(), body.Overlap):
			return 0, nil, refuse(http.StatusBadRequest, "unknown overlap policy %q: choose from %v", body.Overlap, event.Overlaps())
		case body.Reason != "" && verb != event.VerbPause, body.CatchUp && verb != event.VerbResume, body.Overlap != "" && verb != event.VerbTrigger:
			return 0, nil, refuse(http.StatusBadRequest, "a field of the body has no effect: reason belongs to pause, catch_up to resume, and overlap to trigger")
		}
		s, err := h.engineOf(r).CommandSchedule(r.Context(), &event.AutomationCommand{
			Name: r.PathValue("schedule"), Verb: verb, Reason: body.Reason, CatchUp: body.CatchUp, Overlap: body.Overlap,
		})
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, s, nil
	}
}

func (h handler) backfillSchedule(r *http.Request) (int, any, error) {
	var body struct {
		From time.Time `json:"from"`
		To   time.Time `json:"to"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	if body.From.IsZero() || !body.From.Before(body.To) {
		return 0, nil, refuse(http.StatusBadRequest, `set "from" and, after it, "to": times in RFC 3339`)
	}
	made, err := h.engineOf(r).BackfillSchedule(r.Context(), r.PathValue("schedule"), body.From, body.To)
	switch {
	case errors.Is(err, engine.ErrNothing), errors.Is(err, engine.ErrPaused):
		return 0, nil, &refusal{http.StatusConflict, err}
	case err != nil:
		return 0, nil, err
	}
	return http.StatusAccepted, made, nil
}

func (h handler) requests(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	all, err := engine.Requests(snap.State, r.URL.Query().Get("ended") == "true")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "requests": all}, nil
}

func (h handler) cancelRequest(r *http.Request) (int, any, error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := decode(r, &body); err != nil {
		return 0, nil, err
	}
	if err := h.engineOf(r).CancelRequest(r.Context(), r.PathValue("request"), body.Reason); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]string{"request_id": r.PathValue("request"), "state": "CANCELLED"}, nil
}
