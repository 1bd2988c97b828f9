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

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// AnyCaller has a service not ask who calls.
const AnyCaller = "any"

// As whom a service calls others.
const (
	NoIdentity     = "none"
	GoogleIdentity = "google"
)

func (c *config) callerFlags(f *flag.FlagSet) {
	f.StringVar(&c.Callers, "callers", "", "who may call, as ROLE=ACCOUNT, separated by commas; roles are "+strings.Join(roles, ", ")+"; "+AnyCaller+": nobody is asked (required for a bucket)")
	f.StringVar(&c.Audience, "audience", "", "what callers' tokens are for: this service's URL as they have it")
	f.StringVar(&c.Issuer, "issuer", identity.GoogleIssuer, "who signs callers' tokens")
	f.StringVar(&c.IssuerKeys, "issuer-keys", identity.GoogleKeys, "where the issuer's keys are")
	f.StringVar(&c.Identity, "identity", "", GoogleIdentity+": calls other services with tokens of this machine's account; "+NoIdentity+": without (default: "+GoogleIdentity+" for a bucket)")
}

// inCloud reports whether the store is a bucket.
func (c *config) inCloud() bool { return strings.Contains(c.Store, "://") }

// settle fills in what depends on other flags.
func (c *config) settle() {
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

// The roles of callers. An account may have several, and a role several accounts.
const (
	roleCompactor  = "compactor"
	roleDispatcher = "dispatcher"
	roleSweeper    = "sweeper"
	roleScheduler  = "scheduler"
	rolePubSub     = "pubsub"
	roleQueue      = "queue"
)

var roles = []string{roleCompactor, roleDispatcher, roleSweeper, roleScheduler, rolePubSub, roleQueue}

// allowed are the roles that may call each route. A route that is in neither allowed nor
// open is called by nobody who is asked who it is.
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
			return nil, fmt.Errorf("--callers: %q is not ROLE=ACCOUNT, like sweeper=servo-sweeper@my-project.iam.gserviceaccount.com; roles are %s", part, strings.Join(roles, ", "))
		}
		accounts[account] = append(accounts[account], role)
	}
	return accounts, nil
}

// verifies reports whether callers must say who they are.
func (c *config) verifies() bool { return c.Callers != "" && c.Callers != AnyCaller }

// checkCallers reports what is wrong with who may call, and as whom.
func (c *config) checkCallers() (problems []error) {
	if c.Identity != GoogleIdentity && c.Identity != NoIdentity {
		problems = append(problems, fmt.Errorf("--identity %q is neither %s nor %s", c.Identity, GoogleIdentity, NoIdentity))
	}
	if c.inCloud() && c.Callers == "" {
		problems = append(problems, fmt.Errorf("--callers is missing: name the service accounts that may call, or say %s if something else keeps strangers away", AnyCaller))
	}
	if !c.verifies() {
		return problems
	}
	accounts, err := c.accounts()
	if err != nil {
		problems = append(problems, err)
	} else if len(accounts) == 0 {
		problems = append(problems, fmt.Errorf("--callers %q names nobody", c.Callers))
	}
	if c.Audience == "" {
		problems = append(problems, errors.New("--audience is missing: callers' tokens are for this service's URL, and it does not know its own"))
	}
	return append(problems, checkURL("audience", c.Audience, false), checkURL("issuer", c.Issuer, true), checkURL("issuer-keys", c.IssuerKeys, true))
}

// callers verifies who calls, and knows their roles.
type callers struct {
	*identity.Verifier

	roles map[string][]string // by account
}

// verifier returns what verifies callers; nil: nobody is asked.
func (c *config) verifier(ctx context.Context, p Process, logger *slog.Logger) *callers {
	if !c.verifies() {
		if c.inCloud() {
			logger.WarnContext(ctx, "callers are not asked who they are")
		}
		return nil
	}
	accounts, _ := c.accounts() // checked with the configuration
	return &callers{identity.New(ctx, identity.Config{
		Issuer: c.Issuer, KeysURL: c.IssuerKeys, Audience: c.Audience, Accounts: slices.Collect(maps.Keys(accounts)),
		Client: p.Network.Client(), Now: p.Clock.Now,
	}), accounts}
}

// client makes requests to other services, as this process's account if it has one.
func (p Process) client(cfg config) (*http.Client, error) {
	client := p.Network.Client()
	if cfg.Identity != GoogleIdentity {
		return client, nil
	}
	if p.Tokens == nil {
		return nil, fmt.Errorf("--identity %s: this program has no tokens to give", cfg.Identity)
	}
	client.Transport = p.Tokens.Transport(client.Transport)
	return client, nil
}

// open are the routes that ask nobody who calls: what they tell is no secret, or, of
// callbacks, the request is signed.
var open = map[string]bool{"GET /healthz": true, "GET /readyz": true, contract.CallbackPattern: true}

// Why callers are refused.
const (
	reasonUnknown     = "unknown"
	reasonNotAllowed  = "not_allowed"
	reasonUnavailable = "unavailable" // whether they may call could not be found out
)

// admit authenticates and authorizes the caller of a route. It returns the request with the
// caller's rights, or answers it and returns nil.
func (s *server) admit(w http.ResponseWriter, r *http.Request, route string) *http.Request {
	if open[route] {
		return r
	}
	if s.callers == nil {
		return r.WithContext(compactor.WithRights(r.Context(), compactor.Rights{Data: true, Sweep: true}))
	}
	account, err := s.callers.Verify(r.Context(), r.Header.Get("Authorization"))
	has := s.callers.roles[account]
	if err == nil && !slices.ContainsFunc(allowed[route], func(role string) bool { return slices.Contains(has, role) }) {
		err = fmt.Errorf("%w: %s is %s, and %s is for %s", identity.ErrNotAllowed, account, strings.Join(has, " and "), route,
			cmp.Or(strings.Join(allowed[route], " and "), "nobody"))
	}
	if err == nil {
		return r.WithContext(compactor.WithRights(r.Context(), compactor.Rights{
			Data: slices.Contains(has, roleDispatcher), Sweep: slices.Contains(has, roleSweeper),
		}))
	}
	reason, status := reasonUnavailable, http.StatusInternalServerError // 503 would have a queue slow down for everybody
	switch {
	case errors.Is(err, identity.ErrUnknown):
		reason, status = reasonUnknown, http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	case errors.Is(err, identity.ErrNotAllowed):
		reason, status = reasonNotAllowed, http.StatusForbidden
	}
	s.metrics.Add("servo_refused_callers_total", 1, "reason", reason)
	s.warnings.warn(r.Context(), "caller "+reason+" "+route, "caller refused", slog.String("route", route), slog.String("error", contract.Cut(err.Error())))
	writeProblem(w, status, err.Error())
	return nil
}
