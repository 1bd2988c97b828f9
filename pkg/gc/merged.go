package gc

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
)

// Merged files are copies of outputs, so a copy must not outlive its output. Before a pass deletes an output, it
// deletes the merged files that contain the output. If a process stops in between, the output is still there, and the
// next pass continues.
//
// A worker may publish a merged file while a pass deletes an output that the file contains. Therefore each pass
// checks whether the outputs of new merged files exist, until such a file is a day old. By then, all passes that did
// not know the file have ended, because a pass takes less than a day.

// checkFor is how long the outputs of a merged file are checked. It is also the age at which a file that no index
// names is deleted.
const checkFor = 24 * time.Hour

// mergedAsset holds the merged files of an asset.
type mergedAsset struct {
	prefix string
	index  merged.Index
	// damaged means that the index could not be read. In that case, any merged file may contain any output.
	damaged bool
	// holders contains, by hash of a materialization, the ids of the merged files that contain the materialization. It is
	// nil until it is loaded.
	holders map[uint64][]string
}

// loadIndexes loads the indexes of the assets in a page, checks new merged files, and deletes files that no index
// names.
func (p *pass) loadIndexes(ctx context.Context, now event.Time, page []Object) error {
	assets, files := map[string]bool{}, map[string][]Object{}
	for _, o := range page {
		if prefix, asset := merged.AssetOf(p.Domain, o.Key); prefix != "" {
			assets[asset] = true
			files[asset] = append(files[asset], o)
		} else if cell, id, _ := p.split(o.Key); id != "" {
			assets[p.assetOf(cell)] = true
		}
	}
	p.merged = map[string]*mergedAsset{}
	for _, asset := range slices.Sorted(maps.Keys(assets)) {
		key, err := ids.ParseAssetKey(asset)
		if _, ok := p.keep(asset); err != nil || !ok {
			continue
		}
		m := &mergedAsset{prefix: merged.Prefix(p.Domain, key)}
		p.merged[asset] = m
		if m.index, _, m.damaged, err = merged.Load(ctx, p.Store, m.prefix); err != nil {
			m.damaged = true // the pass deletes no output of the asset
			if err := p.noteFailure(ctx, err); err != nil {
				return err
			}
			continue
		}
		if m.damaged {
			if err := p.dropAll(ctx, asset, m); err != nil {
				return err
			}
			continue
		}
		if !p.checkedAssets[asset] {
			p.checkedAssets[asset] = true
			if err := p.checkNew(ctx, now, asset, m); err != nil {
				return err
			}
		}
		if err := p.dropUnnamed(ctx, now, asset, m, files[asset]); err != nil {
			return err
		}
	}
	return nil
}

// checkNew deletes merged files that contain a deleted output, and marks the files that are a day old as checked.
func (p *pass) checkNew(ctx context.Context, now event.Time, asset string, m *mergedAsset) error {
	var gone, old []string
	for i := range m.index.Files {
		e := &m.index.Files[i]
		if e.Checked {
			continue
		}
		whole, at, err := p.isWhole(ctx, m.prefix, e)
		if err != nil {
			if err := p.noteFailure(ctx, err); err != nil {
				return err
			}
			continue
		}
		switch {
		case !whole:
			gone = append(gone, e.ID)
		case now.Sub(at) >= checkFor:
			old = append(old, e.ID)
		}
	}
	if err := p.unmerge(ctx, asset, m, gone); err != nil {
		return p.noteFailure(ctx, err)
	}
	if len(old) == 0 || p.opts.DryRun {
		return nil
	}
	err := merged.Update(ctx, p.Store, m.prefix, func(x *merged.Index) bool {
		changed := false
		for i := range x.Files {
			if slices.Contains(old, x.Files[i].ID) && !x.Files[i].Checked {
				x.Files[i].Checked, changed = true, true
			}
		}
		return changed
	})
	if err != nil {
		return p.noteFailure(ctx, err) // a later pass checks them again
	}
	return nil
}

// isWhole reports whether all outputs of a merged file exist, and when the file's description was stored, by the
// store's clock.
func (p *pass) isWhole(ctx context.Context, prefix string, e *merged.Entry) (whole bool, at event.Time, err error) {
	f, err := merged.Describe(ctx, p.Store, prefix, e)
	if errors.Is(err, merged.ErrDamaged) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	o, err := p.Store.Head(ctx, merged.CellsKey(prefix, e.ID))
	if err != nil {
		return false, 0, fmt.Errorf("look for merged file %s: %w", e.ID, err)
	}
	exists := map[string]bool{} // the partitions of a batch share a marker
	for i := range f.Cells {
		found := false
		for _, key := range []string{contract.CommitMarkerKeyOf(f.Cells[i].URI), contract.QuarantineMarkerKeyOf(f.Cells[i].URI)} {
			if exists[key] {
				found = true
				break
			}
			_, err := p.Store.Head(ctx, key)
			if err != nil && !errors.Is(err, blob.ErrNotFound) {
				return false, 0, fmt.Errorf("look for the outputs of merged file %s: %w", e.ID, err)
			}
			if err == nil {
				exists[key], found = true, true
				break
			}
		}
		if !found {
			return false, 0, nil
		}
	}
	return true, event.At(o.Updated), nil
}

// dropUnnamed deletes old objects that the index does not name.
func (p *pass) dropUnnamed(ctx context.Context, now event.Time, asset string, m *mergedAsset, files []Object) error {
	for _, o := range files {
		id := merged.IDOf(m.prefix, o.Key)
		named := slices.ContainsFunc(m.index.Files, func(e merged.Entry) bool { return e.ID == id })
		if id == "" || named || now.Sub(o.Updated) < checkFor {
			continue
		}
		if err := p.delete(ctx, asset, Garbage{Reason: Merged, Version: id, Objects: []Object{o}}); err != nil {
			return err
		}
	}
	return nil
}

// dropAll deletes all merged files of an asset whose index is damaged, and then the index.
func (p *pass) dropAll(ctx context.Context, asset string, m *mergedAsset) error {
	var objects []Object
	for o, err := range p.Store.List(ctx, blob.ListOptions{Prefix: m.prefix}) {
		if err != nil {
			return err
		}
		if merged.IDOf(m.prefix, o.Key) != "" {
			objects = append(objects, Object{Key: o.Key, Size: o.Size, Updated: event.At(o.Updated)})
		}
	}
	objects = append(objects, Object{Key: merged.IndexKey(m.prefix)})
	if p.opts.DryRun {
		return p.delete(ctx, asset, Garbage{Reason: Merged, Objects: objects})
	}
	for _, o := range objects { // the index is last
		if err := p.Store.Delete(ctx, o.Key); err != nil {
			return p.noteFailure(ctx, fmt.Errorf("delete %s: %w", o.Key, err))
		}
	}
	m.damaged = false
	return nil
}

// unmerge deletes merged files, and then removes them from the index.
func (p *pass) unmerge(ctx context.Context, asset string, m *mergedAsset, gone []string) error {
	if len(gone) == 0 {
		return nil
	}
	for _, id := range gone {
		g := Garbage{Reason: Merged, Version: id}
		for _, key := range []string{merged.DataKey(m.prefix, id), merged.CellsKey(m.prefix, id)} {
			o, err := p.Store.Head(ctx, key)
			if errors.Is(err, blob.ErrNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("look for merged file %s: %w", id, err)
			}
			g.Objects = append(g.Objects, Object{Key: key, Size: o.Size, Updated: event.At(o.Updated)})
		}
		if !p.opts.DryRun {
			for _, o := range g.Objects {
				if err := p.Store.Delete(ctx, o.Key); err != nil {
					return fmt.Errorf("delete %s: %w", o.Key, err)
				}
			}
		}
		if len(g.Objects) > 0 {
			p.count(asset, g, g.Objects)
		}
	}
	m.index.Remove(gone...)
	if p.opts.DryRun {
		return nil
	}
	return merged.Update(ctx, p.Store, m.prefix, func(x *merged.Index) bool { return x.Remove(gone...) > 0 })
}

// unmergeOutput deletes the merged files that contain an output. The output may be deleted only if the error is nil.
func (p *pass) unmergeOutput(ctx context.Context, asset, materialization string) error {
	m := p.merged[asset]
	if m == nil || m.damaged && p.opts.DryRun {
		return nil
	}
	if m.damaged {
		return fmt.Errorf("the index of the merged files of %s cannot be read", asset)
	}
	if m.holders == nil {
		if err := p.loadHolders(ctx, asset, m); err != nil {
			return err
		}
	}
	return p.unmerge(ctx, asset, m, slices.DeleteFunc(slices.Clone(m.holders[hashOf(materialization)]), func(id string) bool {
		return !slices.ContainsFunc(m.index.Files, func(e merged.Entry) bool { return e.ID == id })
	}))
}

// loadHolders loads which merged files contain which outputs. A file whose description cannot be read may contain any
// output, so it is deleted.
func (p *pass) loadHolders(ctx context.Context, asset string, m *mergedAsset) error {
	holders := map[uint64][]string{}
	var unreadable []string
	for i := range m.index.Files {
		e := &m.index.Files[i]
		f, err := merged.Describe(ctx, p.Store, m.prefix, e)
		if errors.Is(err, merged.ErrDamaged) {
			unreadable = append(unreadable, e.ID)
			continue
		}
		if err != nil {
			return err
		}
		for j := range f.Cells {
			h := hashOf(f.Cells[j].Materialization)
			if held := holders[h]; len(held) == 0 || held[len(held)-1] != e.ID { // add the file of a batch only once
				holders[h] = append(held, e.ID)
			}
		}
	}
	if err := p.unmerge(ctx, asset, m, unreadable); err != nil {
		return err
	}
	m.holders = holders
	return nil
}

// hashOf returns a hash, which takes less memory than the id. If two outputs have the same hash, a merged file is
// deleted too early, which is safe.
func hashOf(materialization string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(materialization)) // never fails
	return h.Sum64()
}
