package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// beats remembers when an attempt's last sign of life went to the ledger, so
// that a worker may ask often whether it is to stop without each question being
// kept for ever.
type beats struct {
	mu   sync.Mutex
	last map[string]time.Time
	// flush is when somebody has what waits for company written.
	flush time.Time
}

func newBeats() *beats { return &beats{last: map[string]time.Time{}} }

const (
	// beatShare is which part of its time-out a recorded heartbeat is good for.
	beatShare = 6
	minBeat   = time.Second
	maxBeat   = 30 * time.Second
	// maxBeats bounds what is remembered. Forgetting costs a ledger event, no more.
	maxBeats = 100_000
	// shortTimeout is of tasks whose signs of life cannot wait until there is company:
	// another process, which calls their timer, would not know of them in time. They wait
	// for gatherShare of the time-out, a second at most.
	shortTimeout = 15 * time.Second
	gatherShare  = 12
	maxGather    = time.Second
)

// alive appends a sign of life. What a process hears of all of its tasks within a moment
// is one entry: the first of them waits for the others, and has them written. That its
// own worker gives up meanwhile, because the task has ended, is nothing to the others.
func (d *Dispatcher) alive(ctx context.Context, run string, p *event.TaskHeartbeat, timeout time.Duration) error {
	if err := d.soon(ctx, run, p); err != nil || timeout >= shortTimeout {
		return err
	}
	wait := min(timeout/gatherShare, maxGather)
	if d.Appender.Company() <= wait || !d.beats.gathers(d.Clock.Now(), wait) {
		return nil // it is written by then
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+shortTimeout)
	defer cancel()
	err := d.Clock.Sleep(ctx, wait)
	if err == nil {
		err = d.Appender.Flush(ctx)
	}
	if err != nil {
		d.beats.scatter()
	}
	return err
}

// due reports whether an attempt's heartbeat is to be recorded now.
func (b *beats) due(attemptID string, timeout time.Duration, now time.Time) bool {
	now = now.Round(0) // by the wall: the other clock stands still while a machine sleeps
	every := min(max(timeout/beatShare, minBeat), maxBeat)
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.last[attemptID]; ok && now.Sub(last) < every {
		return false
	}
	if len(b.last) >= maxBeats {
		clear(b.last)
	}
	b.last[attemptID] = now
	return true
}

// gathers reports whether the caller has to have what waits for company written when a
// while has passed, since nobody else does by then.
func (b *beats) gathers(now time.Time, wait time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flush.After(now) && !b.flush.After(now.Add(wait)) {
		return false
	}
	b.flush = now.Add(wait)
	return true
}

// scatter is called by who could not do so: the next one has to.
func (b *beats) scatter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flush = time.Time{}
}

func (b *beats) forget(attemptID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, attemptID)
}
