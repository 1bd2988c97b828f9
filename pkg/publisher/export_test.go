package publisher

// ErrStopped ends an update.
var ErrStopped = errStopped

// StopAfter makes updates of the folder fail before the change after n others.
func (f *Folder) StopAfter(n int) {
	f.unsynced = true
	f.step = func() error {
		if n == 0 {
			return errStopped
		}
		n--
		return nil
	}
}
