package snapshot

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Load reads the state that a manifest stands for. Every file is verified
// against the size and checksum that the manifest has for it.
func Load(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.State, error) {
	st := state.New(m.Domain())
	rows, err := c.rows(ctx, store, m.Files())
	if err != nil {
		return nil, err
	}
	st.Load(rows)
	st.FoldSeq, st.FoldTime = m.FoldSeq, m.FoldTime
	return st, nil
}

// rows reads files and merges what they hold.
func (c *Codec) rows(ctx context.Context, store *manifest.Store, files []manifest.File) (*state.Rows, error) {
	sources := make([]Source, len(files))
	for i, f := range files {
		sources[i] = Source{
			Table: f.Table, Name: f.Key,
			Read: func(ctx context.Context) ([]byte, error) { return store.LoadFile(ctx, f) },
		}
	}
	return c.Merge(ctx, sources)
}
