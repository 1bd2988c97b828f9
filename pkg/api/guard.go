package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// guard is the interceptor of all calls. It is the only place that authorizes callers and checks the bounds of
// requests. The options of the schema define the permissions and the bounds.
type guard struct {
	rules  rules
	domain ids.Domain
	// may reports whether the caller has a permission.
	may func(http.Header, servov1.Permission_Value) bool
	// user returns the name of the caller.
	user   func(http.Header) string
	logger *slog.Logger
}

// before decides whether a call may proceed.
func (g *guard) before(spec connect.Spec, header http.Header, m any) error {
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	request, isMessage := m.(proto.Message)
	if !ok || !isMessage {
		return fmt.Errorf("api: %s has no schema", spec.Procedure)
	}
	if need := methodRule(method).GetPermission(); need == 0 || !g.may(header, need) {
		return refuse(permissionLacks, "this call needs the permission %s", need)
	}
	if err := g.rules.check(request); err != nil {
		return err
	}
	return g.scoped(request.ProtoReflect())
}

// conditions returns a context with the revision that a call reads, and with the conditions under which the call takes
// effect.
func (g *guard) conditions(ctx context.Context, spec connect.Spec, header http.Header, m any) (context.Context, error) {
	method, hasSchema := spec.Schema.(protoreflect.MethodDescriptor)
	request, isMessage := m.(proto.Message)
	if !hasSchema || !isMessage {
		return ctx, nil // guard.before has already rejected the call
	}
	c, err := conditionsOf(method, g.user(header), header, request)
	return withConditions(withReading(ctx, request), c), err
}

// scoped checks that a request is about the domain of this server.
func (g *guard) scoped(m protoreflect.Message) error {
	for _, part := range []struct {
		field protoreflect.Name
		want  string
	}{{"tenant_id", g.domain.Tenant}, {"workspace_id", g.domain.Workspace}} {
		field := m.Descriptor().Fields().ByName(part.field)
		if got := m.Get(field).String(); got != "" && got != part.want {
			return refuse(notFound, "%s %q: not found: this server has %q only", part.field, got, part.want)
		}
	}
	return nil
}

// after converts the error of a handler into an error that all protocols can send. A caller in this process gets the
// error itself.
func (g *guard) after(ctx context.Context, spec connect.Spec, err error) error {
	if err == nil {
		return nil
	}
	if asOf := readingOf(ctx).asOf; asOf != "" && gone(err) {
		err = notKept(asOf, err) // a file was deleted while the call read it
	}
	keepFailure(ctx, err)
	if kindOf(err) == internal {
		if _, known := errors.AsType[*connect.Error](err); !known {
			g.logger.ErrorContext(ctx, "a call has failed", slog.String("call", spec.Procedure), slog.Any("error", err))
		}
	}
	return connectError(err)
}

// WrapUnary implements [connect.Interceptor].
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.before(r.Spec(), r.Header(), r.Any()); err != nil {
			return nil, g.after(ctx, r.Spec(), err)
		}
		ctx, err := g.conditions(ctx, r.Spec(), r.Header(), r.Any())
		if err != nil {
			return nil, g.after(ctx, r.Spec(), err)
		}
		response, err := next(ctx, r)
		if err != nil {
			return nil, g.after(ctx, r.Spec(), err)
		}
		return response, nil
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor].
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return g.after(ctx, conn.Spec(), next(ctx, guarded{conn, g}))
	}
}

// guarded checks the messages that the caller of a stream sends.
type guarded struct {
	connect.StreamingHandlerConn
	guard *guard
}

// Receive implements [connect.StreamingHandlerConn].
func (c guarded) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err //nolint:wrapcheck // io.EOF ends the stream
	}
	if err := c.guard.before(c.Spec(), c.RequestHeader(), m); err != nil {
		return err
	}
	// Streams do not support conditions, so guard.conditions rejects a request whose headers set conditions. The returned
	// context is not needed.
	_, err := c.guard.conditions(context.Background(), c.Spec(), c.RequestHeader(), m)
	return err
}

// permissions returns the permissions of the local user: all, or only those of calls that change nothing.
func permissions(readOnly bool) []servov1.Permission_Value {
	if readOnly {
		return []servov1.Permission_Value{
			servov1.Permission_ASSETS_READ, servov1.Permission_RUNS_READ, servov1.Permission_DATA_READ, servov1.Permission_STATE_QUERY,
			servov1.Permission_SELF_READ,
		}
	}
	var all []servov1.Permission_Value
	for number := range servov1.Permission_Value_name {
		if number != 0 {
			all = append(all, servov1.Permission_Value(number))
		}
	}
	slices.Sort(all)
	return all
}
