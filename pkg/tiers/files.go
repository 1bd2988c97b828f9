package tiers

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// write encodes rows and stores them in files.
func (cfg *Config) write(ctx context.Context, id string, rows *state.Rows, tier string) (manifest.Delta, error) {
	files, err := cfg.Codec.Encode(rows)
	if err != nil {
		return manifest.Delta{}, err
	}
	return cfg.store(ctx, id, files, tier)
}

// store stores one file for each table, in parallel. The id must be new: a write whose answer was
// lost is repeated under another id, and nothing refers to the files of the first one.
func (cfg *Config) store(ctx context.Context, id string, files []snapshot.File, tier string) (manifest.Delta, error) {
	d := manifest.Delta{ID: id, Files: make([]manifest.File, len(files))}
	g, gctx := errgroup.WithContext(ctx)
	for i, f := range files {
		d.Files[i] = f.Named(cfg.Domain, tier, id)
		d.Rows += f.Rows
		d.Bytes += int64(len(f.Data))
		key := d.Files[i].Key
		g.Go(func() error {
			return cfg.create(gctx, key, f.Data)
		})
	}
	return d, g.Wait()
}

func (cfg *Config) create(ctx context.Context, key string, data []byte) error {
	object, err := cfg.Store.Create(ctx, key, data)
	if err == nil {
		cfg.OnStored(object.Updated)
	}
	return err
}
