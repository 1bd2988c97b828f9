package publisher_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/publisher"
)

// fixture is a store and a folder to publish to.
type fixture struct {
	store string
	publisher.Folder
}

func newFixture(dir string) *fixture {
	store := filepath.Join(dir, ".servo")
	return &fixture{store, publisher.Folder{
		Path: filepath.Join(dir, "published"), Name: "./published", Store: store,
		Owner: publisher.Owner{Kind: publisher.KindPublish, Domain: "default/default", State: "../.servo"},
	}}
}

const day = event.Time(1_700_000_000_000)

// output stores an output whose files contain the version, and returns it.
func (f *fixture) output(asset, key string, version int, names ...string) (publisher.Output, error) {
	id := fmt.Sprintf("01J%023d", version)
	segment := contract.PartitionSegment(key)
	uri := "assets/default/default/" + asset + "/" + segment + "/" + id + "/" + "01J00000000000000000000000-n/"
	m := contract.CommitMarker{
		MaterializationID: id, RunID: id, TaskKey: asset, AssetKey: asset, PartitionKey: key, Attempt: 1, AttemptID: "01J00000000000000000000000",
		Nonce: "n", URI: uri, CommittedAt: day, StartedAt: day, Files: []contract.CommitMarkerFile{},
	}
	for _, name := range names {
		data := []byte(strings.Repeat(fmt.Sprintf("%s %s %d\n", asset, key, version), 50))
		file := filepath.Join(f.store, filepath.FromSlash(uri+name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, 0o600)); err != nil {
			return publisher.Output{}, err
		}
		m.Files = append(m.Files, contract.CommitMarkerFile{Name: name, Size: int64(len(data)), CRC32C: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))})
	}
	data, err := json.Marshal(m)
	if err != nil {
		return publisher.Output{}, err
	}
	return publisher.Output{Partition: key, MaterializationID: id, URI: uri},
		os.WriteFile(filepath.Join(f.store, filepath.FromSlash(contract.CommitMarkerKeyOf(uri))), data, 0o600)
}

// shown returns the contents of all files that a reader finds, by path, with links followed.
func (f *fixture) shown() (map[string]string, error) {
	found := map[string]string{}
	var walk func(dir string) error
	walk = func(dir string) error {
		entries, err := os.ReadDir(filepath.Join(f.Path, dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			info, err := os.Stat(filepath.Join(f.Path, name))
			switch {
			case dir == "" && strings.HasPrefix(e.Name(), ".servo-") && !strings.Contains(e.Name(), ".parquet"):
				if err == nil && info.IsDir() && e.Name() == ".servo-new" {
					return fmt.Errorf("the temporary link %s leads to an output", name)
				}
			case err != nil:
				return err
			case info.IsDir():
				if err := walk(name); err != nil {
					return err
				}
			case name != publisher.RecordName:
				data, err := os.ReadFile(filepath.Join(f.Path, name))
				if err != nil {
					return err
				}
				found[name] = string(data)
			}
		}
		return nil
	}
	err := walk("")
	if errors.Is(err, fs.ErrNotExist) && len(found) == 0 {
		err = nil
	}
	return found, err
}

func asset(name string, dimensions []string, outputs ...publisher.Output) publisher.Asset {
	return publisher.Asset{Key: name, Name: name, Dimensions: dimensions, Outputs: outputs}
}

func TestUpdateNamesFoldersLikeHive(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	out := func(name, key string, version int) publisher.Output {
		o, err := f.output(name, key, version, "data.parquet")
		require.NoError(t, err)
		return o
	}
	key := func(date, region string) string { return ids.Partition{"date": date, "region": region}.Key() }
	assets := []publisher.Asset{
		asset("clean/daily", []string{"region", "date"}, out("clean/daily", key("2025-01-01", "a/b c"), 1), out("clean/daily", key("2025-01-01", "NULL"), 2)),
		asset("clean/total", nil, out("clean/total", "", 3)),
	}
	changed, err := f.Update(t.Context(), assets, 7, day)
	require.NoError(t, err)
	require.True(t, changed)
	found, err := f.shown()
	require.NoError(t, err)
	require.Equal(t, []string{
		"clean/daily/region=%4EULL/date=2025-01-01/data.parquet", "clean/daily/region=a%2Fb%20c/date=2025-01-01/data.parquet", "clean/total/data.parquet",
	}, slices.Sorted(maps.Keys(found)))

	changed, err = f.Update(t.Context(), assets, 8, day)
	require.NoError(t, err)
	require.False(t, changed)

	// The folder and the state can be moved together, because the links are relative.
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(filepath.Dir(f.Path), moved))
	f.Path = filepath.Join(moved, "published")
	after, err := f.shown()
	require.NoError(t, err)
	require.Equal(t, found, after)
}

func TestUpdateRejectsForeignFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newFixture(dir)
	o, err := f.output("a/b", "", 1, "data.parquet")
	require.NoError(t, err)
	assets := []publisher.Asset{asset("a/b", nil, o)}
	require.NoError(t, os.Mkdir(f.Path, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(f.Path, "mine.txt"), nil, 0o600))
	_, err = f.Update(t.Context(), assets, 1, day)
	require.EqualError(t, err, "publish target ./published contains files that servo did not write: choose another folder")

	require.NoError(t, os.Remove(filepath.Join(f.Path, "mine.txt")))
	_, err = f.Update(t.Context(), assets, 1, day)
	require.NoError(t, err)
	other := f.Folder
	other.Owner.Domain = "default/dev"
	_, err = other.Update(t.Context(), assets, 1, day)
	require.ErrorContains(t, err, "the folder has outputs of default/default (../.servo), written by servo publish: choose another folder")

	require.NoError(t, os.WriteFile(filepath.Join(f.Path, publisher.RecordName), []byte("{"), 0o600))
	_, err = f.Update(t.Context(), assets, 1, day)
	require.ErrorContains(t, err, "_published.json is damaged: delete the folder")

	linked := filepath.Join(dir, "linked")
	require.NoError(t, os.Mkdir(filepath.Join(f.store, "inside"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(f.store, "inside"), linked))
	for _, inside := range []string{f.store, filepath.Join(f.store, "x"), dir, linked} {
		f.Path = inside
		_, err = f.Update(t.Context(), assets, 1, day)
		require.ErrorContains(t, err, "it overlaps with the state folder")
	}
	catalog := publisher.Catalog{File: filepath.Join(f.store, "x.duckdb"), Name: "./x.duckdb", Store: f.store}
	_, err = catalog.Update(t.Context(), assets, 1, day)
	require.ErrorContains(t, err, "publish to ./x.duckdb: it overlaps with the state folder")
}

func TestUpdateKeepsOutputsThatCannotBeReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	for _, copies := range []bool{false, true} {
		name := fmt.Sprintf("a/copy_%t", copies)
		o, err := f.output(name, "", 1, "data.parquet")
		require.NoError(t, err)
		other, err := f.output("a/other", "", 2, "data.parquet")
		require.NoError(t, err)
		a := asset(name, nil, o)
		a.Copy = copies
		_, err = f.Update(t.Context(), []publisher.Asset{a}, 1, day)
		require.NoError(t, err)
		before, err := f.shown()
		require.NoError(t, err)

		a.Outputs[0], err = f.output(name, "", 3, "data.parquet")
		require.NoError(t, err)
		stored := filepath.Join(f.store, filepath.FromSlash(a.Outputs[0].URI))
		if copies {
			require.NoError(t, os.WriteFile(filepath.Join(stored, "data.parquet"), []byte("damaged"), 0o600))
		} else {
			require.NoError(t, os.RemoveAll(stored))
		}
		_, err = f.Update(t.Context(), []publisher.Asset{a, asset("a/other", nil, other)}, 2, day)
		require.ErrorContains(t, err, "publish to ./published: asset "+name+", partition -: ")
		require.ErrorContains(t, err, "run the asset again")
		after, err := f.shown()
		require.NoError(t, err)
		require.Equal(t, before[name+"/data.parquet"], after[name+"/data.parquet"])
		require.Contains(t, after, "a/other/data.parquet", "other assets are published")
		named := map[string]bool{}
		require.NoError(t, publisher.Named(filepath.Join(f.Path, publisher.RecordName), named))
		require.True(t, named[o.MaterializationID], "the collector keeps what the folder shows")
	}
}

// TestUpdateLeavesForeignPaths puts files that Servo did not write at the path of an output. Repeated updates must
// never touch these files, although the record names the output.
func TestUpdateLeavesForeignPaths(t *testing.T) {
	t.Parallel()
	for _, copies := range []bool{false, true} {
		for _, published := range []bool{false, true} {
			f := newFixture(t.TempDir())
			other, err := f.output("a/other", "", 1, "data.parquet")
			require.NoError(t, err)
			assets := []publisher.Asset{asset("a/other", nil, other)}
			update := func() error {
				_, err := f.Update(t.Context(), assets, 1, day)
				return err
			}
			a := asset("a/b", nil, publisher.Output{})
			a.Outputs[0], err = f.output("a/b", "", 2, "data.parquet")
			require.NoError(t, err)
			if published {
				assets = append(assets, a)
			}
			require.NoError(t, update())
			mine := filepath.Join(f.Path, "a", "b", "mine")
			require.NoError(t, os.RemoveAll(filepath.Dir(mine)))
			require.NoError(t, os.Mkdir(filepath.Dir(mine), 0o755))
			require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))

			a.Copy = copies
			assets = []publisher.Asset{asset("a/other", nil, other), a}
			for range 3 {
				require.EqualError(t, update(), "publish to ./published: asset a/b, partition -: servo did not create published/a/b: remove it, or publish the asset under another name")
				require.FileExists(t, mine)
			}
			assets = assets[:1]
			require.NoError(t, update())
			require.FileExists(t, mine, "an output that is not published any more")
		}
	}
}

func TestUpdateRepairsEditedCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	out, err := f.output("a/b", ids.Partition{"d": "1"}.Key(), 1, "data.parquet", "x/more.parquet")
	require.NoError(t, err)
	a := asset("a/b", []string{"d"}, out)
	a.Copy = true
	update := func() bool {
		changed, err := f.Update(t.Context(), []publisher.Asset{a}, 1, day)
		require.NoError(t, err)
		return changed
	}
	require.True(t, update())
	require.False(t, update(), "nobody has changed the copy")
	want, err := f.shown()
	require.NoError(t, err)
	file := filepath.Join(f.Path, "a/b/d=1/x/more.parquet")
	info, err := os.Stat(file)
	require.NoError(t, err)
	for name, change := range map[string]func() error{
		"edited":    func() error { return os.WriteFile(file, []byte("edited"), 0o600) },
		"same size": func() error { return os.WriteFile(file, make([]byte, info.Size()), 0o600) },
		"deleted":   func() error { return os.Remove(file) },
		"a link":    func() error { return errors.Join(os.Remove(file), os.Symlink("/dev/null", file)) },
	} {
		require.NoError(t, change())
		require.True(t, update(), name)
		found, err := f.shown()
		require.NoError(t, err)
		require.Equal(t, want, found, name)
		require.False(t, update(), name)
	}
	mine := filepath.Join(f.Path, "a/b/d=1/mine")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.False(t, update(), "a further file does not change the copy")
	require.FileExists(t, mine)
}

// TestUpdateReplacesPartialCopies stops an update after the first of two copies. The next update links both outputs.
func TestUpdateReplacesPartialCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	first, err := f.output("a/b", ids.Partition{"d": "1"}.Key(), 1, "data.parquet")
	require.NoError(t, err)
	second, err := f.output("a/b", ids.Partition{"d": "2"}.Key(), 2, "data.parquet")
	require.NoError(t, err)
	stored := filepath.Join(f.store, filepath.FromSlash(second.URI), "data.parquet")
	require.NoError(t, os.Rename(stored, stored+".away"))
	a := asset("a/b", []string{"d"}, first, second)
	a.Copy = true
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 1, day)
	require.ErrorContains(t, err, "copy data.parquet: ")
	require.NoError(t, os.Rename(stored+".away", stored))
	a.Copy = false
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 2, day)
	require.NoError(t, err)
	info, err := os.Lstat(filepath.Join(f.Path, "a/b/d=1"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&fs.ModeSymlink)
}

// TestUpdateCopiesOverOtherShapes replaces copies of outputs. The new output has a folder where the earlier output has
// a file, or the other way round.
func TestUpdateCopiesOverOtherShapes(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	for i, names := range [][]string{{"x", "y/z"}, {"x/y", "y"}, {"x", "y/z/a"}} {
		out, err := f.output("a/b", "", i, names...)
		require.NoError(t, err)
		a := asset("a/b", nil, out)
		a.Copy = true
		_, err = f.Update(t.Context(), []publisher.Asset{a}, 1, day)
		require.NoError(t, err)
		found, err := f.shown()
		require.NoError(t, err)
		require.Equal(t, []string{"a/b/" + names[0], "a/b/" + names[1]}, slices.Sorted(maps.Keys(found)))
	}
}

func TestUpdateFailureHoldsUpNoOtherOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	long := ids.Partition{"tenant": "株式会社日本インターナショナルトレーディングホールディングス"}.Key() // its folder's name exceeds 255 bytes
	unnamed, err := f.output("raw/a", long, 1, "data.parquet")
	require.NoError(t, err)
	unread, err := f.output("raw/b", "", 2, "data.parquet")
	require.NoError(t, err)
	assets := []publisher.Asset{asset("raw/a", []string{"tenant"}, unnamed), asset("raw/b", nil, unread)}
	for range 2 { // the second update changes nothing and also returns the error
		_, err = f.Update(t.Context(), assets, 1, day)
		require.ErrorContains(t, err, "asset raw/a, partition "+long+": the name of its folder is longer than 255 bytes")
	}
	assets[1].Outputs, assets[1].Unread = nil, errors.New("read the partitions of raw/b: no such file")
	good, err := f.output("mart/c", "", 3, "data.parquet")
	require.NoError(t, err)
	changed, err := f.Update(t.Context(), append(assets, asset("mart/c", nil, good)), 2, day)
	require.ErrorContains(t, err, "raw/a")
	require.ErrorContains(t, err, "read the partitions of raw/b")
	require.True(t, changed)
	shown, err := f.shown()
	require.NoError(t, err)
	require.Equal(t, []string{"mart/c/data.parquet", "raw/b/data.parquet"}, slices.Sorted(maps.Keys(shown)))
	named := map[string]bool{}
	require.NoError(t, publisher.Named(filepath.Join(f.Path, publisher.RecordName), named))
	require.True(t, named[unread.MaterializationID], "readers may still find it")
}

func TestUpdateErrorCountsOutputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	a := asset("a/b", []string{"d"})
	for i := range 3 {
		out, err := f.output("a/b", ids.Partition{"d": fmt.Sprint(i)}.Key(), i, "data.parquet")
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(filepath.Join(f.store, filepath.FromSlash(out.URI))))
		a.Outputs = append(a.Outputs, out)
	}
	_, err := f.Update(t.Context(), []publisher.Asset{a}, 1, day)
	require.ErrorContains(t, err, `asset a/b, partition {"d":"0"}: its output `)
	require.ErrorContains(t, err, "is missing: run the asset again; 2 more outputs failed")
	require.NotContains(t, err.Error(), "\n")
}

// TestUpdateNamesWhatAnInterruptedOneHasReplaced stops an update after it has replaced a link. The next update finds
// that the files of the asset's newest output are missing. So it keeps the link, and the record must name the output
// to which the link points.
func TestUpdateNamesWhatAnInterruptedOneHasReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t.TempDir())
	a := asset("a/b", nil)
	outputs := make([]publisher.Output, 3)
	for i := range outputs {
		var err error
		outputs[i], err = f.output("a/b", "", i+1, "data.parquet")
		require.NoError(t, err)
	}
	a.Outputs = outputs[:1]
	_, err := f.Update(t.Context(), []publisher.Asset{a}, 1, day)
	require.NoError(t, err)
	a.Outputs = outputs[1:2]
	f.StopAfter(4) // the four changes: write the record, rename it, create the new link, rename it
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 2, day)
	require.ErrorIs(t, err, publisher.ErrStopped)
	target, err := os.Readlink(filepath.Join(f.Path, "a/b"))
	require.NoError(t, err)
	require.Contains(t, target, outputs[1].MaterializationID)

	f.StopAfter(1_000)
	a.Outputs = outputs[2:]
	require.NoError(t, os.RemoveAll(filepath.Join(f.store, filepath.FromSlash(outputs[2].URI))))
	_, err = f.Update(t.Context(), []publisher.Asset{a}, 3, day)
	require.ErrorContains(t, err, "is missing: run the asset again")
	named := map[string]bool{}
	require.NoError(t, publisher.Named(filepath.Join(f.Path, publisher.RecordName), named))
	require.True(t, named[outputs[1].MaterializationID], "readers find it")
}

// TestUpdateSurvivesStops publishes random outputs, stops at random changes, and checks after each
// update what readers and the collector find.
func TestUpdateSurvivesStops(t *testing.T) {
	t.Parallel()
	memory := "/dev/shm" // thousands of small files take seconds on some disks
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(memory, "publisher-") //nolint:usetesting // in memory
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		f := newFixture(dir)
		require.NoError(t, os.Mkdir(f.store, 0o700))
		version := 0
		// modes contains, for each asset, the values of Copy since the last complete update.
		modes := map[string]map[bool]bool{}
		var before map[string]string
		rounds := rapid.IntRange(1, 4).Draw(t, "rounds")
		for round := range rounds {
			assets, want := drawAssets(t, f, &version)
			for _, a := range assets {
				if modes[a.Name] == nil {
					modes[a.Name] = map[bool]bool{}
				}
				modes[a.Name][a.Copy] = true
			}
			stop := rapid.IntRange(0, 25).Draw(t, "stop")
			if round == rounds-1 {
				stop = 1_000_000
			}
			f.StopAfter(stop)
			_, err := f.Update(t.Context(), assets, int64(round), day)
			if err != nil {
				require.ErrorIs(t, err, publisher.ErrStopped)
			}
			got, shownErr := f.shown()
			require.NoError(t, shownErr)
			for name, content := range got {
				require.Containsf(t, []string{before[name], want[name]}, content, "%s is half written", name)
			}
			for name := range before {
				_, stays := want[name]
				_, found := got[name]
				// A partition may be missing if an update stopped while it replaced a link with a copy, or a copy with a link.
				require.Truef(t, found || !stays || len(modes[name[:len("a/x")]]) > 1, "%s is missing", name)
			}
			checkNamed(t, f)
			if err == nil {
				require.Equal(t, want, got)
				modes = map[string]map[bool]bool{}
				for _, a := range assets {
					modes[a.Name] = map[bool]bool{a.Copy: true}
				}
			}
			before = got
		}
	})
}

// checkNamed checks that the record names every materialization to which a link points.
func checkNamed(t *rapid.T, f *fixture) {
	named := map[string]bool{}
	require.NoError(t, publisher.Named(filepath.Join(f.Path, publisher.RecordName), named))
	err := filepath.WalkDir(f.Path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 || strings.HasPrefix(d.Name(), ".servo-") {
			return err
		}
		target, err := os.Readlink(name)
		if id := path.Base(path.Dir(target)); err == nil && !named[id] {
			return fmt.Errorf("%s shows %s, which the record does not name", name, id)
		}
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
}

// drawAssets draws assets and stores new outputs for them. want contains the content of each file that readers should
// find, by its path.
func drawAssets(t *rapid.T, f *fixture, version *int) (assets []publisher.Asset, want map[string]string) {
	want = map[string]string{}
	for _, name := range []string{"a/x", "a/y"} {
		if rapid.IntRange(0, 4).Draw(t, "absent") == 0 {
			continue
		}
		dims := rapid.SampledFrom([][]string{nil, {"d"}, {"d"}, {"d", "e"}}).Draw(t, "dimensions")
		a := asset(name, dims)
		a.Copy = rapid.IntRange(0, 3).Draw(t, "copy") == 0
		for i := range 2 {
			key := ids.Partition{}
			folder := ""
			for _, d := range dims {
				key[d] = fmt.Sprint(i)
				folder += fmt.Sprintf("%s=%d/", d, i)
			}
			if len(dims) == 0 && i > 0 || rapid.IntRange(0, 4).Draw(t, "missing") == 0 {
				continue
			}
			text := ""
			if len(dims) > 0 {
				text = key.Key()
			}
			*version++
			out, err := f.output(name, text, *version, "data.parquet")
			require.NoError(t, err)
			a.Outputs = append(a.Outputs, out)
			want[name+"/"+folder+"data.parquet"] = strings.Repeat(fmt.Sprintf("%s %s %d\n", name, text, *version), 50)
		}
		assets = append(assets, a)
	}
	return assets, want
}
