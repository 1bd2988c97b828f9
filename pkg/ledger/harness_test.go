package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// now returns the time of the synctest bubble, if the test runs in one.
func now() time.Time { return clock.System{}.Now() }

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

var errLost = errors.New("connection reset by peer")

// creates is a store for which the function decide determines the result of each Create call. nth counts the calls from
// 1.
type creates struct {
	*memblob.Store
	decide func(ctx context.Context, key string, nth int) (apply bool, err error)
	// timeless makes Get return no time, as a cloud store does.
	timeless bool

	mu  sync.Mutex
	nth int
}

func (s *creates) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	s.mu.Lock()
	s.nth++
	nth := s.nth
	s.mu.Unlock()
	apply, answer := true, error(nil)
	if s.decide != nil {
		apply, answer = s.decide(ctx, key, nth)
	}
	var object blob.Object
	if apply {
		var err error
		if object, err = s.Store.Create(context.WithoutCancel(ctx), key, data); err != nil {
			return object, err
		}
	}
	if answer != nil {
		return blob.Object{}, fmt.Errorf("create %s: %w", key, answer)
	}
	return object, nil
}

func (s *creates) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	data, object, err := s.Store.Get(ctx, key)
	if s.timeless {
		object.Updated = time.Time{}
	}
	return data, object, err
}

// fixture is an appender on a store. It uses the time of a synctest bubble.
type fixture struct {
	*ledger.Appender
	store *creates
	ids   *ids.Source

	mu      sync.Mutex
	durable []ledger.Entry
}

func newFixture(decide func(ctx context.Context, key string, nth int) (bool, error)) *fixture {
	w := &fixture{
		store: &creates{Store: memblob.New(memblob.Options{}), decide: decide},
		ids:   ids.NewSource(clock.System{}.Now, nil),
	}
	w.Appender = ledger.NewAppender(ledger.Config{
		Domain: domain, Store: w.store, IDs: w.ids, Clock: clock.System{},
		OnStored: func(e ledger.Entry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.durable = append(w.durable, e)
		},
		MaxWaitingBytes: 8 << 20,
	})
	return w
}

// entries returns the names in the ledger, in order.
func (w *fixture) entries(t *testing.T) []string {
	t.Helper()
	var names []string
	for name, err := range ledger.List(t.Context(), w.store, domain, "") {
		require.NoError(t, err)
		names = append(names, name.Entry)
	}
	return names
}

// groups returns the groups of an entry.
func (w *fixture) groups(t *testing.T, entry string) []event.Group {
	t.Helper()
	data, err := ledger.Read(t.Context(), w.store, ledger.Key(domain, entry))
	require.NoError(t, err)
	return event.Groups(event.DecodeEntry(data))
}

func heartbeat(n int) *event.Envelope {
	return &event.Envelope{Payload: &event.TaskHeartbeat{
		AttemptRef: event.AttemptRef{
			RunID:   ids.AtTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)),
			TaskKey: "raw/events", Attempt: 1,
			AttemptID: ids.AtTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)),
		},
		HeartbeatAt: event.Time(n + 1),
	}}
}

func cancel(message string) *event.Envelope {
	return &event.Envelope{Payload: &event.RunCancelRequested{
		RunID: ids.AtTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)), Reason: message,
	}}
}

// result is the outcome of a concurrent append.
type result struct {
	ledger.Appended
	err error
}

// start appends in the background.
func (w *fixture) start(ctx context.Context, group ...*event.Envelope) <-chan result {
	out := make(chan result, 1)
	go func() {
		appended, err := w.Append(ctx, group)
		out <- result{appended, err}
	}()
	return out
}
