package api

import (
	"net/http"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Limits of listings of messages.
const (
	defaultMessages = 50
	maxMessages     = 1000
)

func (h handler) alerts(r *http.Request) (int, any, error) {
	n, err := limit(r, defaultMessages, maxMessages)
	if err != nil {
		return 0, nil, err
	}
	all, err := h.Engine.Alerts(r.Context(), n)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, all, nil
}

func (h handler) deadlines(r *http.Request) (int, any, error) {
	all, err := h.Engine.Promises(r.Context())
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"deadlines": all}, nil
}

// attention answers what a person should look at.
func (h handler) attention(r *http.Request) (int, any, error) {
	snap, err := h.Engine.Current(r.Context())
	if err != nil {
		return 0, nil, err
	}
	var assets []plan.Asset // without a valid project, failures of all assets count
	if p, err := h.Project(); err == nil {
		assets = p.Assets
	}
	found, err := engine.FindAttention(r.Context(), snap, assets, event.At(h.Engine.Now()))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{"revision": snap.Revision, "attention": append([]engine.Attention{}, found...)}, nil
}
