package identity_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/pkg/identity"
)

const (
	here  = "https://dispatcher.example"
	queue = "queue@acme.example"
)

var start = time.Date(2025, 1, 15, 10, 0, 0, 0, time.UTC)

func now() time.Time { return start }

func verifier(t *testing.T, issuer *identitytest.Issuer) *identity.Verifier {
	t.Helper()
	return identity.New(t.Context(), identity.Config{
		Issuer: issuer.URL, KeysURL: issuer.KeysURL(), Audience: here + "/", Accounts: []string{"sweeper@acme.example", queue},
		Client: http.DefaultClient, Now: now,
	})
}

func TestVerifyAcceptsAuthorizedCallers(t *testing.T) {
	issuer, other := identitytest.New(t, now), identitytest.New(t, now)
	v := verifier(t, issuer)
	good := identitytest.Claims{Issuer: issuer.URL, Audience: here, Email: queue, IssuedAt: start, Expires: start.Add(time.Hour)}
	but := func(change func(*identitytest.Claims)) identitytest.Claims {
		c := good
		change(&c)
		return c
	}
	sign := func(i *identitytest.Issuer, c identitytest.Claims) string {
		token, err := i.Sign(c)
		require.NoError(t, err)
		return "Bearer " + token
	}
	altered := strings.Split(sign(issuer, good), ".")
	altered[1] = base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + issuer.URL + `","aud":"` + here + `","sub":"1","email":"sweeper@acme.example","email_verified":true,"exp":9999999999}`))
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + altered[1] + "."
	for name, tc := range map[string]struct {
		header string
		want   error
	}{
		"good":                        {sign(issuer, good), nil},
		"for a path here":             {sign(issuer, but(func(c *identitytest.Claims) { c.Audience = here + "/v1/notifications" })), nil},
		"for a similar host":          {sign(issuer, but(func(c *identitytest.Claims) { c.Audience = here + ".evil.example" })), identity.ErrUnknown},
		"for another service":         {sign(issuer, but(func(c *identitytest.Claims) { c.Audience = "https://compactor.example" })), identity.ErrUnknown},
		"without an audience":         {sign(issuer, but(func(c *identitytest.Claims) { c.Audience = "" })), identity.ErrUnknown},
		"expired":                     {sign(issuer, but(func(c *identitytest.Claims) { c.Expires = start.Add(-time.Second) })), identity.ErrUnknown},
		"without an expiry":           {sign(issuer, but(func(c *identitytest.Claims) { c.Expires = time.Time{} })), identity.ErrUnknown},
		"of another issuer":           {sign(issuer, but(func(c *identitytest.Claims) { c.Issuer = other.URL })), identity.ErrUnknown},
		"signed by another":           {sign(other, good), identity.ErrUnknown},
		"altered":                     {strings.Join(altered, "."), identity.ErrUnknown},
		"not signed":                  {"Bearer " + unsigned, identity.ErrUnknown},
		"of an unlisted account":      {sign(issuer, but(func(c *identitytest.Claims) { c.Email = "mallory@acme.example" })), identity.ErrNotAllowed},
		"of an account in upper case": {sign(issuer, but(func(c *identitytest.Claims) { c.Email = strings.ToUpper(queue) })), identity.ErrNotAllowed},
		"of an unverified account":    {sign(issuer, but(func(c *identitytest.Claims) { c.Unverified = true })), identity.ErrUnknown},
		"of no account":               {sign(issuer, but(func(c *identitytest.Claims) { c.Email = "" })), identity.ErrUnknown},
		"no token":                    {"", identity.ErrUnknown},
		"no bearer":                   {strings.Replace(sign(issuer, good), "Bearer", "Basic", 1), identity.ErrUnknown},
		"no JWT":                      {"Bearer xyz", identity.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			account, err := v.Verify(t.Context(), tc.header)
			require.ErrorIs(t, err, tc.want)
			if tc.want == nil {
				require.Equal(t, queue, account)
			}
		})
	}
}

// A token that cannot be verified now may be valid, so the caller should retry.
func TestVerifyReportsUnavailableKeys(t *testing.T) {
	issuer := identitytest.New(t, now)
	token, err := issuer.Token(queue, here)
	require.NoError(t, err)
	away := true
	client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if away {
			return nil, errors.New("no route to host")
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	v := identity.New(t.Context(), identity.Config{
		Issuer: issuer.URL, KeysURL: issuer.KeysURL(), Audience: here, Accounts: []string{queue}, Client: client, Now: now,
	})
	_, err = v.Verify(t.Context(), "Bearer "+token)
	require.ErrorIs(t, err, identity.ErrUnavailable)
	away = false
	_, err = v.Verify(t.Context(), "Bearer "+token)
	require.NoError(t, err)
	away = true
	_, err = v.Verify(t.Context(), "Bearer "+token)
	require.NoError(t, err, "the keys are cached")
}

// Without a timeout, later verifications would wait forever for the same request.
func TestVerifyTimesOutReadingKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		v := identity.New(t.Context(), identity.Config{
			Issuer: "https://issuer.example", KeysURL: "https://issuer.example/certs", Audience: here, Accounts: []string{queue}, Now: now,
			Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				asked++
				<-r.Context().Done()
				return nil, r.Context().Err()
			})},
		})
		for range 3 {
			_, err := v.Verify(t.Context(), "Bearer "+stranger(t))
			require.ErrorIs(t, err, identity.ErrUnavailable)
		}
		require.Equal(t, 3, asked)
	})
}

func TestVerifyLimitsReadsOfKeys(t *testing.T) {
	issuer := identitytest.New(t, now)
	asked, clock := 0, start
	v := identity.New(t.Context(), identity.Config{
		Issuer: issuer.URL, KeysURL: issuer.KeysURL(), Audience: here, Accounts: []string{queue}, Now: func() time.Time { return clock },
		Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			asked++
			return http.DefaultTransport.RoundTrip(r)
		})},
	})
	for range 20 {
		_, err := v.Verify(t.Context(), "Bearer "+stranger(t))
		require.ErrorIs(t, err, identity.ErrUnknown)
	}
	require.Equal(t, 1, asked)
	token, err := issuer.Token(queue, here)
	require.NoError(t, err)
	_, err = v.Verify(t.Context(), "Bearer "+token)
	require.NoError(t, err, "valid tokens are still accepted")
	clock = clock.Add(time.Minute)
	_, err = v.Verify(t.Context(), "Bearer "+stranger(t))
	require.ErrorIs(t, err, identity.ErrUnknown)
	require.Equal(t, 2, asked)
}

// stranger returns a well-formed token whose key the issuer does not have.
func stranger(t *testing.T) string {
	t.Helper()
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"mine"}`)) + "." +
		encode([]byte(`{"iss":"https://issuer.example","aud":"`+here+`","exp":9999999999}`)) + "." + encode(make([]byte, 256))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransportAddsToken(t *testing.T) {
	var asked []string
	source := identity.Source(func(_ context.Context, audience string) (string, error) {
		asked = append(asked, audience)
		if len(asked) > 1 {
			return "", errors.New("no metadata server")
		}
		return "mine", nil
	})
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer server.Close()
	client := &http.Client{Transport: source.Transport(http.DefaultTransport)}
	send := func(authorization string) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/compact?x=y", strings.NewReader("{}"))
		require.NoError(t, err)
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		res, err := client.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			require.Equal(t, authorization, r.Header.Get("Authorization"), "the caller's request is unchanged")
		}
		return err
	}
	require.NoError(t, send(""))
	require.Equal(t, "Bearer mine", got)
	require.Equal(t, []string{server.URL}, asked)
	require.NoError(t, send("Bearer of the queue"))
	require.Equal(t, "Bearer of the queue", got)
	require.ErrorContains(t, send(""), "no metadata server")
}
