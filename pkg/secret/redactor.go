package secret

import (
	"io"
	"slices"
	"sync"
)

// Redactor hides values in all that a process logs. Values are added as they become
// known. It is safe for concurrent use; its zero value is ready.
type Redactor struct {
	mu     sync.Mutex
	values []string
	mask   *Mask // of values
}

// Add hides values from now on.
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

// Mask hides what is known, and more; nil if there is nothing to hide.
func (r *Redactor) Mask(more ...string) *Mask {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(more) == 0 {
		return r.mask
	}
	return NewMask(append(slices.Clone(r.values), more...))
}

// Writer writes to another writer what is left after hiding. Each Write is a text of its
// own, such as a line of a log: a value that is split between two is not found.
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
