package publisher

// ErrStopped ends an update.
var ErrStopped = errStopped

// StopAfter makes updates of the folder fail after n changes.
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

// BeforeChange sets a function that is called before each change of the folder.
func (f *Folder) BeforeChange(step func() error) { f.step = step }
