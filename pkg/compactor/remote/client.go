package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Client calls the compactor of a domain in another process.
type Client struct {
	Domain ids.Domain
	URL    string
	HTTP   *http.Client
}

// Compact is [compactor.Compactor.Compact] over HTTP. It sends the content of each entry that has a [compactor.Proof]
// and can be represented in JSON. The compactor reads the other entries from the store.
func (c *Client) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	data, err := c.body(r).encode()
	if err != nil {
		return compactor.Result{}, fmt.Errorf("encode compaction request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/compact", bytes.NewReader(data))
	if err != nil {
		return compactor.Result{}, fmt.Errorf("call compactor: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	response, err := c.HTTP.Do(req)
	if err != nil {
		return compactor.Result{}, fmt.Errorf("call compactor: %w", err)
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return compactor.Result{}, fmt.Errorf("call compactor: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return compactor.Result{}, fmt.Errorf("call compactor at %s: %s: %.300s", c.URL, response.Status, data)
	}
	var result compactor.Result
	if err := json.Unmarshal(data, &result); err != nil {
		return compactor.Result{}, fmt.Errorf("decode the compactor's response: %w", err)
	}
	return result, nil
}

func (c *Client) body(r compactor.Request) body {
	b := body{Tenant: c.Domain.Tenant, Workspace: c.Domain.Workspace, Barrier: r.Barrier, Sweep: r.Sweep, Through: r.Through}
	for i, e := range r.Entries {
		b.Entries = append(b.Entries, e.ID)
		if len(e.Data) == 0 || e.Proof == (compactor.Proof{}) || !utf8.Valid(e.Data) {
			continue
		}
		if b.Data == nil {
			b.Data = map[int]content{}
		}
		sent := content{Data: string(e.Data), Version: e.Proof.Version, CRC32C: e.Proof.CRC32C}
		if !e.Stored.IsZero() {
			sent.Stored = event.At(e.Stored)
		}
		b.Data[i] = sent
	}
	return b
}
