package trace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	"github.com/oklog/ulid/v2"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// ID is the id of a run's trace: that of the run, which has as many bits.
func ID(runID string) oteltrace.TraceID {
	id := oteltrace.TraceID(bytesOf(runID))
	if !id.IsValid() {
		id[len(id)-1] = 1 // OpenTelemetry has no id of zeros
	}
	return id
}

// SpanID is the id of the span that stands for a run or an attempt: the last 8 bytes of
// its id, which of a minted one are random, and of a derived one a hash.
func SpanID(id string) oteltrace.SpanID {
	all := bytesOf(id)
	span := oteltrace.SpanID(all[8:])
	if !span.IsValid() {
		span[len(span)-1] = 1
	}
	return span
}

// bytesOf are those of a ULID; of what is none, of its hash.
func bytesOf(id string) [16]byte {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		sum := sha256.Sum256([]byte(id))
		return [16]byte(sum[:16])
	}
	return u
}

// spanContext names the span of a run or an attempt, which whoever knows its id knows
// without having seen it. Whether it is sent follows from the trace's id.
func spanContext(runID, id string) oteltrace.SpanContext {
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: ID(runID), SpanID: SpanID(id), TraceFlags: oteltrace.FlagsSampled, Remote: true,
	})
}

type nextKey struct{}

// as has the next span that begins under ctx stand for a run or an attempt.
func as(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, nextKey{}, id)
}

// Generator makes the ids of spans: those of what they stand for, and random ones.
type Generator struct{}

// NewIDs implements sdk/trace.IDGenerator, for a span without a parent.
func (g Generator) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	if id, ok := ctx.Value(nextKey{}).(string); ok {
		return ID(id), SpanID(id)
	}
	var id oteltrace.TraceID
	for !id.IsValid() {
		_, _ = rand.Read(id[:]) // never fails
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdk/trace.IDGenerator, for a span under another.
func (Generator) NewSpanID(ctx context.Context, _ oteltrace.TraceID) oteltrace.SpanID {
	if id, ok := ctx.Value(nextKey{}).(string); ok {
		return SpanID(id)
	}
	var id oteltrace.SpanID
	for !id.IsValid() {
		_, _ = rand.Read(id[:]) // never fails
	}
	return id
}
