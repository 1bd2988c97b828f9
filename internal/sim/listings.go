package sim

import "sync"

// listings counts, by prefix, how many listings of compactors have failed and completed since the last call of
// onlyFailed. A listing starts over after a failed request, so in worlds with small pages and many failures, few
// listings complete. Timers then wait, because they fire only after a complete listing.
type listings struct {
	mu                sync.Mutex
	failed, completed map[string]int
}

func newListings() *listings {
	return &listings{failed: map[string]int{}, completed: map[string]int{}}
}

// ended counts a listing.
func (l *listings) ended(prefix string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed[prefix]++
	} else {
		l.completed[prefix]++
	}
}

// onlyFailed reports whether, since its last call, listings of a prefix have failed and none has completed.
func (l *listings) onlyFailed(prefix string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	only := l.failed[prefix] > 0 && l.completed[prefix] == 0
	delete(l.failed, prefix)
	delete(l.completed, prefix)
	return only
}
