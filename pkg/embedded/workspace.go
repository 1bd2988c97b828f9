package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Workspace is a domain that a process has opened in a folder or a bucket.
type Workspace struct {
	*domain.Handle
	// Folder is the state folder, or nil if the store is not a folder. The store of the handle may be a wrapper around
	// Folder.
	Folder *fileblob.Store

	closer io.Closer
}

// Open opens a state folder and creates it if it is absent. The only clock of a folder is the machine's clock, which
// may have been ahead earlier. If it was, [Workspace.Follow] continues from the time that the state records.
func Open(opts Options) (*Workspace, error) {
	opts.Clock = clock.NewForward(opts.Clock)
	store, err := fileblob.Open(opts.Dir, fileblob.Options{Now: opts.Clock.Now, Read: opts.Read})
	if err != nil {
		return nil, fmt.Errorf("open state folder %s: %w", opts.Dir, err)
	}
	objects := blob.Store(store)
	if opts.Wrap != nil {
		objects = opts.Wrap(store)
	}
	w := OpenStore(opts, objects, store)
	w.Folder = store
	return w, nil
}

// OpenStore opens the workspace of a store that is already open. The workspace closes the store.
func OpenStore(opts Options, objects blob.Store, closer io.Closer) *Workspace {
	return &Workspace{
		Handle: domain.Open(domain.Handle{Domain: opts.Domain, Store: objects, Clock: opts.Clock, Logger: opts.Logger}),
		closer: closer,
	}
}

// Follow compares the machine's clock with the latest time that a revision records. If the machine's clock is behind,
// Follow moves the folder's clock to that time and logs a warning. Without this, the names of new entries would sort
// before the names of folded entries. No listing would find the new entries, and nothing would be collected until the
// machine's clock caught up.
func (w *Workspace) Follow(m *manifest.Manifest) {
	forward, ok := w.Clock.(*clock.Forward)
	if !ok {
		return
	}
	recorded := m.FoldTime.Time()
	for _, id := range []string{m.Watermarks.EventsProcessedThrough, m.Watermarks.CompleteThrough} {
		if at := ids.Time(id); at.After(recorded) {
			recorded = at
		}
	}
	if lead := forward.Follow(recorded); lead > 0 {
		w.Logger.Warn("the state is ahead of this machine's clock, which was wrong earlier or is wrong now. Servo continues from the time of the state: "+
			"times of new runs are ahead until the clock catches up",
			slog.String("state", event.At(recorded).String()), slog.Duration("ahead", lead.Round(time.Second)))
	}
}

// follow calls Follow with the newest revision, if it can be read.
func (w *Workspace) follow(ctx context.Context) error {
	m, err := w.Manifests.Load(ctx)
	if err == nil {
		w.Follow(m)
	}
	return ctx.Err() // ignore err: opening the state will report why the manifest cannot be read
}

// Close closes the store.
func (w *Workspace) Close() error { return w.closer.Close() }
