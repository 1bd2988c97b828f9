package embedded

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A browser cannot send the owner's token, and must never know it. `servo dev` therefore prints an
// address with a one-time code. The browser exchanges the code for a cookie that scripts cannot read.

const (
	// sessionAge is how long a cookie is valid.
	sessionAge = 30 * 24 * time.Hour
	// maxCodes limits the codes that wait for a browser. The oldest is forgotten first.
	maxCodes = 16
)

// pagePatterns are the routes of the web page. They serve files that are the same for everybody, so they need no
// credential. The page reads the state through other routes, which need a credential.
var pagePatterns = []string{"GET /{$}", "GET /w/", "GET /assets/", "GET /login"}

// browsers authenticates web browsers.
type browsers struct {
	key []byte
	now func() time.Time

	mu    sync.Mutex
	codes [][sha256.Size]byte // hashes of the codes that nobody has used, oldest first
}

// newBrowsers returns the authentication of a folder's browsers. If the system knows the users of connections, the key
// that signs cookies is derived from the folder's keys, so that a session outlives a restart. On other systems, the key
// is random, so a session ends with the process. A cookie can leak there: browsers also send it to servers of other
// users at other ports of this host, and Servo cannot see which user sends a request.
func newBrowsers(keys contract.Keyring, now func() time.Time) *browsers {
	b := &browsers{now: now, key: make([]byte, tokenBytes)}
	if secret := keys.Secrets[keys.Current]; knowsPeers && len(secret) > 0 {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte("servo browser session"))
		b.key = mac.Sum(nil)
	} else {
		_, _ = rand.Read(b.key) // never fails: see newToken
	}
	return b
}

// newCode returns a code for one browser.
func (b *browsers) newCode() string {
	code := newToken()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.codes) == maxCodes {
		b.codes = b.codes[1:]
	}
	b.codes = append(b.codes, sha256.Sum256([]byte(code)))
	return code
}

// redeem reports whether a code is valid, and makes it invalid.
func (b *browsers) redeem(code string) bool {
	sum := sha256.Sum256([]byte(code))
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.codes {
		if subtle.ConstantTimeCompare(sum[:], b.codes[i][:]) == 1 {
			b.codes = append(b.codes[:i:i], b.codes[i+1:]...)
			return true
		}
	}
	return false
}

// cookieName returns the name of the session's cookie. Browsers send cookies to every port of a
// host, so the name contains the port.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "80"
	}
	return "servo-" + port
}

// sign returns the signature of a session that ends at the given Unix time.
func (b *browsers) sign(expires string) string {
	mac := hmac.New(sha256.New, b.key)
	mac.Write([]byte(expires))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (b *browsers) cookie(r *http.Request) *http.Cookie {
	expires := strconv.FormatInt(b.now().Add(sessionAge).Unix(), 10)
	return &http.Cookie{
		Name: cookieName(r), Value: expires + "." + b.sign(expires), Path: "/", MaxAge: int(sessionAge / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// isAuthenticated reports whether a request carries the cookie of a session.
func (b *browsers) isAuthenticated(r *http.Request) bool {
	if b == nil {
		return false
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return false
	}
	expires, signature, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(signature), []byte(b.sign(expires))) {
		return false
	}
	second, err := strconv.ParseInt(expires, 10, 64)
	return err == nil && b.now().Unix() < second
}

// ownOrigin reports whether a browser's request was caused by a page of this server or by a user who typed the
// address. Pages at other ports of this host are other origins, although browsers also send the cookie with their
// requests.
func ownOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
		origin := r.Header.Get("Origin")
		u, err := url.Parse(origin)
		return origin == "" || err == nil && u.Host == r.Host
	}
	return false
}

// registerPage registers the web page of a domain, and the routes with which browsers log in. The parameter "address"
// is the address of the server.
func (b *browsers) registerPage(mux *http.ServeMux, page http.Handler, d ids.Domain, address string) {
	home := fmt.Sprintf("/w/%s/%s/", url.PathEscape(d.Tenant), url.PathEscape(d.Workspace))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, home, http.StatusFound)
	})
	mux.Handle("GET /w/", page)
	mux.Handle("GET /assets/", page)
	// This is the only GET request that changes something.
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		// A program that only checks whether the address exists sends HEAD. That request must not use up the code.
		if r.Method == http.MethodGet && b.redeem(r.URL.Query().Get("code")) {
			http.SetCookie(w, b.cookie(r))
		}
		http.Redirect(w, r, home, http.StatusSeeOther) // without a session, the page says how to log in
	})
	mux.HandleFunc("POST /v1/logins", func(w http.ResponseWriter, _ *http.Request) {
		_ = httpx.JSON(w, http.StatusCreated, Login{URL: b.loginURL(address)}) // on an error, the client has disconnected
	})
}

// Login is the response to POST /v1/logins.
type Login struct {
	// URL is an address that logs in one browser, once.
	URL string `json:"url"`
}

func (b *browsers) loginURL(address string) string { return address + "/login?code=" + b.newCode() }

// LoginURL returns an address that logs in one browser, once.
func (s *Stack) LoginURL() string { return s.front.browsers.loginURL(s.URL) }
