package publisher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Catalog is a published place that is a DuckDB database with views of the outputs. The folder of its links also
// contains its record.
type Catalog struct {
	// File is the absolute path of the database. Errors name the catalog by Name, the path that the user has written.
	File, Name string
	// Store is the folder of the object store, as an absolute path.
	Store string
	Owner Owner
	// Definition is a text that describes everything that the views depend on besides the outputs: for example, the
	// release. If it changes, Update writes the catalog again.
	Definition string
	// Write replaces the file with one that has views of the outputs of assets.
	Write func(ctx context.Context, assets []Asset, revision int64, now event.Time) error
}

// LinksOf returns the path of the folder that contains the links and the record of a catalog.
func LinksOf(file string) string { return file + ".links" }

// RecordOf returns the path of the record of a catalog.
func RecordOf(file string) string { return filepath.Join(LinksOf(file), RecordName) }

// catalogRecord is the record of a catalog.
type catalogRecord struct {
	Record

	// Content is the hash of the outputs and the definition from which the catalog was written.
	Content string `json:"content"`
}

// Update writes the catalog again if the outputs or the definition have changed. The result changed reports whether it
// has written the catalog. If the outputs of an asset could not be read, the catalog does not change, because it would
// lose the view of this asset.
func (c *Catalog) Update(ctx context.Context, assets []Asset, revision int64, now event.Time) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("publish to %s: %w", c.Name, err)
		}
	}()
	if err := errors.Join(unreadIn(assets), apart(c.File, c.Store)); err != nil {
		return false, err
	}
	content := c.contentOf(assets)
	record, err := c.read()
	if err != nil {
		return false, err
	}
	if _, err := os.Lstat(c.File); err == nil && record.Content == content {
		return false, nil
	}
	next := map[string]*Recorded{}
	for i := range assets {
		a := &assets[i]
		next[a.Name] = &Recorded{Asset: a.Key, Outputs: map[string]string{}}
		for _, out := range a.Outputs {
			next[a.Name].Outputs[out.Partition] = out.MaterializationID
		}
	}
	if err := c.save(record.announce(next)); err != nil {
		return false, err
	}
	if err := c.Write(ctx, assets, revision, now); err != nil { // the file is unchanged
		return false, errors.Join(err, c.save(record))
	}
	record.Revision, record.UpdatedAt, record.Assets, record.Content = revision, now, next, content
	return true, c.save(record)
}

// announce returns the record of an update to the assets in next. The record names all materializations that readers
// may find before, during and after this update.
func (r *catalogRecord) announce(next map[string]*Recorded) *catalogRecord {
	to := &catalogRecord{Record: r.Record}
	to.Assets = map[string]*Recorded{}
	for name, a := range r.Assets {
		// An interrupted update may have replaced the file. So the file shows either Outputs or Replacing.
		earlier := slices.AppendSeq(slices.Clone(a.Earlier), maps.Values(a.Replacing))
		slices.Sort(earlier)
		to.Assets[name] = &Recorded{Asset: a.Asset, Outputs: a.Outputs, Earlier: slices.Compact(earlier)}
	}
	for name, a := range next {
		if to.Assets[name] == nil {
			to.Assets[name] = &Recorded{Asset: a.Asset, Outputs: map[string]string{}}
		}
		to.Assets[name].Replacing = a.Outputs
	}
	return to
}

// contentOf returns the hash of the outputs and the definition from which a catalog is written. The views contain
// absolute paths, so the hash also depends on the places of the file and of the store.
func (c *Catalog) contentOf(assets []Asset) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q%q%q", c.Definition, c.File, c.Store)
	for i := range assets {
		fmt.Fprintf(sum, "%q", assets[i].Name)
		for _, out := range assets[i].Outputs {
			fmt.Fprintf(sum, "%q%q", out.Partition, out.URI)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// read returns the record of the catalog. If the catalog has none, it returns an empty record.
func (c *Catalog) read() (*catalogRecord, error) {
	r := &catalogRecord{Record: Record{Owner: c.Owner, Assets: map[string]*Recorded{}}}
	data, err := os.ReadFile(RecordOf(c.File))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: delete %s and the folder %s, and Servo writes them again", RecordOf(c.File), c.Name, filepath.Dir(RecordOf(c.File)))
	}
	if r.Owner != c.Owner {
		return nil, fmt.Errorf("the file has outputs of %s (%s): choose another file, or delete it and the folder %s", r.Domain, r.State, LinksOf(c.Name))
	}
	r.normalize()
	return r, nil
}

// save replaces the record.
func (c *Catalog) save(r *catalogRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.Mkdir(LinksOf(c.File), 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // readable by all users
		return err
	}
	name := RecordOf(c.File)
	file, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // readable by all users
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
