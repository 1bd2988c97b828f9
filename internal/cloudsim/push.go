package cloudsim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// pubsub pushes notifications of created objects to services: those of ledger entries to the compactor, and those of
// manifests to the dispatcher. It retries until the service answers 2xx.
type pubsub struct {
	ctx    context.Context //nolint:containedctx // pushes continue after the write that caused them
	dist   latency.Dist
	clock  clock.Clock
	random *latency.Source
	client *http.Client
	topics []topic

	mu               sync.Mutex
	closed           bool
	messages, pushes int64
	pushing          sync.WaitGroup
}

// topic is the URL that receives the notifications of objects with a prefix.
type topic struct{ prefix, url string }

func newPubsub(ctx context.Context, opts Options, random *latency.Source, client *http.Client) *pubsub {
	root := func(prefix string) string {
		return strings.TrimSuffix(prefix, ids.Domain{}.Path()+"/")
	}
	return &pubsub{
		ctx: ctx, dist: opts.Model.Push, clock: opts.Clock, random: random, client: client,
		topics: []topic{
			{root(ledger.Prefix(ids.Domain{})), urlOf(compactorHost) + "/v1/notifications"},
			{root(manifest.Prefix(ids.Domain{})), urlOf(dispatcherHost) + "/v1/notifications"},
		},
	}
}

// written notifies each topic with a matching prefix that an object was written. It does not block.
func (p *pubsub) written(o blob.Object) {
	for _, t := range p.topics {
		if !strings.HasPrefix(o.Key, t.prefix) {
			continue
		}
		p.mu.Lock()
		if !p.closed {
			p.messages++
			p.pushing.Go(func() { p.deliver(t, o) })
		}
		p.mu.Unlock()
	}
}

// deliver pushes a message until it is acknowledged.
func (p *pubsub) deliver(t topic, o blob.Object) {
	body, err := json.Marshal(map[string]any{"message": map[string]any{
		"attributes": map[string]string{"objectId": o.Key, "eventType": "OBJECT_FINALIZE"},
	}})
	if err != nil {
		panic(fmt.Sprintf("cloudsim: encode a message: %v", err)) // cannot happen: all values are strings
	}
	wait := p.random.Draw(p.dist)
	for tries := 0; p.clock.Sleep(p.ctx, wait) == nil; tries++ {
		p.mu.Lock()
		p.pushes++
		p.mu.Unlock()
		if p.push(t.url, body) {
			return
		}
		wait = backoff(tries) + p.random.Draw(p.dist)
	}
}

func (p *pubsub) push(url string, body []byte) (acknowledged bool) {
	r, err := http.NewRequestWithContext(p.ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := p.client.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close() // cannot fail: the body is in memory
	return answer.StatusCode/100 == 2
}

func (p *pubsub) counts() (messages, pushes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.messages, p.pushes
}

// close waits for running pushes. The caller has cancelled their context.
func (p *pubsub) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.pushing.Wait()
}
