// Package identity authenticates callers of services, and authenticates services to each
// other. It uses OpenID Connect ID tokens, as issued by Google's services (Pub/Sub, Cloud
// Tasks, Cloud Scheduler) and metadata server. This package is not a stable API.
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

// Google's issuer and the URL of its keys.
const (
	GoogleIssuer = "https://accounts.google.com"
	GoogleKeys   = "https://www.googleapis.com/oauth2/v3/certs"
)

// Errors of [Verifier.Verify], for callers to branch on.
var (
	// ErrUnknown reports that the caller has no token, or an invalid one.
	ErrUnknown = errors.New("unauthenticated caller")
	// ErrNotAllowed reports that the caller is authenticated but is not on the list of
	// accounts.
	ErrNotAllowed = errors.New("caller not authorized")
	// ErrUnavailable reports that no token can be verified now. A retry may succeed.
	ErrUnavailable = errors.New("the issuer's keys are unavailable")
)

// Config states which tokens and accounts a [Verifier] accepts.
type Config struct {
	// Issuer signs the tokens, with one of the keys at KeysURL.
	Issuer, KeysURL string
	// Audience is this service's URL. A token's audience must be this URL or a URL below it.
	Audience string
	// Accounts are the authorized callers, by e-mail address.
	Accounts []string
	Client   *http.Client
	Now      func() time.Time
}

const (
	// keysTimeout bounds a request for the keys, because all verifications wait for the same request.
	keysTimeout = 10 * time.Second
	// keysAge is the minimum time between two reads of the keys. Without it, any token with
	// an unknown key would cause a request to the issuer.
	keysAge = 30 * time.Second
)

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	cfg    Config
	tokens *oidc.IDTokenVerifier
}

// New returns a verifier. It reads the issuer's keys when it verifies the first token, and again when a token names
// an unknown key. The verifier uses only the values of ctx, and keeps working after ctx ends.
func New(ctx context.Context, cfg Config) *Verifier {
	cfg.Audience = strings.TrimSuffix(cfg.Audience, "/")
	client := &http.Client{Transport: &paced{inner: cmp.Or(cfg.Client.Transport, http.DefaultTransport), now: cfg.Now}, Timeout: keysTimeout}
	keys := keySet{oidc.NewRemoteKeySet(oidc.ClientContext(context.WithoutCancel(ctx), client), cfg.KeysURL)}
	return &Verifier{cfg, oidc.NewVerifier(cfg.Issuer, keys, &oidc.Config{
		SkipClientIDCheck:    true, // Verify checks the audience, which may have a path
		SupportedSigningAlgs: []string{oidc.RS256}, Now: cfg.Now,
	})}
}

// Verify returns the caller's account from the Authorization header of a request. The error
// wraps [ErrUnknown], [ErrNotAllowed] or [ErrUnavailable].
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
	case !slices.ContainsFunc(token.Audience, v.covers):
		return "", fmt.Errorf("%w: the token is for %q, not for %s", ErrUnknown, token.Audience, v.cfg.Audience)
	}
	var claims struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
	}
	if err := token.Claims(&claims); err != nil {
		return "", fmt.Errorf("%w: decode the claims of the token: %w", ErrUnknown, err)
	}
	if claims.Email == "" || !claims.Verified {
		return "", fmt.Errorf("%w: the token names no verified account", ErrUnknown)
	}
	if !slices.Contains(v.cfg.Accounts, claims.Email) {
		return "", fmt.Errorf("%w: account %s is not on the list of callers", ErrNotAllowed, claims.Email)
	}
	return claims.Email, nil
}

// covers reports whether an audience is this service's URL or a URL below it.
func (v *Verifier) covers(audience string) bool {
	rest, ok := strings.CutPrefix(audience, v.cfg.Audience)
	return ok && (rest == "" || rest[0] == '/')
}

// keySet stores the error of a failed read of the keys in the [context.Context] of the verification, because the error
// of the oidc package does not distinguish a failed read from an invalid token.
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

// errFresh rejects a token whose key is not among the keys that were read less than keysAge ago. The keys are not
// read again so soon, so the token's key is assumed not to exist.
var errFresh = errors.New("the issuer has no such key")

// paced rejects requests for the keys until keysAge has passed since the last successful request.
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
