package dispatcher

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Alive appends a sign of life.
func (d *Dispatcher) Alive(ctx context.Context, run string, p *event.TaskHeartbeat, timeout time.Duration) error {
	return d.alive(ctx, run, p, timeout)
}

// Waiting is how many tasks wait for a turn.
func (t *Turns) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, l := range t.ring {
		n += len(l.waiting)
	}
	return n
}
