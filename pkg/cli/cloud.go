package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
)

// inCloud reports whether a store is in a cloud, not in a folder.
func inCloud(name string) bool { return strings.Contains(name, "://") }

// openStore opens an object store by name.
func (a *app) openStore(ctx context.Context, name string) (blob.Store, io.Closer, error) {
	switch {
	case !inCloud(name):
		store, err := fileblob.Open(name, fileblob.Options{Now: a.Clock.Now})
		return store, store, err
	case a.OpenStore == nil:
		return nil, nil, usagef("%s is not a folder, and servo supports only folders; use servo-cloud", name)
	default:
		return a.OpenStore(ctx, name)
	}
}

// cloudParts opens a store in a cloud and returns the workspace in it.
func (a *app) cloudParts(ctx context.Context, o embedded.Options) (*embedded.Workspace, error) {
	store, closer, err := a.openStore(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	return embedded.OpenStore(o, store, closer), nil
}

// openCloud returns a session on a store in a cloud. This process neither folds the ledger nor executes runs:
// services in the cloud do both.
func (a *app) openCloud(ctx context.Context, o embedded.Options) (*session, error) {
	parts, err := a.cloudParts(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := parts.Engine(ctx, o, engine.Services{Domain: parts.Domain, Store: parts.Store, Snapshots: parts.Reader(), Clock: a.Clock})
	if err != nil {
		return nil, err
	}
	return &session{Engine: e, cloud: true, dir: o.Dir, close: parts.Close}, nil
}

// placer maps files of a store to locations that DuckDB can read: a path on this machine or,
// for a store in a cloud, a local copy or a URL.
type placer struct {
	parts  *embedded.Workspace
	dir    string // folder of the copies
	remote string // prefix of the files' URLs; "": copy the files
}

func newPlacer(parts *embedded.Workspace) (*placer, error) {
	p := &placer{parts: parts}
	if parts.Folder != nil {
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
	if p.parts.Folder != nil {
		return p.parts.Folder.Path(key), nil
	}
	if p.remote != "" {
		return strings.TrimSuffix(p.remote, "/") + "/" + key, nil
	}
	path = filepath.Join(p.dir, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	r, _, err := p.parts.Store.Open(ctx, key)
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
