package source

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

func project() fstest.MapFS {
	return fstest.MapFS{
		"servo.yaml":           {Data: []byte("name: x\n"), ModTime: time.Unix(9, 0)},
		"scripts/a.sh":         {Data: []byte("#!/bin/sh\n"), Mode: 0o755},
		"assets/a/x.sql":       {Data: []byte("SELECT 1")},
		"data/raw/big.csv":     {Data: bytes.Repeat([]byte("x"), 10_000)},
		"data/keep.csv":        {Data: []byte("y")},
		"notes/today.log":      {Data: []byte("z")},
		".env":                 {Data: []byte("TOKEN=1")},
		".servo/x":             {Data: []byte("state")},
		"state/x":              {Data: []byte("state")},
		IgnoreFile:             {Data: []byte("# data\n*.log\ndata/raw/\n\n")},
		"deep/er/and/more.sql": {Data: []byte("SELECT 2")},
	}
}

func names(t *testing.T, dir string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(dir, path)
			found = append(found, filepath.ToSlash(name))
		}
		return err
	}))
	return found
}

func newCache(t *testing.T) *Cache {
	t.Helper()
	dir := t.TempDir()
	at := time.Unix(1_000_000, 0)
	return NewCache(dir, func() time.Time { at = at.Add(time.Second); return at })
}

func TestArchiveDependsOnContentOnly(t *testing.T) {
	one, err := Build(project(), []string{"state"})
	require.NoError(t, err)
	other := project()
	other["servo.yaml"].ModTime, other[".env"].Data, other["data/raw/big.csv"].Data = time.Unix(7, 0), nil, nil
	two, err := Build(other, []string{"state"})
	require.NoError(t, err)
	require.Equal(t, one, two)
	hashed, err := Hash(project(), []string{"state"})
	require.NoError(t, err)
	require.Equal(t, one.SHA, hashed.SHA)
	other["scripts/a.sh"].Mode = 0o644
	three, err := Hash(other, []string{"state"})
	require.NoError(t, err)
	require.NotEqual(t, one.SHA, three.SHA)
}

func TestBuildRejectsLinksAndBadPatterns(t *testing.T) {
	files := project()
	files["link"] = &fstest.MapFile{Mode: fs.ModeSymlink}
	_, err := Build(files, nil)
	require.ErrorContains(t, err, "link is not a regular file (L---------): list it in .servoignore, or replace it with a file")
	files = project()
	files[IgnoreFile].Data = []byte("a\n!b\n")
	_, err = Build(files, nil)
	require.ErrorContains(t, err, `.servoignore:2:1: the pattern "!b" has one of ! [ ] \: write names with *, ? and **`)
}

func TestGetUnpacksOnceAndReadOnly(t *testing.T) {
	a, err := Build(project(), []string{"state"})
	require.NoError(t, err)
	c := newCache(t)
	fetched := 0
	var mu sync.Mutex
	fetch := func(context.Context) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		fetched++
		return a.Data, nil
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			dir, release, err := c.Get(t.Context(), a.SHA, fetch)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if _, err := os.Stat(filepath.Join(dir, "servo.yaml")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, fetched)
	require.Empty(t, c.open)
	// A cache of another process finds the unpacked folder.
	dir, release, err := NewCache(c.dir, c.now).Get(t.Context(), a.SHA, nil)
	require.NoError(t, err)
	defer release()
	require.Equal(t, []string{"assets/a/x.sql", "data/keep.csv", "deep/er/and/more.sql", "scripts/a.sh", "servo.yaml"}, names(t, dir))
	info, err := os.Stat(filepath.Join(dir, "scripts/a.sh"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o555), info.Mode().Perm())
}

// Programs run in the folder of an archive, and may replace its read-only files.
func TestGetReplacesChangedFiles(t *testing.T) {
	a, err := Build(project(), nil)
	require.NoError(t, err)
	fetched := 0
	fetch := func(context.Context) ([]byte, error) { //nolint:unparam // the type allows an error
		fetched++
		return a.Data, nil
	}
	c := newCache(t)
	dir, release, err := c.Get(t.Context(), a.SHA, fetch)
	require.NoError(t, err)
	defer release()
	again := func(want int) {
		t.Helper()
		c.Suspect(a.SHA)
		_, release, err := c.Get(t.Context(), a.SHA, fetch)
		require.NoError(t, err)
		release()
		require.Equal(t, want, fetched)
		data, err := os.ReadFile(filepath.Join(dir, "scripts/a.sh"))
		require.NoError(t, err)
		require.Equal(t, project()["scripts/a.sh"].Data, data)
	}
	again(1)
	name := filepath.Join(dir, "scripts/a.sh")
	before, err := os.Stat(name)
	require.NoError(t, err)
	replace := func(data []byte) {
		require.NoError(t, os.Remove(name))
		require.NoError(t, os.WriteFile(name, data, 0o555))
		require.NoError(t, os.Chtimes(name, before.ModTime(), before.ModTime()))
	}
	changed := slices.Clone(project()["scripts/a.sh"].Data)
	changed[0]++
	replace(changed)
	again(2)
	require.NoError(t, os.Remove(name))
	again(3)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scripts/new.py"), nil, 0o600))
	again(4)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "scripts", ignoredFolder), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scripts", ignoredFolder, "a.pyc"), nil, 0o600))
	again(4)
	// A new process checks files that an earlier process left.
	replace(changed)
	_, other, err := NewCache(c.dir, c.now).Get(t.Context(), a.SHA, fetch)
	require.NoError(t, err)
	defer other()
	again(5)
}

func TestGetRejectsDamagedArchives(t *testing.T) {
	a, err := Build(project(), nil)
	require.NoError(t, err)
	b, err := Build(fstest.MapFS{"x": {}}, nil)
	require.NoError(t, err)
	for name, data := range map[string][]byte{"another": b.Data, "torn": a.Data[:len(a.Data)/2], "empty": nil, "text": []byte("hello")} {
		c := newCache(t)
		_, _, err := c.Get(t.Context(), a.SHA, func(context.Context) ([]byte, error) { return data, nil })
		require.Error(t, err, name)
		entries, err := os.ReadDir(c.dir)
		require.NoError(t, err)
		for _, entry := range entries {
			require.True(t, strings.HasSuffix(entry.Name(), lockSuffix), "%s left %s", name, entry.Name())
		}
		// After an error, the next call tries again.
		_, release, err := c.Get(t.Context(), a.SHA, func(context.Context) ([]byte, error) { return a.Data, nil })
		require.NoError(t, err, name)
		release()
	}
	c := newCache(t)
	_, _, err = c.Get(t.Context(), a.SHA, func(context.Context) ([]byte, error) { return nil, errors.New("no network") })
	require.ErrorContains(t, err, "no network")
}

func TestCacheRemovesUnusedArchives(t *testing.T) {
	c := newCache(t)
	var archives []*Archive
	get := func(i int) func() {
		for len(archives) <= i {
			a, err := Build(fstest.MapFS{"a/x": {Data: []byte{byte(len(archives))}}}, nil)
			require.NoError(t, err)
			archives = append(archives, a)
		}
		_, release, err := c.Get(t.Context(), archives[i].SHA, func(context.Context) ([]byte, error) { return archives[i].Data, nil })
		require.NoError(t, err)
		return release
	}
	release := get(0) // archive 0 is in use until the test ends
	for i := 1; i < 8; i++ {
		get(i)()
	}
	for i, a := range archives {
		_, err := os.Stat(filepath.Join(c.dir, a.SHA))
		if i == 0 || i >= 4 { // when archive 7 was added, the newest unused archives stayed: 4, 5 and 6
			require.NoError(t, err, i)
		} else {
			require.ErrorIs(t, err, fs.ErrNotExist, i)
		}
	}
	release()
	entries, err := os.ReadDir(c.dir)
	require.NoError(t, err)
	require.Len(t, entries, 15, "each has a folder, its stamps and a lock")
}
