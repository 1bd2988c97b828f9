// Package identitytest provides an issuer of ID tokens for tests. Like Google, it serves its
// keys over HTTP. It can also serve as a metadata server.
package identitytest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// Claims are the claims of a token. A zero time omits the claim.
type Claims struct {
	Issuer, Audience, Email string
	Unverified              bool
	IssuedAt, Expires       time.Time
}

// Issuer signs tokens.
type Issuer struct {
	// URL is the issuer's name and the base URL of its keys.
	URL string

	key *rsa.PrivateKey
	kid string
	now func() time.Time
}

// New starts an issuer that runs until the test ends.
func New(t *testing.T, now func() time.Time) *Issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048) //nolint:mnd // bits
	require.NoError(t, err)
	i := &Issuer{key: key, kid: "k1", now: now}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /certs", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
			{Key: key.Public(), KeyID: i.kid, Algorithm: string(jose.RS256), Use: "sig"},
		}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

// KeysURL returns the URL of the issuer's keys.
func (i *Issuer) KeysURL() string { return i.URL + "/certs" }

// Token returns a valid token of an account for an audience.
func (i *Issuer) Token(account, audience string) (string, error) {
	return i.Sign(Claims{Issuer: i.URL, Audience: audience, Email: account, IssuedAt: i.now(), Expires: i.now().Add(time.Hour)})
}

// Sign returns a signed token with arbitrary claims.
func (i *Issuer) Sign(c Claims) (string, error) {
	claims := map[string]any{"iss": c.Issuer, "aud": c.Audience, "sub": "1", "azp": "1"}
	if c.Email != "" {
		claims["email"], claims["email_verified"] = c.Email, !c.Unverified
	}
	if !c.IssuedAt.IsZero() {
		claims["iat"] = c.IssuedAt.Unix()
	}
	if !c.Expires.IsZero() {
		claims["exp"] = c.Expires.Unix()
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.kid}}, nil)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// Metadata starts a metadata server for processes of an account and returns its host, for
// GCE_METADATA_HOST.
func (i *Issuer) Metadata(t *testing.T, account string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /computeMetadata/v1/instance/service-accounts/default/identity", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" {
			http.Error(w, "Metadata-Flavor is missing", http.StatusForbidden)
			return
		}
		token, err := i.Token(account, r.URL.Query().Get("audience"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		fmt.Fprint(w, token)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}
