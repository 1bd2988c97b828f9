package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// inCloud reports whether the name of a store is not that of a folder.
func inCloud(name string) bool { return strings.Contains(name, "://") }

// openStore opens an object store by its name.
func (a *app) openStore(ctx context.Context, name string) (blob.Store, io.Closer, error) {
	switch {
	case !inCloud(name):
		store, err := fileblob.Open(name, fileblob.Options{Now: a.Clock.Now})
		return store, store, err
	case a.OpenStore == nil:
		return nil, nil, usagef("this program knows stores that are folders, and %s is none; use servo-cloud", name)
	default:
		return a.OpenStore(ctx, name)
	}
}

// cloudParts opens a store in a cloud.
func (a *app) cloudParts(ctx context.Context, o embedded.Options) (*embedded.Parts, error) {
	store, closer, err := a.openStore(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	return embedded.PartsOf(o, store, closer), nil
}

// openCloud is a session on a store in a cloud, whose services fold and execute.
func (a *app) openCloud(ctx context.Context, o embedded.Options) (*session, error) {
	parts, err := a.cloudParts(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := parts.Engine(ctx, o, services{parts.Reader(), o.Dir})
	if err != nil {
		return nil, err
	}
	return &session{Engine: e, cloud: true, dir: o.Dir, close: parts.Close}, nil
}

// services fold what is appended, since they are notified of it: it is enough to
// wait until the state has it.
type services struct {
	states *snapshot.Reader
	store  string
}

// foldWait is how long services that run may take: notifications come at least once. What
// was appended to an idle domain and nobody was told of waits for a full sweep, so that
// whoever waits is to know.
const foldWait = 2 * time.Minute

// errNobodyFolds says what to look at when nothing is folded.
var errNobodyFolds = errors.New("no service has folded it for " + foldWait.String() +
	"; does servo-compactor run, and do notifications of the bucket reach it? POST /v1/sweep?full=true to servo-sweeper has it folded")

// Compact waits until the entries are folded in a published revision.
func (s services) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	if r.Barrier {
		return compactor.Result{}, fmt.Errorf("the services of %s list the ledger, and nobody else does: POST /v1/sweep?full=true to servo-sweeper asks them to", s.store)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, foldWait, errNobodyFolds)
	defer cancel()
	snap, err := s.states.Current(waiting)
	for err == nil {
		folded := true
		for _, entry := range r.Entries {
			folded = folded && snap.State.Recorded(entry.ID)
		}
		if folded {
			return compactor.Result{Revision: snap.Revision}, nil
		}
		if _, err = s.states.Await(waiting, snap.Revision); err == nil {
			snap, err = s.states.Current(waiting) // there may be more
		}
	}
	if cause := context.Cause(waiting); ctx.Err() == nil && cause != nil {
		return compactor.Result{}, cause
	}
	return compactor.Result{}, err
}

// placer gives files of a store a place: where they are on this machine or, of a
// store in a cloud, a copy here, or their URL.
type placer struct {
	parts  *embedded.Parts
	dir    string // of the copies
	remote string // what URLs begin with; "": copies are made
}

func newPlacer(parts *embedded.Parts) (*placer, error) {
	p := &placer{parts: parts}
	if parts.Store != nil {
		return p, nil
	}
	var err error
	p.dir, err = os.MkdirTemp("", "servo-query-")
	return p, err
}

// Close removes the copies.
func (p *placer) Close() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

func (p *placer) place(ctx context.Context, key string) (path string, err error) {
	if p.parts.Store != nil {
		return p.parts.Store.Path(key), nil
	}
	if p.remote != "" {
		return strings.TrimSuffix(p.remote, "/") + "/" + key, nil
	}
	path = filepath.Join(p.dir, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	r, _, err := p.parts.Objects.Open(ctx, key)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, r)
	return path, errors.Join(err, file.Close())
}
