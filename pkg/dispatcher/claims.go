package dispatcher

import (
	"sync"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
)

// claims remembers which actions this process has taken up lately, so that two
// hand-overs of states that both show them waiting carry them out once. It saves
// requests and acknowledgements, nothing else: what is taken up twice meets the
// name of its queue task.
type claims struct {
	mu    sync.Mutex
	taken map[string]event.Time
	swept event.Time
}

func newClaims() *claims { return &claims{taken: map[string]event.Time{}} }

// claim takes an action up, unless that was done less than [control.PendingAge] ago.
func (c *claims) claim(name string, now event.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.swept) >= control.PendingAge {
		c.swept = now
		for name, at := range c.taken {
			if now.Sub(at) >= control.PendingAge {
				delete(c.taken, name)
			}
		}
	}
	if at, ok := c.taken[name]; ok && now.Sub(at) < control.PendingAge {
		return false
	}
	c.taken[name] = now
	return true
}

// release lets an action be taken up again at once: it failed.
func (c *claims) release(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, name)
}
