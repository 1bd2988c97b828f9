package dispatcher

import (
	"sync"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
)

// claims remembers which actions this process carries out, or has carried out
// lately, so that two hand-overs of states that both show them waiting do it once. It
// saves requests and acknowledgements, nothing else: what is taken up twice meets the
// name of its queue task.
type claims struct {
	mu    sync.Mutex
	taken map[string]event.Time // when it was carried out; busy: it is being
	swept event.Time
}

// busy stands for the time of what is under way. It may wait for its turn for long.
const busy = event.Time(-1)

func newClaims() *claims { return &claims{taken: map[string]event.Time{}} }

// claim takes an action up, unless that is being done, or was less than
// [control.PendingAge] ago.
func (c *claims) claim(name string, now event.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.swept) >= control.PendingAge {
		c.swept = now
		for name, at := range c.taken {
			if at != busy && now.Sub(at) >= control.PendingAge {
				delete(c.taken, name)
			}
		}
	}
	if at, ok := c.taken[name]; ok && (at == busy || now.Sub(at) < control.PendingAge) {
		return false
	}
	c.taken[name] = busy
	return true
}

// done says that an action was carried out.
func (c *claims) done(name string, now event.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[name] = now
}

// release lets an action be taken up again at once: it failed.
func (c *claims) release(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, name)
}
