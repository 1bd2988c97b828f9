package dispatcher

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
