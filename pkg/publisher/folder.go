package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Folder is a folder to publish to. If another process is updating it, an update fails.
type Folder struct {
	// Path is the absolute path of the folder. Errors name the folder by Name, the path that the user has written.
	Path, Name string
	// Store is the folder of the object store, as an absolute path.
	Store string
	Owner Owner

	// step is called before each change, for tests. Nil: nothing is called.
	step func() error
	// unsynced skips syncing files to the disk. Tests that write thousands of files set it.
	unsynced bool
}

// Temporary names in a published folder. A reader that searches for files by a pattern must not find files under these
// names. So a copied file has a temporary name without an extension such as .parquet. A link with a temporary name
// leads nowhere, because its target is relative to the link's final place.
const (
	temporary       = ".servo-new"
	temporaryRecord = ".servo-record"
	setAside        = ".servo-old"
)

// maxErrors is the number of failed replacements after which an update stops.
const maxErrors = 10

// update is one call of Update.
type update struct {
	*Folder

	root   *os.Root
	lock   *os.File // the folder, locked
	record *Record
	// above is the relative path from the folder to the store.
	above    string
	obsolete []change
	changed  []change
	unnamed  []failure // outputs whose folder names are too long
}

// change is an output that the folder does not yet show correctly, or must no longer show.
type change struct {
	asset  *Asset
	name   string // the asset's name at the published place
	folder string // the folder of the partition, below the folder of the asset
	output Output
	// known means that the record contains the path. copied means that the path may contain a complete or partial copy
	// of an output. If the path is known but not copied, it is a link that Servo has created.
	known, copied bool
	// files are the files of the output after they have been copied completely.
	files []copiedFile
}

// path returns where the output is, relative to the folder.
func (c *change) path() string { return path.Join(c.name, c.folder) }

// Update makes the folder show exactly the outputs of assets, and reports whether it changed the folder. If an output
// cannot be published, the folder keeps the earlier output of the partition, and Update publishes the other outputs. If
// the outputs of an asset could not be read, Update changes nothing that the folder shows of this asset.
func (f *Folder) Update(ctx context.Context, assets []Asset, revision int64, now event.Time) (changed bool, err error) {
	u := &update{Folder: f}
	if err := u.open(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unreadIn(assets), u.close()) }()
	if err := u.compare(assets); err != nil {
		return false, err
	}
	if len(u.obsolete)+len(u.changed) == 0 {
		return false, u.failed(u.unnamed)
	}
	// Obsolete outputs are removed first, because they may occupy the paths of new outputs.
	if err := u.removeObsolete(); err != nil {
		return false, err
	}
	foreign, err := u.leaveForeign()
	if err != nil {
		return false, err
	}
	u.record.Revision, u.record.UpdatedAt = revision, now
	u.announce()
	if err := u.save(); err != nil {
		return false, err
	}
	err = u.apply(ctx, slices.Concat(u.unnamed, foreign))
	for name, a := range u.record.Assets {
		if len(a.Outputs)+len(a.Replacing) == 0 {
			delete(u.record.Assets, name)
		}
	}
	return true, errors.Join(err, u.save())
}

// open opens the folder and its record, or creates both.
func (u *update) open() (err error) {
	if err := apart(u.Path, u.Store); err != nil {
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	if err := os.MkdirAll(u.Path, 0o755); err != nil { //nolint:gosec // other users may read published files
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	if u.root, err = os.OpenRoot(u.Path); err != nil {
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	defer func() {
		if err != nil {
			_ = u.close() // nothing was written
		}
	}()
	if u.lock, err = lockFolder(u.root); err != nil {
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	if u.above, err = way(u.Path, u.Store); err != nil { // a symbolic link in the path may lead to the store
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	u.record, err = ReadRecord(filepath.Join(u.Path, RecordName))
	if errors.Is(err, fs.ErrNotExist) {
		u.record = &Record{Owner: u.Owner, Assets: map[string]*Recorded{}}
		return u.unused()
	}
	if err != nil {
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	if u.record.Owner != u.Owner {
		return fmt.Errorf("publish to %s: the folder has outputs of %s (%s), written by servo %s: choose another folder, or delete it",
			u.Name, u.record.Domain, u.record.State, u.record.Kind)
	}
	return nil
}

// close releases the folder.
func (u *update) close() error {
	err := u.root.Close()
	if u.lock != nil {
		err = errors.Join(err, u.lock.Close())
	}
	return err
}

// lockFolder locks a folder until the returned file is closed. Temporary names are the same in every update, so two
// updates at once would replace links with those of other partitions. A file system without locks cannot prevent this.
func lockFolder(root *os.Root) (*os.File, error) {
	folder, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(errors.New("another servo process is writing to it: try again when that process has ended"), folder.Close())
	}
	return folder, nil
}

// unused returns an error if the folder, which has no record, contains files.
func (u *update) unused() error {
	entries, err := fs.ReadDir(u.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("publish to %s: %w", u.Name, err)
	}
	for _, e := range entries {
		if e.Name() != temporaryRecord {
			return fmt.Errorf("publish target %s contains files that servo did not write: choose another folder", u.Name)
		}
	}
	return nil
}

// apart returns an error if a folder and the store overlap.
func apart(folder, store string) error {
	for _, pair := range [][2]string{{folder, store}, {store, folder}} {
		if rel, err := filepath.Rel(pair[0], pair[1]); err == nil && (rel == "." || filepath.IsLocal(rel)) {
			return errors.New("it overlaps with the state folder: choose another place")
		}
	}
	return nil
}

// way returns the relative path from a folder to the store, with all symbolic links resolved. If no relative path
// exists, it returns the absolute path of the store. It returns an error if the folder and the store overlap.
func way(from, to string) (string, error) {
	folder, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(to)
	if err != nil {
		return "", err
	}
	if err := apart(folder, target); err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(folder, target); err == nil {
		return rel, nil
	}
	return target, nil
}

// targetOf returns the target of the link to an output.
func (u *update) targetOf(c *change) string {
	if filepath.IsAbs(u.above) {
		return filepath.Join(u.above, filepath.FromSlash(c.output.URI))
	}
	up := strings.Repeat("../", strings.Count(c.path(), "/"))
	return filepath.FromSlash(path.Join(up, filepath.ToSlash(u.above), c.output.URI))
}

// compare finds what differs between the folder and the outputs of assets.
func (u *update) compare(assets []Asset) error {
	wanted, unread := map[string]bool{}, map[string]bool{}
	for i := range assets {
		if a := &assets[i]; a.Unread != nil {
			unread[a.Name] = true
		} else if err := u.compareAsset(a, wanted); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(u.record.Assets)) {
		if unread[name] {
			continue // keep what the folder shows of this asset
		}
		a := u.record.Assets[name]
		for _, outputs := range []map[string]string{a.Outputs, a.Replacing} {
			for _, folder := range slices.Sorted(maps.Keys(outputs)) {
				c := change{name: name, folder: folder, known: true, copied: a.Copy}
				if !wanted[c.path()] {
					wanted[c.path()] = true // so that the path is added only once
					u.obsolete = append(u.obsolete, c)
				}
			}
		}
	}
	return nil
}

// compareAsset finds the outputs of an asset that the folder does not show. It adds the paths of all outputs to wanted.
func (u *update) compareAsset(a *Asset, wanted map[string]bool) error {
	recorded := u.record.Assets[a.Name]
	for _, out := range a.Outputs {
		folder, ok := folderOf(a.Dimensions, out.Partition)
		if !ok {
			return fmt.Errorf("publish asset %s: its partition %q has other dimensions", a.Key, out.Partition)
		}
		c := change{asset: a, name: a.Name, folder: folder, output: out}
		if err := checkNames(folder); err != nil {
			u.unnamed = append(u.unnamed, failure{c, err})
			continue
		}
		u.settle(recorded, &c)
		c.known = recorded != nil && recorded.Outputs[folder]+recorded.Replacing[folder] != ""
		c.copied = c.known && recorded.Copy
		wanted[c.path()] = true
		if !u.shows(recorded, &c) {
			u.changed = append(u.changed, c)
		}
	}
	return nil
}

// checkNames returns an error if a name in the path of a partition's folder is too long for a file system.
func checkNames(folder string) error {
	for name := range strings.SplitSeq(folder, "/") {
		if len(name) > maxName {
			return fmt.Errorf("the name of its folder is longer than %d bytes: choose shorter keys, or set publish: false", maxName)
		}
	}
	return nil
}

// settle corrects the record after an interrupted update. Such an update may have replaced a link, although the record
// still says that the new output is about to replace the earlier one. settle then records that the folder shows the new
// output. Otherwise, the record would stay wrong if the current update fails to replace the link.
func (u *update) settle(recorded *Recorded, c *change) {
	if recorded == nil || recorded.Replacing[c.folder] == "" {
		return
	}
	target, err := u.root.Readlink(c.path())
	id := recorded.Replacing[c.folder]
	if err == nil && slices.Contains(strings.Split(filepath.ToSlash(target), "/"), id) { // an output of a batch is deeper than others
		recorded.Outputs[c.folder] = id
	}
}

// shows reports whether the folder already shows an output.
func (u *update) shows(recorded *Recorded, c *change) bool {
	if recorded == nil || recorded.Copy != c.asset.Copy || recorded.Outputs[c.folder] != c.output.MaterializationID || recorded.Replacing[c.folder] != "" {
		return false
	}
	if !c.asset.Copy {
		target, err := u.root.Readlink(c.path())
		return err == nil && target == u.targetOf(c)
	}
	files := recorded.Copies[c.folder]
	for _, f := range files {
		info, err := u.root.Lstat(path.Join(c.path(), f.Name))
		if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size || info.ModTime().UnixNano() != f.Modified {
			return false // somebody has changed the copy
		}
	}
	if len(files) > 0 {
		return true
	}
	info, err := u.root.Lstat(c.path())
	return err == nil && info.IsDir() && files != nil
}

// announce records the changes that the update is about to make.
func (u *update) announce() {
	for i := range u.changed {
		c := &u.changed[i]
		a := u.record.Assets[c.name]
		if a == nil {
			a = &Recorded{Outputs: map[string]string{}}
			u.record.Assets[c.name] = a
		}
		a.Asset = c.asset.Key
		a.Copy = a.Copy || c.asset.Copy
		if a.Replacing == nil {
			a.Replacing = map[string]string{}
		}
		a.Replacing[c.folder] = c.output.MaterializationID
	}
}

// removeObsolete removes the outputs that the folder must no longer show.
func (u *update) removeObsolete() error {
	for i := range u.obsolete {
		c := &u.obsolete[i]
		if err := u.remove(c); err != nil {
			return fmt.Errorf("publish to %s: %w", u.Name, err)
		}
		a := u.record.Assets[c.name]
		delete(a.Outputs, c.folder)
		delete(a.Replacing, c.folder)
		delete(a.Copies, c.folder)
	}
	return nil
}

// leaveForeign removes from u.changed the changes that would overwrite files that Servo did not write, and
// returns an error for each. It must run before [update.announce], because Servo treats every path in the record as
// its own.
func (u *update) leaveForeign() (foreign []failure, err error) {
	var ours []change
	for i := range u.changed {
		c := u.changed[i]
		is, err := u.foreign(&c)
		if err != nil {
			return nil, fmt.Errorf("publish to %s: %w", u.Name, err)
		}
		if is {
			at := filepath.Join(u.Name, filepath.FromSlash(c.path()))
			foreign = append(foreign, failure{c, fmt.Errorf("servo did not create %s: remove it, or publish the asset under another name", at)})
			continue
		}
		ours = append(ours, c)
	}
	u.changed = ours
	return foreign, nil
}

// foreign reports whether something that Servo did not create is at the path of an output.
func (u *update) foreign(c *change) (bool, error) {
	info, err := u.root.Lstat(c.path())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil // if a file blocks the path, replace reports it later
	case err != nil:
		return false, err
	case !c.known:
		return true, nil
	case info.IsDir():
		return !c.copied, nil
	}
	return info.Mode()&fs.ModeSymlink == 0, nil
}

// failure is an output that could not be published.
type failure struct {
	change
	err error
}

// apply publishes the changed outputs. The parameter failed contains the failures that were found before: their outputs
// are not in u.changed.
func (u *update) apply(ctx context.Context, failed []failure) error {
	most := len(failed) + maxErrors
	for i := range u.changed {
		if err := ctx.Err(); err != nil {
			return errors.Join(u.failed(failed), err)
		}
		c := &u.changed[i]
		if err := u.replace(ctx, c); err != nil {
			failed = append(failed, failure{*c, err})
			if len(failed) >= most || errors.Is(err, errStopped) {
				return u.failed(failed)
			}
			continue
		}
		a := u.record.Assets[c.name]
		a.Outputs[c.folder] = c.output.MaterializationID
		delete(a.Replacing, c.folder)
		delete(a.Copies, c.folder)
		if c.asset.Copy {
			if a.Copies == nil {
				a.Copies = map[string][]copiedFile{}
			}
			a.Copies[c.folder] = c.files
		}
	}
	for i := range u.changed {
		c := &u.changed[i]
		if !slices.ContainsFunc(failed, func(f failure) bool { return f.name == c.name }) {
			u.record.Assets[c.name].Copy = c.asset.Copy
		}
	}
	return u.failed(failed)
}

// failed returns an error that quotes the first failure and counts the others. It returns nil if there are no failures.
func (u *update) failed(failed []failure) error {
	if len(failed) == 0 {
		return nil
	}
	f := failed[0]
	err := fmt.Errorf("publish to %s: asset %s, partition %s: %w", u.Name, f.asset.Key, cmp.Or(f.output.Partition, "-"), f.err)
	if more := len(failed) - 1; more > 0 {
		err = fmt.Errorf("%w; %d more outputs failed", err, more)
	}
	return err
}

// errStopped ends an update, for tests.
var errStopped = errors.New("stopped")

// before calls the hook of a test. It is called before each change.
func (f *Folder) before() error {
	if f.step == nil {
		return nil
	}
	return f.step()
}

// sync makes the content of a file durable. It is called before the file is renamed to its final name.
func (f *Folder) sync(file *os.File) error {
	if f.unsynced {
		return nil
	}
	return file.Sync()
}

// save replaces the record.
func (u *update) save() (err error) {
	data, err := u.record.encode()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("publish to %s: %w", u.Name, err)
		}
	}()
	if err := u.before(); err != nil {
		return err
	}
	file, err := u.root.OpenFile(temporaryRecord, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, u.sync(file), file.Close()); err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	return u.root.Rename(temporaryRecord, RecordName)
}
