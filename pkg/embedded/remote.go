package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Attach returns an engine on a state folder that another process owns. The engine appends to the
// ledger itself, and the owner folds.
func Attach(ctx context.Context, opts Options, owner Owner) (*engine.Engine, error) {
	if owner.Domain != opts.Domain.String() {
		return nil, fmt.Errorf("state folder %s: process %d serves it for tenant/workspace %s, but this project belongs to %s",
			opts.Dir, owner.PID, owner.Domain, opts.Domain)
	}
	p, err := Open(opts)
	if err != nil {
		return nil, err
	}
	return p.Engine(ctx, opts, ownerCompactor{&remote.Client{Domain: p.Domain, URL: owner.URL, HTTP: owner.Client()}})
}

// ownerCompactor asks the owner of the folder to fold. It sends only the names of entries: the owner reads the entries
// from the folder.
type ownerCompactor struct{ client *remote.Client }

// Compact implements [engine.Compactor].
func (o ownerCompactor) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	named := make([]compactor.Entry, len(r.Entries))
	for i, entry := range r.Entries {
		named[i] = compactor.Entry{ID: entry.ID}
	}
	r.Entries = named
	return o.client.Compact(ctx, r)
}

// Engine returns an engine that appends entries for another process to fold. If it returns an error, it has closed the
// store.
func (w *Workspace) Engine(ctx context.Context, opts Options, folds engine.Compactor) (*engine.Engine, error) {
	// New ids of this process must sort after the ids in the state.
	m, err := w.Load(ctx)
	switch {
	case err == nil:
		w.Follow(m)
	case !errors.Is(err, manifest.ErrNone):
		return nil, errors.Join(err, w.Close())
	}
	return engine.New(engine.Config{
		Handle: w.Handle, Snapshots: w.Reader(), Appender: w.Appender(ledger.Config{}), Compactor: folds, Traces: opts.Traces, Root: opts.Root,
	}).As(opts.Actor), nil
}
