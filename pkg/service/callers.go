package service

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// AnyCaller is a value of --callers. With it, a service accepts every caller without
// authentication.
const AnyCaller = "any"

// Values of --identity, which selects the account that a service uses to call other services.
const (
	NoIdentity     = "none"
	GoogleIdentity = "google"
)

func (c *config) callerFlags(f *flag.FlagSet) {
	f.StringVar(&c.Callers, "callers", "", "accounts that may call, as ROLE=ACCOUNT, separated by commas; roles are "+strings.Join(roles, ", ")+"; "+AnyCaller+": do not authenticate callers (required for a bucket)")
	f.StringVar(&c.Audience, "audience", "", "audience of callers' tokens: the URL at which they call this service (default: --url)")
	f.StringVar(&c.Issuer, "issuer", identity.GoogleIssuer, "issuer of callers' tokens")
	f.StringVar(&c.IssuerKeys, "issuer-keys", identity.GoogleKeys, "URL of the issuer's keys")
	f.StringVar(&c.Identity, "identity", "", GoogleIdentity+": call other services with identity tokens of this machine's account; "+NoIdentity+": without tokens (default: "+GoogleIdentity+" for a bucket)")
}

// inCloud reports whether the store is a bucket.
func (c *config) inCloud() bool { return strings.Contains(c.Store, "://") }

// applyDefaults sets the fields whose defaults depend on other flags.
func (c *config) applyDefaults() {
	if c.Audience == "" {
		c.Audience = c.URL
	}
	if c.Identity == "" {
		c.Identity = NoIdentity
		if c.inCloud() {
			c.Identity = GoogleIdentity
		}
	}
}

// Roles of callers. An account can have several roles, and a role can have several accounts.
const (
	roleCompactor  = "compactor"
	roleDispatcher = "dispatcher"
	roleSweeper    = "sweeper"
	roleScheduler  = "scheduler"
	rolePubSub     = "pubsub"
	roleQueue      = "queue"
)

var roles = []string{roleCompactor, roleDispatcher, roleSweeper, roleScheduler, rolePubSub, roleQueue}

// allowed maps each route to the roles that may call it. If callers are authenticated, a route that is in neither of
// the maps allowed and open rejects every caller.
var allowed = map[string][]string{
	"POST /v1/compact":       {roleDispatcher, roleSweeper},
	"POST /v1/reconcile":     {roleCompactor, roleSweeper},
	"POST /v1/notifications": {rolePubSub},
	dispatcher.TimerPattern:  {roleQueue},
	sweeper.Pattern:          {roleScheduler},
}

// accounts returns the roles of each account that may call.
func (c *config) accounts() (map[string][]string, error) {
	accounts := map[string][]string{}
	for part := range strings.SplitSeq(c.Callers, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		role, account, _ := strings.Cut(part, "=")
		if !slices.Contains(roles, role) || !strings.Contains(account, "@") {
			return nil, fmt.Errorf("--callers: %q is invalid: expected ROLE=ACCOUNT, for example sweeper=servo-sweeper@my-project.iam.gserviceaccount.com; roles are %s", part, strings.Join(roles, ", "))
		}
		accounts[account] = append(accounts[account], role)
	}
	return accounts, nil
}

// verifies reports whether callers are authenticated.
func (c *config) verifies() bool { return c.Callers != "" && c.Callers != AnyCaller }

// checkCallers returns the problems of the flags about callers and identity.
func (c *config) checkCallers() (problems []error) {
	if c.Identity != GoogleIdentity && c.Identity != NoIdentity {
		problems = append(problems, fmt.Errorf("--identity %q is neither %s nor %s", c.Identity, GoogleIdentity, NoIdentity))
	}
	if c.inCloud() && c.Callers == "" {
		problems = append(problems, fmt.Errorf("--callers is missing: name the service accounts that may call, or write %s if something else authenticates callers", AnyCaller))
	}
	if !c.verifies() {
		return problems
	}
	accounts, err := c.accounts()
	if err != nil {
		problems = append(problems, err)
	} else if len(accounts) == 0 {
		problems = append(problems, fmt.Errorf("--callers %q names no account", c.Callers))
	}
	if c.Audience == "" {
		problems = append(problems, errors.New("--audience is missing: write the URL at which callers reach this service"))
	}
	return append(problems, checkURL("audience", c.Audience, false), checkURL("issuer", c.Issuer, true), checkURL("issuer-keys", c.IssuerKeys, true))
}

// callers authenticates callers and knows their roles.
type callers struct {
	*identity.Verifier

	roles map[string][]string // the roles of each account
}

// verifier returns the authenticator of callers, or nil if callers are not authenticated.
func (c *config) verifier(ctx context.Context, p Process, logger *slog.Logger) *callers {
	if !c.verifies() {
		if c.inCloud() {
			logger.WarnContext(ctx, "callers are not authenticated")
		}
		return nil
	}
	accounts, _ := c.accounts() // no error: the check of the configuration has accepted the accounts
	return &callers{identity.New(ctx, identity.Config{
		Issuer: c.Issuer, KeysURL: c.IssuerKeys, Audience: c.Audience, Accounts: slices.Collect(maps.Keys(accounts)),
		Client: p.Network.Client(), Now: p.Clock.Now,
	}), accounts}
}

// client returns an HTTP client for calls to other services. It sends identity tokens if this process has an
// identity.
func (p Process) client(cfg config) (*http.Client, error) {
	client := p.Network.Client()
	if cfg.Identity != GoogleIdentity {
		return client, nil
	}
	if p.Tokens == nil {
		return nil, fmt.Errorf("--identity %s: this program cannot get identity tokens; use --identity none", cfg.Identity)
	}
	client.Transport = p.Tokens.Transport(client.Transport)
	return client, nil
}

// open lists the routes without authentication. Their responses are not secret, or their requests are signed
// (callbacks).
var open = map[string]bool{"GET /healthz": true, "GET /readyz": true, contract.CallbackPattern: true}

// Reasons why callers are refused.
const (
	reasonUnknown     = "unknown"
	reasonNotAllowed  = "not_allowed"
	reasonUnavailable = "unavailable" // the caller could not be authenticated
)

// authorize authenticates and authorizes the caller of a route. It returns the request with the caller's account and
// rights. If the caller is rejected, it responds with an error and returns nil.
func (s *server) authorize(w http.ResponseWriter, r *http.Request, route string) *http.Request {
	if open[route] {
		return r
	}
	if s.callers == nil {
		return r.WithContext(remote.WithRights(r.Context(), remote.Rights{Data: true, Sweep: true}))
	}
	account, err := s.callers.Verify(r.Context(), r.Header.Get("Authorization"))
	has := s.callers.roles[account]
	if err == nil && !slices.ContainsFunc(allowed[route], func(role string) bool { return slices.Contains(has, role) }) {
		err = fmt.Errorf("%w: %s has role %s; %s allows %s", identity.ErrNotAllowed, account, strings.Join(has, " and "), route,
			cmp.Or(strings.Join(allowed[route], " and "), "no role"))
	}
	if err == nil {
		return r.WithContext(remote.WithRights(identity.WithCaller(r.Context(), account), remote.Rights{
			Data: slices.Contains(has, roleDispatcher), Sweep: slices.Contains(has, roleSweeper),
		}))
	}
	// Do not respond with status 503: it would make the queue slow down for all domains.
	reason, status := reasonUnavailable, http.StatusInternalServerError
	switch {
	case errors.Is(err, identity.ErrUnknown):
		reason, status = reasonUnknown, http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	case errors.Is(err, identity.ErrNotAllowed):
		reason, status = reasonNotAllowed, http.StatusForbidden
	}
	s.metrics.Add(refusedCallers, 1, reason)
	s.warnings.warn(r.Context(), "caller "+reason+" "+route, "caller refused", slog.String("route", route), slog.String("error", contract.Truncate(err.Error())))
	httpx.Refuse(w, status, err.Error())
	return nil
}
