package trace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	"github.com/oklog/ulid/v2"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// ID returns the id of a run's trace: the 128 bits of the run id.
func ID(runID string) oteltrace.TraceID {
	id := oteltrace.TraceID(bytesOf(runID))
	if !id.IsValid() {
		id[len(id)-1] = 1 // an id of zeros is invalid in OpenTelemetry
	}
	return id
}

// SpanID returns the id of the span of a run or an attempt: the last 8 bytes of the id of the run or the attempt. In
// a generated id, these bytes are random; in a derived id, they are part of a hash.
func SpanID(id string) oteltrace.SpanID {
	all := bytesOf(id)
	span := oteltrace.SpanID(all[8:])
	if !span.IsValid() {
		span[len(span)-1] = 1
	}
	return span
}

// bytesOf returns the bytes of an id if it is a ULID; otherwise, the first bytes of the id's hash.
func bytesOf(id string) [16]byte {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		sum := sha256.Sum256([]byte(id))
		return [16]byte(sum[:16])
	}
	return u
}

// spanContext derives the span context of a run or an attempt from the id of the run and the given id. The sampled
// flag is always set: whether the trace is sampled depends on the trace id alone.
func spanContext(runID, id string) oteltrace.SpanContext {
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: ID(runID), SpanID: SpanID(id), TraceFlags: oteltrace.FlagsSampled, Remote: true,
	})
}

type nextKey struct{}

// withSpanSeed returns a context in which the span id of the next span is derived from id.
func withSpanSeed(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, nextKey{}, id)
}

// Generator generates the ids of spans. It derives the span ids of runs and attempts from their ids, and generates
// random ids for other spans.
type Generator struct{}

// NewIDs implements sdk/trace.IDGenerator. It is called for a span without a parent.
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

// NewSpanID implements sdk/trace.IDGenerator. It is called for a span with a parent.
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
