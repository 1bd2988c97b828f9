package state

// Bytes of memory that a row takes, about: its struct, its strings, and its places in the
// table and the indexes.
const (
	largeRow = 1000 // of a run or a task
	smallRow = 400  // of any other table
)

// Bytes returns about how much memory the state takes. It costs no look at the rows.
func (s *State) Bytes() int64 {
	large := s.Runs.Len() + s.Tasks.Len()
	small := s.Deps.Len() + s.Timers.Len() + s.Outbox.Len() + s.Attempts.Len() + s.Heartbeats.Len() + s.RunKeys.Len() +
		s.Conflicts.Len() + s.Limits.Len() + s.Partitions.Len() + s.Entries.Len()
	return largeRow*int64(large) + smallRow*int64(small)
}
