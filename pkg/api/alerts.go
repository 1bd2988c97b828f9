package api

import "net/http"

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
