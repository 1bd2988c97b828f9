package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/servo-orchestration/servo/pkg/api/rest"
	"github.com/servo-orchestration/servo/pkg/engine"
)

// Headers of requests that change something.
const (
	// idempotencyKey identifies a call, so that a repetition of the call has no further effect.
	idempotencyKey = "Idempotency-Key"
	// ifMatch names the version that the object must have. If the object has another version, the call fails and changes
	// nothing.
	ifMatch = "If-Match"
)

// IdempotentPrefix is the prefix of the run keys that are derived from values of the header Idempotency-Key.
const IdempotentPrefix = "idem:"

// maxIdempotencyKey is the greatest number of characters of the header.
const maxIdempotencyKey = 128

// conditionsOf returns the conditions under which a call takes effect.
func conditionsOf(method protoreflect.MethodDescriptor, user string, header http.Header, request proto.Message) (c engine.Conditions, err error) {
	rule := methodRule(method)
	if keys := header.Values(idempotencyKey); len(keys) > 0 {
		key := keys[0]
		switch {
		case !rule.GetIdempotencyKey():
			return c, refuse(invalidRequest, "%s does not support the header %s: send the request without it", method.Name(), idempotencyKey)
		case len(keys) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }):
			return c, refuse(invalidRequest, "send one header %s with 1 to %d printable characters and no spaces", idempotencyKey, maxIdempotencyKey)
		}
		c.Key = IdempotentPrefix + user + ":" + string(method.Name()) + ":" + key
		if c.Fingerprint, err = fingerprintOf(method, request); err != nil {
			return c, err
		}
	}
	if tags := header.Values(ifMatch); len(tags) > 0 {
		if !rule.GetIfMatch() {
			return c, refuse(invalidRequest, "%s does not support the header %s: send the request without it", method.Name(), ifMatch)
		}
		c.Tag, err = editTagOf(strings.Join(tags, ","))
	}
	return c, err
}

// fingerprintOf hashes a request. The hash does not depend on the state: a repeated request may find another state,
// and must still be recognized as a repetition.
func fingerprintOf(method protoreflect.MethodDescriptor, request proto.Message) (string, error) {
	canonical := proto.Clone(request).ProtoReflect()
	for _, name := range []protoreflect.Name{"tenant_id", "workspace_id"} {
		if field := canonical.Descriptor().Fields().ByName(name); field != nil {
			canonical.Clear(field)
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(canonical.Interface())
	if err != nil {
		return "", fmt.Errorf("encode the request: %w", err)
	}
	sum := sha256.Sum256(slices.Concat([]byte(string(method.Name())+"\n"), raw))
	return hex.EncodeToString(sum[:]), nil
}

// editTagOf returns the edit tag in a header If-Match. The header contains an edit tag, or the ETag of a GET, which
// begins with an edit tag. For "*", which matches every existing object, the result is "".
func editTagOf(header string) (string, error) {
	if strings.TrimSpace(header) == "*" {
		return "", nil
	}
	found := regexp.MustCompile(`^\s*"([0-9a-f]{16})(\.[A-Za-z0-9_-]+)?"\s*$`).FindStringSubmatch(header)
	if found == nil {
		return "", refuse(invalidRequest, "invalid header %s: send one ETag of a GET, or the header %s of an answer in double quotes", ifMatch, rest.EditTagHeader)
	}
	return found[1], nil
}

type conditionsKey struct{}

// withConditions returns a context that carries the conditions of a call.
func withConditions(ctx context.Context, c engine.Conditions) context.Context {
	if c == (engine.Conditions{}) {
		return ctx
	}
	return context.WithValue(ctx, conditionsKey{}, c)
}

func conditionsIn(ctx context.Context) engine.Conditions {
	c, _ := ctx.Value(conditionsKey{}).(engine.Conditions) // absent: no conditions
	return c
}

// revealTag sets a header of the response to the edit tag of the object that the response shows.
func revealTag(ctx context.Context, tag string) {
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		call.ResponseHeader().Set(rest.EditTagHeader, tag)
	}
}
