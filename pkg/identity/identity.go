// Package identity tells services who calls them, and them who they are to those
// that they call: by ID tokens of OpenID Connect, as Google's own services
// (Pub/Sub, Cloud Tasks, Cloud Scheduler) and its metadata server give them out.
package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// Google's issuer, and where its keys are.
const (
	GoogleIssuer = "https://accounts.google.com"
	GoogleKeys   = "https://www.googleapis.com/oauth2/v3/certs"
)

// Why a caller is not let in.
var (
	// ErrUnknown says that the caller has no token, or one that proves nothing here.
	ErrUnknown = errors.New("who calls is not known")
	// ErrNotAllowed says that the caller is known, and none of those who may call.
	ErrNotAllowed = errors.New("who calls may not")
	// ErrUnavailable says that nobody could be verified now.
	ErrUnavailable = errors.New("the issuer's keys cannot be had now")
)

// Config says whose tokens are believed, and for whom.
type Config struct {
	// Issuer signs the tokens, with one of the keys at KeysURL.
	Issuer, KeysURL string
	// Audience is the URL that tokens are for, or that their audience is below.
	Audience string
	// Accounts are those who may call, by e-mail address.
	Accounts []string
	Client   *http.Client
	Now      func() time.Time
}

const (
	// keysTimeout bounds a request for the keys: all who need them wait for one.
	keysTimeout = 10 * time.Second
	// keysAge is how old the keys are at least before they are read anew: a stranger's
	// token names a key that is not known, too.
	keysAge = 30 * time.Second
)

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	cfg    Config
	tokens *oidc.IDTokenVerifier
}

// New makes a verifier. The issuer's keys are read when the first token comes, with
// ctx's values; they are kept, and read anew when a token names one that is not
// known.
func New(ctx context.Context, cfg Config) *Verifier {
	cfg.Audience = strings.TrimSuffix(cfg.Audience, "/")
	client := &http.Client{Transport: &paced{inner: cmp.Or(cfg.Client.Transport, http.DefaultTransport), now: cfg.Now}, Timeout: keysTimeout}
	keys := keySet{oidc.NewRemoteKeySet(oidc.ClientContext(context.WithoutCancel(ctx), client), cfg.KeysURL)}
	return &Verifier{cfg, oidc.NewVerifier(cfg.Issuer, keys, &oidc.Config{
		SkipClientIDCheck:    true, // an audience may have a path
		SupportedSigningAlgs: []string{oidc.RS256}, Now: cfg.Now,
	})}
}

// Verify gives the account of a caller, by the Authorization header of a request.
// The error is [ErrUnknown], [ErrNotAllowed] or [ErrUnavailable].
func (v *Verifier) Verify(ctx context.Context, authorization string) (account string, err error) {
	scheme, raw, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") || raw == "" {
		return "", fmt.Errorf("%w: the request has no bearer token", ErrUnknown)
	}
	var keysErr error
	token, err := v.tokens.Verify(context.WithValue(ctx, keysFailed{}, &keysErr), strings.TrimSpace(raw))
	switch {
	case keysErr != nil:
		return "", fmt.Errorf("%w: %w", ErrUnavailable, keysErr)
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	case !slices.ContainsFunc(token.Audience, v.here):
		return "", fmt.Errorf("%w: the token is for %q, not for %s", ErrUnknown, token.Audience, v.cfg.Audience)
	}
	var claims struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
	}
	if err := token.Claims(&claims); err != nil {
		return "", fmt.Errorf("%w: the token's claims: %w", ErrUnknown, err)
	}
	if claims.Email == "" || !claims.Verified {
		return "", fmt.Errorf("%w: the token names no verified account", ErrUnknown)
	}
	if !slices.Contains(v.cfg.Accounts, claims.Email) {
		return "", fmt.Errorf("%w: %s is not one of the callers", ErrNotAllowed, claims.Email)
	}
	return claims.Email, nil
}

// here reports whether an audience is this service: its URL, or one below it.
func (v *Verifier) here(audience string) bool {
	rest, ok := strings.CutPrefix(audience, v.cfg.Audience)
	return ok && (rest == "" || rest[0] == '/')
}

// keySet tells whoever asked, by the context, that it was the keys that could not be
// had.
type keySet struct{ oidc.KeySet }

type keysFailed struct{}

// VerifySignature implements [oidc.KeySet].
func (k keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, jwt)
	if err != nil && !errors.Is(err, errFresh) && strings.HasPrefix(err.Error(), "fetching keys") {
		if failed, ok := ctx.Value(keysFailed{}).(*error); ok {
			*failed = err
		}
	}
	return payload, err
}

// errFresh says that the keys were read moments ago: a key that is not among them is
// none.
var errFresh = errors.New("the issuer has no such key")

// paced makes requests for the keys, unless the last answer is fresh.
type paced struct {
	inner http.RoundTripper
	now   func() time.Time

	mu   sync.Mutex
	last time.Time
}

// RoundTrip implements [http.RoundTripper].
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	fresh := !p.last.IsZero() && p.now().Sub(p.last) < keysAge
	p.mu.Unlock()
	if fresh {
		return nil, errFresh
	}
	res, err := p.inner.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusOK {
		p.mu.Lock()
		p.last = p.now()
		p.mu.Unlock()
	}
	return res, err
}
