package compactor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Finder gives the compactor of a domain, which it may open for that; nil if there is
// nothing of the domain that could be folded.
type Finder func(context.Context, ids.Domain) (*Compactor, error)

// compactBody is the body of POST /v1/compact.
type compactBody struct {
	Tenant    string   `json:"tenant"`
	Workspace string   `json:"workspace"`
	Entries   []string `json:"entries,omitempty"`
	// Data is what entries hold, by their place in Entries, as far as the caller has just
	// stored them: the compactor need not read them.
	Data    map[int]handed `json:"data,omitempty"`
	Barrier bool           `json:"barrier,omitempty"`
	Sweep   bool           `json:"sweep,omitempty"`
	Through event.Time     `json:"through,omitzero"`

	notified bool // by the bucket, not by who has appended them
}

// encode is the body, without the bytes of entries if it is too large with them.
func (b compactBody) encode() ([]byte, error) {
	data := &bytes.Buffer{}
	encoder := json.NewEncoder(data)
	encoder.SetEscapeHTML(false) // entries are not escaped either
	if err := encoder.Encode(b); err != nil || data.Len() <= maxBody || b.Data == nil {
		return data.Bytes(), err
	}
	b.Data = nil
	return b.encode()
}

const (
	maxBody = 1 << 20
	// maxNotification is the largest push that is read: it names an object, and may
	// describe it.
	maxNotification = 64 << 10
	maxEntries      = 10_000
)

// Register adds the compactor's routes to a mux.
func Register(mux *http.ServeMux, find Finder) {
	mux.HandleFunc("POST /v1/compact", func(w http.ResponseWriter, r *http.Request) {
		var body compactBody
		if err := contract.ReadJSON(http.MaxBytesReader(w, r.Body, maxBody), &body); err != nil {
			problem(w, http.StatusBadRequest, "the body is not {tenant, workspace, entries, data, stored, barrier, sweep, through}: "+err.Error())
			return
		}
		if len(body.Entries) > maxEntries {
			problem(w, http.StatusBadRequest, fmt.Sprintf("%d entries are more than %d; ask for a barrier", len(body.Entries), maxEntries))
			return
		}
		serveCompact(w, r, find, body)
	})
	mux.HandleFunc("POST /v1/notifications", func(w http.ResponseWriter, r *http.Request) {
		key, err := NotifiedObject(http.MaxBytesReader(w, r.Body, maxNotification))
		if errors.Is(err, ErrNoObject) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if err != nil {
			problem(w, http.StatusBadRequest, err.Error())
			return
		}
		domain, entry, err := ledger.ParseKey(key)
		if err != nil {
			w.WriteHeader(http.StatusNoContent) // of an object that is no ledger entry: nothing to do, and no retry
			return
		}
		serveCompact(w, r, find, compactBody{Tenant: domain.Tenant, Workspace: domain.Workspace, Entries: []string{entry}, notified: true})
	})
}

func serveCompact(w http.ResponseWriter, r *http.Request, find Finder, body compactBody) {
	domain := ids.Domain{Tenant: body.Tenant, Workspace: body.Workspace}
	if err := domain.Validate(); err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	switch rights := RightsOf(r.Context()); {
	case len(body.Data) > 0 && !rights.Data:
		problem(w, http.StatusForbidden, "this caller may not hand over the data of entries: name the entries, and they are read")
		return
	case (body.Sweep || body.Through != 0) && !rights.Sweep:
		problem(w, http.StatusForbidden, "this caller may not sweep")
		return
	}
	request := Request{Barrier: body.Barrier, Sweep: body.Sweep, Through: body.Through, Notified: body.notified}
	for _, entry := range body.Entries {
		if !ids.Valid(entry) {
			problem(w, http.StatusBadRequest, fmt.Sprintf("entry %.40q is not a ULID", entry))
			return
		}
		request.Entries = append(request.Entries, Entry{ID: entry})
	}
	for i, data := range body.Data {
		if i < 0 || i >= len(request.Entries) {
			problem(w, http.StatusBadRequest, fmt.Sprintf("data[%d] is of no entry", i))
			return
		}
		if err := data.check(); err != nil {
			problem(w, http.StatusBadRequest, fmt.Sprintf("data[%d]: %v", i, err))
			return
		}
		e := &request.Entries[i]
		e.Data, e.Stored, e.Proof = []byte(data.Data), data.Stored.Time(), Proof{data.Generation, data.CRC32C}
	}
	c, err := find(r.Context(), domain)
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	var result Result // of a domain that has nothing
	if c != nil {
		if result, err = c.Compact(r.Context(), request); err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	if body.notified && len(body.Entries) == 1 && slices.Contains(result.Unread, body.Entries[0]) { // it is to be delivered again
		problem(w, http.StatusServiceUnavailable, "ledger entry "+body.Entries[0]+" cannot be folded yet: it cannot be read, or waits for one that cannot")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) //nolint:errchkjson // who asked is gone if this fails
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(contract.Problem{Title: http.StatusText(status), Status: status, Detail: contract.Cut(detail)}) //nolint:errchkjson // who asked is gone if this fails
}

// Client asks the compactor of a domain in another process.
type Client struct {
	Domain ids.Domain
	URL    string
	HTTP   *http.Client
}

// Compact implements the same as [Compactor.Compact], over HTTP.
func (c *Client) Compact(ctx context.Context, r Request) (Result, error) {
	body := compactBody{Tenant: c.Domain.Tenant, Workspace: c.Domain.Workspace, Barrier: r.Barrier, Sweep: r.Sweep, Through: r.Through}
	for i, e := range r.Entries {
		body.Entries = append(body.Entries, e.ID)
		if len(e.Data) > 0 && e.Proof != (Proof{}) && utf8.Valid(e.Data) {
			if body.Data == nil {
				body.Data = map[int]handed{}
			}
			h := handed{Data: string(e.Data), Generation: e.Proof.Generation, CRC32C: e.Proof.CRC32C}
			if !e.Stored.IsZero() {
				h.Stored = event.At(e.Stored)
			}
			body.Data[i] = h
		}
	}
	data, err := body.encode()
	if err != nil {
		return Result{}, fmt.Errorf("encode compaction request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/compact", bytes.NewReader(data))
	if err != nil {
		return Result{}, fmt.Errorf("ask compactor: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.HTTP.Do(req)
	if err != nil {
		return Result{}, fmt.Errorf("ask compactor: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return Result{}, fmt.Errorf("ask compactor: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return Result{}, fmt.Errorf("ask compactor at %s: %s: %.300s", c.URL, res.Status, answer)
	}
	var result Result
	if err := json.Unmarshal(answer, &result); err != nil {
		return Result{}, fmt.Errorf("read compactor's answer: %w", err)
	}
	return result, nil
}
