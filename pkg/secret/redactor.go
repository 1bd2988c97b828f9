package secret

import (
	"io"
	"slices"
	"sync"
)

// Redactor hides secret values in the log of a process. Values are added when they become
// known. A Redactor is safe for concurrent use; its zero value is ready to use.
type Redactor struct {
	mu     sync.Mutex
	values []string
	mask   *Mask // hides values
}

// Add hides values in later writes.
func (r *Redactor) Add(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := len(r.values)
	for _, value := range values {
		if !slices.Contains(r.values, value) {
			r.values = append(r.values, value)
		}
	}
	if len(r.values) > known {
		r.mask = NewMask(r.values)
	}
}

// Mask returns a mask that hides the added values and the values in the parameter more. It returns nil if no value
// was added and more is empty.
func (r *Redactor) Mask(more ...string) *Mask {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(more) == 0 {
		return r.mask
	}
	return NewMask(append(slices.Clone(r.values), more...))
}

// Writer returns a writer that hides the values in each Write, for example of a log line, and
// passes the result to another writer. It does not find a value that is split between two
// Writes; [Mask.Writer] does.
func (r *Redactor) Writer(to io.Writer) io.Writer { return redacting{r, to} }

type redacting struct {
	redactor *Redactor
	to       io.Writer
}

// Write implements [io.Writer].
func (w redacting) Write(p []byte) (int, error) {
	if _, err := w.to.Write(w.redactor.Mask().Bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
