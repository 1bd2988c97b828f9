package dispatcher

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// AppendHeartbeat calls appendHeartbeat.
func (d *Dispatcher) AppendHeartbeat(ctx context.Context, run string, p *event.TaskHeartbeat, timeout time.Duration) error {
	return d.appendHeartbeat(ctx, run, p, timeout)
}

// Waiting returns how many tasks wait for a turn.
func (t *FairQueue) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, l := range t.ring {
		n += len(l.waiting)
	}
	return n
}

// Change changes the configuration of a dispatcher. The dispatcher must not be in use.
func (d *Dispatcher) Change(change func(*Config)) { change(&d.cfg) }
