package compactor_test

import (
	"iter"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// keys returns the keys of the objects below a prefix.
func (w *world) keys(prefix string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var found []string
		for object, err := range w.blobs.List(w.t.Context(), blob.ListOptions{Prefix: prefix}) {
			if err != nil {
				w.t.Fatal(err)
			}
			found = append(found, object.Key)
		}
		for _, key := range found {
			if !yield(key) {
				return
			}
		}
	}
}
