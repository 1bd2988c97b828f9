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

// Errors of signatures, on which callers branch.
var (
	// ErrForged says that a signature is not that of the content, or that its
	// key is not known here.
	ErrForged = errors.New("the signature is wrong")
	// ErrExpired says that the signature is right, and its time is over.
	ErrExpired = errors.New("the signature has expired")
)

// MinSecret is the least length of a secret, in bytes.
const MinSecret = 32

// Keyring holds the secrets that sign envelopes and callback URLs. To change
// the secret, add the new one everywhere, then make it current, and drop the
// old one when the last URL that it signed has expired (seven days).
type Keyring struct {
	// Current is the id of the key that signs.
	Current string
	// Secrets are the keys that are accepted, by id.
	Secrets map[string][]byte
}

// Validate reports what is wrong with the keyring.
func (k Keyring) Validate() error {
	if _, ok := k.Secrets[k.Current]; !ok || k.Current == "" {
		return fmt.Errorf("the current key %q is not on the keyring", k.Current)
	}
	for id, secret := range k.Secrets {
		if len(secret) < MinSecret {
			return fmt.Errorf("the secret of key %q has %d bytes; it must have %d or more", id, len(secret), MinSecret)
		}
	}
	return nil
}

// mac is a keyed hash for one purpose in one domain: what one domain's key
// signs, or what is signed for one purpose, is good for no other.
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

// writeField feeds a hash so that no two lists of fields feed it the same bytes.
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

// Seal fills in the envelope's Auth and gives its signed JSON, which is canonical.
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
		return nil, fmt.Errorf("sign envelope: no usable key %q is on the keyring", keys.Current)
	}
	writeField(h, string(canonical))
	env.Auth.Signature = signatureEncoding.EncodeToString(h.Sum(nil))
	end, err := endOf(canonical, "auth")
	if err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	// Of the names in auth, signature is the last one.
	return slices.Insert(canonical, end-1, []byte(`,"signature":"`+env.Auth.Signature+`"`)...), nil
}

// endOf is where the value of a field of canonical JSON ends.
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

// Open reads an envelope and checks its signature and expiry. The error is a
// [*FieldError] for what is no envelope, [ErrForged] or [ErrExpired].
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
		return nil, fmt.Errorf("%w: it was valid until %s", ErrExpired, env.Auth.ExpiresAt)
	}
	return env, nil
}

// unsigned is the canonical JSON of an envelope without its signature, with
// every field that it came with.
func unsigned(data []byte) ([]byte, error) {
	// That it is made canonical refuses names that are there twice, of which another
	// reader might take the other one.
	canonical := jsontext.Value(data).Clone()
	if err := canonical.Canonicalize(); err != nil {
		return nil, &FieldError{Msg: fmt.Sprintf("the body is not canonicalizable JSON: %v", err)}
	}
	from, to, err := member(canonical, "auth", "signature")
	if err != nil {
		return nil, err
	}
	return slices.Delete(canonical, from, to), nil
}

// member is where canonical JSON has the field of an object in it, with the comma
// that goes with it: what is left without it is canonical, too. An empty range says
// that there is no such field.
func member(canonical []byte, object, field string) (from, to int, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(canonical))
	if found, err := enter(d, object); err != nil || !found {
		return 0, 0, &FieldError{Field: object, Msg: "is not an object"}
	}
	if d.PeekKind() != '{' {
		return 0, 0, &FieldError{Field: object, Msg: "is not an object"}
	}
	first := int(d.InputOffset()) + len(`:{`)
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

// enter reads on in the object that comes next until the value of a field is next.
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

// equalText compares in constant time.
func equalText(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// Domain is the domain that the envelope belongs to.
func (e *Envelope) Domain() ids.Domain {
	return ids.Domain{Tenant: e.Tenant, Workspace: e.Workspace}
}
