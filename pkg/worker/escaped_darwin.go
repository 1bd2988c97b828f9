package worker

// adoptOrphans does nothing: this system has no way to find processes that leave the
// session of their command. The worker contract says so.
func adoptOrphans() {}

func startedAt(int) uint64 { return 0 }

func (*process) killEscaped(func(started uint64) bool) (left int) { return 0 }
