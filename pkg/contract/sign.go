package contract

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Errors of signatures, for callers to branch on.
var (
	// ErrForged reports that a signature does not match the content, or that its key is not
	// on the keyring.
	ErrForged = errors.New("invalid signature")
	// ErrExpired reports that a signature is valid but has expired.
	ErrExpired = errors.New("expired signature")
)

// MinSecret is the minimum length of a secret, in bytes.
const MinSecret = 32

// Keyring contains the secrets that sign envelopes and callback URLs. To rotate the secret,
// add the new one in every process, then make it current. Remove the old one when the last URL that it signed has
// expired, which takes seven days.
type Keyring struct {
	// Current is the id of the key that signs.
	Current string
	// Secrets are the accepted keys, by id.
	Secrets map[string][]byte
}

// Validate returns an error if the current key is missing or a secret is too short.
func (k Keyring) Validate() error {
	if _, ok := k.Secrets[k.Current]; !ok || k.Current == "" {
		return fmt.Errorf("current key %q is not on the keyring", k.Current)
	}
	for id, secret := range k.Secrets {
		if len(secret) < MinSecret {
			return fmt.Errorf("secret of key %q is too short: it has %d bytes, the minimum is %d", id, len(secret), MinSecret)
		}
	}
	return nil
}

// mac returns a keyed hash for one purpose in one domain: a signature for one domain or
// purpose is invalid for every other.
func (k Keyring) mac(d ids.Domain, keyID, purpose string) (hash.Hash, bool) {
	secret, ok := k.Secrets[keyID]
	if !ok || len(secret) < MinSecret {
		return nil, false
	}
	derive := hmac.New(sha256.New, secret)
	derive.Write([]byte("servo/" + d.Tenant + "/" + d.Workspace))
	h := hmac.New(sha256.New, derive.Sum(nil))
	writeField(h, purpose)
	return h, true
}

// writeField writes a field with its length, so that no two lists of fields hash the same
// bytes.
func writeField(h hash.Hash, field string) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(field)))
	h.Write(size[:])
	h.Write([]byte(field))
}

const (
	purposeEnvelope = "servo envelope 1"
	purposeCallback = "servo callback 1"
)

var signatureEncoding = base64.RawURLEncoding.Strict()

// Seal sets the envelope's Auth and returns its signed, canonical JSON.
func Seal(env *Envelope, keys Keyring, expiresAt event.Time) ([]byte, error) {
	env.Auth = Auth{KeyID: keys.Current, ExpiresAt: expiresAt}
	raw, err := json.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	canonical := jsontext.Value(raw)
	if err := canonical.Canonicalize(); err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	h, ok := keys.mac(env.Domain(), keys.Current, purposeEnvelope)
	if !ok {
		return nil, fmt.Errorf("sign envelope: the keyring has no usable key %q", keys.Current)
	}
	writeField(h, string(canonical))
	env.Auth.Signature = signatureEncoding.EncodeToString(h.Sum(nil))
	end, err := endOf(canonical, "auth")
	if err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	// The fields of auth are sorted by name, and signature is the last one.
	return slices.Insert(canonical, end-1, []byte(`,"signature":"`+env.Auth.Signature+`"`)...), nil
}

// endOf returns the offset at which the value of a top-level field of canonical JSON ends.
func endOf(canonical []byte, field string) (int, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(canonical))
	if found, err := enter(d, field); err != nil || !found {
		return 0, &FieldError{Field: field, Msg: "is missing"}
	}
	if err := d.SkipValue(); err != nil {
		return 0, &FieldError{Field: field, Msg: err.Error()}
	}
	return int(d.InputOffset()), nil
}

// Open reads an envelope and verifies its signature and expiry. The error is a [*FieldError]
// if the data is not an envelope; otherwise it wraps [ErrForged] or [ErrExpired].
func Open(data []byte, keys Keyring, now event.Time) (*Envelope, error) {
	env, err := DecodeEnvelope(data)
	if err != nil {
		return nil, err
	}
	signed, err := unsigned(data)
	if err != nil {
		return nil, err
	}
	h, ok := keys.mac(env.Domain(), env.Auth.KeyID, purposeEnvelope)
	if !ok {
		return nil, fmt.Errorf("%w: key %.40q is not on the keyring", ErrForged, env.Auth.KeyID)
	}
	writeField(h, string(signed))
	if !equalMAC(env.Auth.Signature, h) {
		return nil, ErrForged
	}
	if now >= env.Auth.ExpiresAt {
		return nil, fmt.Errorf("%w: valid until %s", ErrExpired, env.Auth.ExpiresAt)
	}
	return env, nil
}

// unsigned returns the canonical JSON of an envelope without its signature. It keeps unknown
// fields.
func unsigned(data []byte) ([]byte, error) {
	// Canonicalization rejects duplicate names, because parsers disagree on which of the two values wins.
	canonical := jsontext.Value(data).Clone()
	if err := canonical.Canonicalize(); err != nil {
		return nil, &FieldError{Msg: fmt.Sprintf("the body has no canonical JSON form: %v", err)}
	}
	from, to, err := member(canonical, "auth", "signature")
	if err != nil {
		return nil, err
	}
	return slices.Delete(canonical, from, to), nil
}

// member returns the range of a field in an object of canonical JSON, including the adjacent comma, so that the JSON
// without this range is also canonical. The range is empty if the field is missing.
func member(canonical []byte, object, field string) (from, to int, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(canonical))
	if found, err := enter(d, object); err != nil || !found {
		return 0, 0, &FieldError{Field: object, Msg: "is not an object"}
	}
	if d.PeekKind() != '{' {
		return 0, 0, &FieldError{Field: object, Msg: "is not an object"}
	}
	first := int(d.InputOffset()) + len(`:{`) // the first field of the object
	found, err := enter(d, field)
	if err != nil || !found {
		return 0, 0, err
	}
	from = int(d.InputOffset()) - len(strconv.Quote(field))
	if err := d.SkipValue(); err != nil {
		return 0, 0, &FieldError{Msg: err.Error()}
	}
	to = int(d.InputOffset())
	switch {
	case from > first:
		from-- // the comma before it
	case canonical[to] == ',':
		to++
	}
	return from, to, nil
}

// enter reads the next object up to the value of a field, and reports whether the object has this field.
func enter(d *jsontext.Decoder, field string) (found bool, err error) {
	if _, err := d.ReadToken(); err != nil {
		return false, &FieldError{Msg: err.Error()}
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return false, &FieldError{Msg: err.Error()}
		}
		if name.String() == field {
			return true, nil
		}
		if err := d.SkipValue(); err != nil {
			return false, &FieldError{Msg: err.Error()}
		}
	}
	return false, nil
}

func equalMAC(signature string, h hash.Hash) bool {
	return equalText(signature, signatureEncoding.EncodeToString(h.Sum(nil)))
}

// equalText compares two texts in constant time.
func equalText(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// Domain returns the envelope's domain.
func (e *Envelope) Domain() ids.Domain {
	return ids.Domain{Tenant: e.Tenant, Workspace: e.Workspace}
}
