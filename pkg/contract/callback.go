package contract

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Callback verbs.
const (
	VerbStarted   = "started"
	VerbHeartbeat = "heartbeat"
	VerbFinished  = "finished"
)

// CallbackPattern is the route of callbacks, as a pattern of [net/http.ServeMux].
const CallbackPattern = "POST /v1/tenants/{tenant}/workspaces/{workspace}/runs/{run}/tasks/{task}/callbacks/{verb}"

// Callback is the permission to send one kind of report about one attempt, until Expires. A signed URL contains it.
type Callback struct {
	Domain    ids.Domain
	RunID     string
	TaskKey   string
	Attempt   int32
	AttemptID string
	Verb      string
	Expires   event.Time
	// Revision is the manifest revision that admitted the attempt. The handler of the callback reads the state at this
	// revision or a later one before it answers 404 or 409.
	Revision int64
}

// sign returns the callback's MAC under a key, or false if the keyring lacks the key.
func (c Callback) sign(keys Keyring, keyID string) (string, bool) {
	h, ok := keys.mac(c.Domain, keyID, purposeCallback)
	if !ok {
		return "", false
	}
	for _, field := range []string{
		c.Domain.Tenant, c.Domain.Workspace, c.RunID, c.TaskKey, strconv.Itoa(int(c.Attempt)), c.AttemptID, c.Verb,
		strconv.FormatInt(int64(c.Expires), 10), strconv.FormatInt(c.Revision, 10),
	} {
		writeField(h, field)
	}
	return signatureEncoding.EncodeToString(h.Sum(nil)), true
}

// AuthScheme is the scheme of the Authorization header of callbacks.
const AuthScheme = "Servo-HMAC"

// SignCallback returns the URL of a callback below base, for example "https://api.example.com", and the Authorization
// header to send with it. If the keyring has no usable current key, the signature is empty, and every verifier rejects
// it: check the keyring with [Keyring.Validate] first.
func SignCallback(base string, c Callback, keys Keyring) (callbackURL, authorization string) {
	sig, _ := c.sign(keys, keys.Current)
	return c.url(base, keys.Current, url.Values{}), AuthScheme + " " + sig
}

// CallbackURL returns a callback URL of contract 1.0, which contains the signature. Servo no longer issues these URLs.
// It still accepts them, because other dispatchers may put them into envelopes.
func CallbackURL(base string, c Callback, keys Keyring) string {
	sig, _ := c.sign(keys, keys.Current)
	return c.url(base, keys.Current, url.Values{"sig": {sig}})
}

// url returns the URL of a callback. It adds the callback's parameters to query.
func (c Callback) url(base, keyID string, query url.Values) string {
	query.Set("attempt", strconv.Itoa(int(c.Attempt)))
	query.Set("attempt_id", c.AttemptID)
	query.Set("expires", strconv.FormatInt(int64(c.Expires), 10))
	query.Set("rev", strconv.FormatInt(c.Revision, 10))
	query.Set("key", keyID)
	return strings.TrimSuffix(base, "/") +
		"/v1/tenants/" + pathSegment(c.Domain.Tenant) + "/workspaces/" + pathSegment(c.Domain.Workspace) +
		"/runs/" + pathSegment(c.RunID) + "/tasks/" + pathSegment(c.TaskKey) + "/callbacks/" + pathSegment(c.Verb) +
		"?" + query.Encode()
}

// pathSegment returns text as one segment of a URL path. Servers remove the segments "." and "..", so pathSegment also
// escapes a segment that consists only of dots.
func pathSegment(s string) string {
	if strings.Trim(s, ".") == "" {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}

// VerifyCallback checks the signature and expiry of a callback. The caller sets the fields Domain, RunID, TaskKey and
// Verb of fromPath, from the unescaped path of the URL. The signature is in the Authorization header, or in the query
// (contract 1.0), never in both. The error wraps [ErrForged] or [ErrExpired]. The caller must check that the body names
// the same attempt as the URL.
func VerifyCallback(fromPath Callback, query url.Values, authorization string, keys Keyring, now event.Time) (Callback, error) {
	sig, err := signatureOf(query, authorization)
	if err != nil {
		return Callback{}, err
	}
	c := fromPath
	attempt, ok1 := canonicalInt(query.Get("attempt"), 32)
	expires, ok2 := canonicalInt(query.Get("expires"), 64)
	revision, ok3 := canonicalInt(query.Get("rev"), 64)
	if !ok1 || !ok2 || !ok3 {
		return Callback{}, fmt.Errorf("%w: the parameters attempt, expires and rev must be non-negative integers", ErrForged)
	}
	c.Attempt, c.AttemptID = int32(attempt), query.Get("attempt_id")
	c.Expires, c.Revision = event.Time(expires), revision
	want, ok := c.sign(keys, query.Get("key"))
	if !ok {
		return Callback{}, fmt.Errorf("%w: key %.40q is not on the keyring", ErrForged, query.Get("key"))
	}
	if !equalText(sig, want) {
		return Callback{}, ErrForged
	}
	if now >= c.Expires {
		return Callback{}, fmt.Errorf("%w: valid until %s", ErrExpired, c.Expires)
	}
	return c, nil
}

// signatureOf returns the signature of a callback, from the header or the query.
func signatureOf(query url.Values, authorization string) (string, error) {
	scheme, sig, _ := strings.Cut(authorization, " ")
	switch {
	case !strings.EqualFold(scheme, AuthScheme): // no header, or one meant for a proxy
		return query.Get("sig"), nil
	case query.Has("sig"):
		return "", fmt.Errorf("%w: both the URL and the Authorization header contain a signature", ErrForged)
	}
	return sig, nil
}

// CallbackExpiry returns the time at which a callback URL expires, or 0 if the URL does not
// state it. It does not verify the signature.
func CallbackExpiry(callbackURL string) event.Time {
	u, err := url.Parse(callbackURL)
	if err != nil {
		return 0
	}
	expires, _ := canonicalInt(u.Query().Get("expires"), 64)
	return event.Time(expires)
}

// canonicalInt parses a non-negative integer and rejects every other spelling, for example
// "+1" and "01".
func canonicalInt(s string, bits int) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, bits)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, false
	}
	return n, true
}
