package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/identity"
)

// AnyCaller has a service not ask who calls.
const AnyCaller = "any"

// As whom a service calls others.
const (
	NoIdentity     = "none"
	GoogleIdentity = "google"
)

func (c *config) callerFlags(f *flag.FlagSet) {
	f.StringVar(&c.Callers, "callers", "", "the service accounts that may call, separated by commas; "+AnyCaller+": nobody is asked (required for a bucket)")
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

func (c *config) accounts() []string {
	var accounts []string
	for account := range strings.SplitSeq(c.Callers, ",") {
		if account = strings.TrimSpace(account); account != "" {
			accounts = append(accounts, account)
		}
	}
	return accounts
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
	accounts := c.accounts()
	if len(accounts) == 0 {
		problems = append(problems, fmt.Errorf("--callers %q names nobody", c.Callers))
	}
	for _, account := range accounts {
		if !strings.Contains(account, "@") {
			problems = append(problems, fmt.Errorf("--callers: %q is no account, like servo-sweeper@my-project.iam.gserviceaccount.com", account))
		}
	}
	if c.Audience == "" {
		problems = append(problems, errors.New("--audience is missing: callers' tokens are for this service's URL, and it does not know its own"))
	}
	return append(problems, checkURL("audience", c.Audience, false), checkURL("issuer", c.Issuer, true), checkURL("issuer-keys", c.IssuerKeys, true))
}

// verifier verifies callers; nil: nobody is asked.
func (c *config) verifier(ctx context.Context, p Process, logger *slog.Logger) *identity.Verifier {
	if !c.verifies() {
		if c.inCloud() {
			logger.WarnContext(ctx, "callers are not asked who they are")
		}
		return nil
	}
	return identity.New(ctx, identity.Config{
		Issuer: c.Issuer, KeysURL: c.IssuerKeys, Audience: c.Audience, Accounts: c.accounts(), Client: p.Network.Client(), Now: p.Clock.Now,
	})
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
// callbacks, the URL itself is signed.
var open = map[string]bool{"GET /healthz": true, "GET /readyz": true, "GET /metrics": true, contract.CallbackPattern: true}

// Why callers are refused.
const (
	reasonUnknown     = "unknown"
	reasonNotAllowed  = "not_allowed"
	reasonUnavailable = "unavailable" // whether they may call could not be found out
)

// admit reports whether a request may be served, and answers it if not.
func (s *server) admit(w http.ResponseWriter, r *http.Request, route string) bool {
	if s.callers == nil || open[route] {
		return true
	}
	_, err := s.callers.Verify(r.Context(), r.Header.Get("Authorization"))
	if err == nil {
		return true
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
	s.logger.WarnContext(r.Context(), "caller refused", slog.String("route", route), slog.Any("error", err))
	writeProblem(w, status, err.Error())
	return false
}
