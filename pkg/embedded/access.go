package embedded

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
)

// tokenBytes is the size of an owner's token: 256 bits cannot be guessed.
const tokenBytes = 32

// newToken returns a random token of characters that headers and URLs allow.
func newToken() string {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // never fails: crypto/rand crashes the program instead
	return base64.RawURLEncoding.EncodeToString(secret)
}

// openPatterns are the routes that need neither the token nor a session. The health routes reveal nothing about the
// state. A callback's URL is signed, and the dispatcher verifies the signature before it reads anything. All other
// requests, except those for [pagePatterns], need the token or the cookie of a session, even if they have no route.
var openPatterns = []string{"GET /healthz", "GET /readyz", contract.CallbackPattern}

// access decides which requests reach the routes of a stack.
type access struct {
	mux      *http.ServeMux
	token    [sha256.Size]byte // the hash of the token, so that a comparison takes the same time for every guess
	uid      int
	browsers *browsers // nil: no page is served
}

// requireToken passes a request to the mux if it has the owner's token or the cookie of a session, or if its route
// needs neither.
func requireToken(mux *http.ServeMux, token string, sessions *browsers) http.Handler {
	return &access{mux: mux, token: sha256.Sum256([]byte(token)), uid: os.Getuid(), browsers: sessions}
}

// ServeHTTP implements [http.Handler].
func (a *access) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, pattern := a.mux.Handler(r)
	page := a.browsers != nil && slices.Contains(pagePatterns, pattern)
	switch {
	case page, a.isAuthenticated(r):
		if uid, known := peerOf(r).user(); known && !a.trusts(uid) {
			a.refuseUser(w, uid) // the token has leaked: only processes of the server's user may use it
			return
		}
	case a.browsers.isAuthenticated(r):
		if !ownOrigin(r) {
			deny(w, http.StatusForbidden, "this server rejects requests of web pages from another origin: "+r.Header.Get("Origin"))
			return
		}
		// A cookie leaks more easily than the token. So on systems that can look up the user of a connection, the lookup
		// must succeed. It fails if the sender has disconnected.
		if uid, known := peerOf(r).user(); known && !a.trusts(uid) || !known && knowsPeers {
			a.refuseUser(w, uid)
			return
		}
	case !slices.Contains(openPatterns, pattern):
		w.Header().Set("WWW-Authenticate", "Bearer")
		deny(w, http.StatusUnauthorized, "send `Authorization: Bearer TOKEN` with the token from the file owner.json in the state folder; "+
			"only the user who started this server can read this file. `servo ui` prints an address that logs a browser in")
		return
	}
	a.mux.ServeHTTP(w, r)
}

// trusts reports whether processes of a user may use the token. Root may, because it can read the token anyway.
func (a *access) trusts(uid int) bool { return uid == a.uid || uid == 0 }

func (a *access) refuseUser(w http.ResponseWriter, uid int) {
	deny(w, http.StatusForbidden, fmt.Sprintf("this server accepts requests of user %d only, not of user %d", a.uid, uid))
}

// deny rejects a request of an unauthenticated or unauthorized caller.
func deny(w http.ResponseWriter, status int, detail string) {
	p := contract.Problem{Status: status, Detail: detail} // the form of the API's errors: docs/reference/errors.md
	p.Type, p.Title = "urn:servo:problem:permission-denied", "Permission denied"
	if status == http.StatusUnauthorized {
		p.Type, p.Title = "urn:servo:problem:unauthenticated", "Not authenticated"
	}
	_ = httpx.Problem(w, p) // on an error, the client has disconnected
}

func (a *access) isAuthenticated(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

// peer is the other end of a connection. The first request that needs the peer's user looks the user up.
type peer struct {
	remote, local netip.AddrPort
	once          sync.Once
	uid           int
	known         bool
}

type peerKey struct{}

// withPeer is the ConnContext of the server.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	remote, remoteErr := netip.ParseAddrPort(conn.RemoteAddr().String())
	local, localErr := netip.ParseAddrPort(conn.LocalAddr().String())
	if remoteErr != nil || localErr != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, &peer{remote: remote, local: local})
}

func peerOf(r *http.Request) *peer {
	p, _ := r.Context().Value(peerKey{}).(*peer)
	return p
}

// user returns the id of the user whose process has the other end of the connection. It returns false if the system
// does not know the user.
func (p *peer) user() (uid int, known bool) {
	if p == nil {
		return 0, false
	}
	p.once.Do(func() { p.uid, p.known = socketOwner(p.remote, p.local) })
	return p.uid, p.known
}

// Client returns an HTTP client that adds the owner's token to requests to the owner, and to no others.
func (o Owner) Client() *http.Client {
	client := newClient()
	if u, err := url.Parse(o.URL); err == nil {
		client.Transport = bearer{host: u.Host, token: o.Token, inner: client.Transport}
	}
	return client
}

// bearer sends a token with the requests to one host.
type bearer struct {
	host, token string
	inner       http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == b.host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.inner.RoundTrip(r)
}

// CloseIdleConnections implements the interface that [http.Client.CloseIdleConnections] looks for.
func (b bearer) CloseIdleConnections() {
	if c, ok := b.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
