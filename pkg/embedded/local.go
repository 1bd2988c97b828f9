package embedded

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
)

// ErrNotLocal reports that other machines could reach a listen address.
var ErrNotLocal = errors.New("other machines could reach it, and the token would cross the network in plain text")

// CheckListen returns an error wrapping [ErrNotLocal] for an address that other machines could
// reach. The empty address is local.
func CheckListen(address string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	if !loopback(host) {
		return fmt.Errorf("listen on %s: %w", address, ErrNotLocal)
	}
	return nil
}

// listen listens on a local address. If the address is empty, it listens on a free port of 127.0.0.1. It also returns
// the URL of the listener.
func listen(ctx context.Context, address string) (net.Listener, string, error) {
	address = cmp.Or(address, "127.0.0.1:0")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, "http://" + l.Addr().String(), nil
}

// loopback reports whether a host is localhost or a loopback address.
func loopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hostOf returns the host of "host:port", or the address itself if it has no port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// localOnly rejects requests from other machines. It also rejects requests that a foreign web page
// in a local browser could send: requests that name another host (DNS rebinding), and requests from
// another origin that change something.
func localOnly(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deny(w, http.StatusForbidden, "this server rejects requests of web pages from another origin: "+r.Header.Get("Origin"))
	}))
	next = origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !loopback(hostOf(r.RemoteAddr)):
			deny(w, http.StatusForbidden, "this server accepts requests from this machine only")
		case !loopback(hostOf(r.Host)):
			deny(w, http.StatusForbidden, "this server accepts the host names 127.0.0.1 and localhost only")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// maxCompactBytes is the maximum size of the body of a request to fold.
const maxCompactBytes = 1 << 20

// registerCompact adds POST /v1/compact, with which other processes ask the owner to fold the entries that they have
// appended. It rejects requests that contain the bytes of entries: the owner reads every entry from the folder, so
// that it folds nothing that the ledger does not contain.
func registerCompact(mux *http.ServeMux, find remote.Finder) {
	const pattern = "POST /v1/compact"
	inner := http.NewServeMux()
	remote.Register(inner, find)
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCompactBytes))
		if err != nil {
			httpx.Refuse(w, http.StatusBadRequest, "read the request: "+err.Error())
			return
		}
		var has struct {
			Data json.RawMessage `json:"data"`
		}
		if json.Unmarshal(body, &has) == nil && has.Data != nil { // the compactor rejects invalid JSON
			httpx.Refuse(w, http.StatusForbidden, "this server reads entries from the ledger itself: omit the field data")
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, r)
	})
}

// handleUnknown answers requests that match no route. Like all error responses, its response is a problem document.
func handleUnknown(mux *http.ServeMux) {
	const unknown = "/"
	mux.HandleFunc(unknown, func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != unknown {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) == 0 {
			httpx.Refuse(w, http.StatusNotFound, "unknown route "+r.URL.Path)
			return
		}
		allow := strings.Join(allowed, ", ")
		w.Header().Set("Allow", allow)
		httpx.Refuse(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s allows %s, not %s", r.URL.Path, allow, r.Method))
	})
}
