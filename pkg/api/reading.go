package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

const (
	// maxCatchUp is how long a read waits for the revision that its caller has seen.
	maxCatchUp = 5 * time.Second
	// maxAhead limits how far the revision that a caller has seen may be ahead of the newest revision that this server
	// knows. No server publishes that many revisions within maxCatchUp.
	maxAhead = 100
)

// reading says which revision a call reads. The zero value means the newest revision.
type reading struct {
	asOf        string // a revision or a time
	minRevision int64
}

type readingKey struct{}

// withReading returns a context with the revision that a request names.
func withReading(ctx context.Context, request proto.Message) context.Context {
	var r reading
	if of, ok := request.(interface{ GetAsOf() string }); ok {
		r.asOf = of.GetAsOf()
	}
	if of, ok := request.(interface{ GetMinRevision() int64 }); ok {
		r.minRevision = of.GetMinRevision()
	}
	if r == (reading{}) {
		return ctx
	}
	return context.WithValue(ctx, readingKey{}, r)
}

func readingOf(ctx context.Context) reading {
	r, _ := ctx.Value(readingKey{}).(reading) // absent: the zero value
	return r
}

// snapshot returns the snapshot that a call reads.
func (s *server) snapshot(ctx context.Context) (*snapshot.Snapshot, error) {
	r := readingOf(ctx)
	if r.asOf != "" {
		return s.asOf(ctx, r)
	}
	snap, err := s.Engine.Current(ctx)
	if err != nil || snap.Revision >= r.minRevision {
		return snap, err
	}
	if r.minRevision > snap.Revision+maxAhead {
		return nil, invalid("min_revision", "is %d, but the newest revision is %d: pass the value that an earlier answer has in its header %s", r.minRevision, snap.Revision, revisionHeader)
	}
	waiting, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	snap, err = s.Engine.Await(waiting, r.minRevision-1)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, refuse(unavailable, "revision %d has not been published within %s: try again", r.minRevision, maxCatchUp)
	}
	return snap, err
}

// asOf returns the snapshot of an earlier revision.
func (s *server) asOf(ctx context.Context, r reading) (*snapshot.Snapshot, error) {
	revision, err := strconv.ParseInt(r.asOf, 10, 64)
	if err != nil {
		at, invalidTime := time.Parse(time.RFC3339, r.asOf)
		if invalidTime != nil {
			return nil, invalid("as_of", "%q is neither a revision nor a time: write, for example, 4712 or 2025-01-15T10:30:00Z", r.asOf)
		}
		if revision, err = s.Engine.RevisionAt(ctx, at); err != nil {
			return nil, notKept(r.asOf, err)
		}
	}
	if revision < 1 {
		return nil, invalid("as_of", "is revision %d: the first revision is 1", revision)
	}
	if revision < r.minRevision {
		return nil, invalid("min_revision", "is %d, but as_of is revision %d: leave out one of them", r.minRevision, revision)
	}
	current, err := s.Engine.Current(ctx)
	if err != nil || current.Revision == revision {
		return current, err
	}
	snap, err := s.pages.revision(ctx, revision, s.Engine.Now())
	if err != nil {
		return nil, notKept(r.asOf, err)
	}
	return snap, nil
}

func notKept(asOf string, err error) error {
	if gone(err) || errors.Is(err, engine.ErrNotFound) {
		return withKind(revisionGone, fmt.Errorf("no state is kept as of %s: %w", asOf, err))
	}
	return err
}

// now returns the time for which a response is computed: the current time or, with as_of, the time of the last event of
// the revision.
func (s *server) now(ctx context.Context, snap *snapshot.Snapshot) time.Time {
	if readingOf(ctx).asOf != "" {
		return snap.State.FoldTime.Time()
	}
	return s.Engine.Now()
}

// momentNow returns the same time as now, as an [event.Time].
func (s *server) momentNow(ctx context.Context, snap *snapshot.Snapshot) event.Time {
	return event.At(s.now(ctx, snap))
}
