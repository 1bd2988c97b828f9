// Package remote lets other processes call compactors over HTTP: it contains the server and the client. It decodes
// the notifications of Cloud Storage, and checks what a caller may ask for. This package is not a stable API.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Finder returns the compactor of a domain, and opens the compactor if necessary. It returns nil if the domain has
// nothing to fold.
type Finder func(context.Context, ids.Domain) (*compactor.Compactor, error)

const (
	maxBody = 1 << 20
	// maxNotification is the size limit of a push. A push names an object, and may also describe it.
	maxNotification = 64 << 10
	maxEntries      = 10_000
)

// Register adds the compactor's routes to a mux.
func Register(mux *http.ServeMux, find Finder) {
	mux.HandleFunc("POST /v1/compact", func(w http.ResponseWriter, r *http.Request) {
		var b body
		if err := contract.ReadJSON(http.MaxBytesReader(w, r.Body, maxBody), &b); err != nil {
			httpx.Refuse(w, http.StatusBadRequest, "the body must be {tenant, workspace, entries, data, barrier, sweep, through}: "+err.Error())
			return
		}
		serve(w, r, find, b)
	})
	mux.HandleFunc("POST /v1/notifications", func(w http.ResponseWriter, r *http.Request) {
		key, err := NotifiedObject(http.MaxBytesReader(w, r.Body, maxNotification))
		if errors.Is(err, ErrNoObject) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if err != nil {
			httpx.Refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		domain, entry, err := ledger.ParseKey(key)
		if err != nil {
			w.WriteHeader(http.StatusNoContent) // not a ledger entry, so a redelivery would not help
			return
		}
		serve(w, r, find, body{Tenant: domain.Tenant, Workspace: domain.Workspace, Entries: []string{entry}, notified: true})
	})
}

func serve(w http.ResponseWriter, r *http.Request, find Finder, b body) {
	domain, request, err := b.request()
	if err != nil {
		httpx.Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := b.authorize(RightsOf(r.Context())); err != nil {
		httpx.Refuse(w, http.StatusForbidden, err.Error())
		return
	}
	c, err := find(r.Context(), domain)
	if err != nil {
		httpx.Refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	var result compactor.Result // the result stays empty if the domain has nothing to fold
	if c != nil {
		if result, err = c.Compact(r.Context(), request); err != nil {
			httpx.Refuse(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	if b.notified && slices.Contains(result.Unreadable, b.Entries[0]) { // 503 makes Pub/Sub redeliver
		httpx.Refuse(w, http.StatusServiceUnavailable,
			"ledger entry "+b.Entries[0]+" cannot be folded yet: it is unreadable, or waits for an unreadable entry")
		return
	}
	_ = httpx.JSON(w, http.StatusOK, result) // if this fails, the caller has disconnected
}

// authorize checks that a caller with these rights may send the request.
func (b body) authorize(rights Rights) error {
	switch {
	case len(b.Data) > 0 && !rights.Data:
		return errors.New("this caller may not send the data of entries: send only their names")
	case (b.Sweep || b.Through != 0) && !rights.Sweep:
		return errors.New("this caller may not sweep")
	}
	return nil
}

// request returns the domain and the request that the body describes.
func (b body) request() (ids.Domain, compactor.Request, error) {
	domain := ids.Domain{Tenant: b.Tenant, Workspace: b.Workspace}
	request := compactor.Request{Barrier: b.Barrier, Sweep: b.Sweep, Through: b.Through, Notified: b.notified}
	if err := domain.Validate(); err != nil {
		return domain, request, err
	}
	if len(b.Entries) > maxEntries {
		return domain, request, fmt.Errorf("%d entries; at most %d are allowed: ask for a barrier", len(b.Entries), maxEntries)
	}
	for _, entry := range b.Entries {
		if !ids.Valid(entry) {
			return domain, request, fmt.Errorf("entry %.40q is not a ULID", entry)
		}
		request.Entries = append(request.Entries, compactor.Entry{ID: entry})
	}
	for i, data := range b.Data {
		if i < 0 || i >= len(request.Entries) {
			return domain, request, fmt.Errorf("data[%d] belongs to no entry", i)
		}
		if err := data.check(); err != nil {
			return domain, request, fmt.Errorf("data[%d]: %w", i, err)
		}
		e := &request.Entries[i]
		e.Data, e.Stored, e.Proof = []byte(data.Data), data.Stored.Time(), compactor.Proof{Version: data.Version, CRC32C: data.CRC32C}
	}
	return domain, request, nil
}
