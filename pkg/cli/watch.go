package cli

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
)

// The files of the project are polled. Polling works on every file system, including network mounts and container
// volumes, where notifications of changes get lost.
const (
	watchEvery = time.Second
	// watchShare: polling a large project may take at most one fiftieth of the elapsed time.
	watchShare = 50
)

// watch polls servo.yaml, the files of assets and schedules, and the files that the function more returns. It calls the
// function changed after a change of one of these files. Before each poll, it calls the function check. If check
// returns an error, watch returns it.
func (a *app) watch(ctx context.Context, root string, check func() error, more func() []string, changed func(context.Context) error) error {
	last, named := fingerprint(root), more()
	lastNamed := stamps(root, named)
	for wait := watchEvery; ; {
		if err := a.Clock.Sleep(ctx, wait); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
		began := a.Clock.Now()
		now := fingerprint(root)
		wait = max(watchEvery, watchShare*a.Clock.Now().Sub(began))
		nowNamed := stamps(root, named)
		if now == last && nowNamed == lastNamed {
			continue
		}
		last, lastNamed = now, nowNamed
		if err := changed(ctx); err != nil {
			return err
		}
		if files := more(); !slices.Equal(files, named) {
			named, lastNamed = files, stamps(root, files)
		}
	}
}

// stamps hashes the names, sizes and times of files.
func stamps(root string, names []string) uint64 {
	sum := fnv.New64a()
	for _, name := range names {
		_, _ = sum.Write([]byte(name))
		if info, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err == nil {
			_, _ = sum.Write(binary.AppendVarint(binary.AppendVarint(nil, info.Size()), info.ModTime().UnixNano()))
		}
	}
	return sum.Sum64()
}

// fingerprint hashes the names, sizes and times of the project's files. It ignores unreadable files, because loading
// the project reports them.
func fingerprint(root string) uint64 {
	sum := fnv.New64a()
	add := func(name string, info fs.FileInfo) {
		_, _ = sum.Write([]byte(name))
		_, _ = sum.Write(binary.AppendVarint(binary.AppendVarint(nil, info.Size()), info.ModTime().UnixNano()))
	}
	if info, err := os.Stat(filepath.Join(root, project.ConfigFile)); err == nil {
		add(project.ConfigFile, info)
	}
	for _, dir := range []string{project.AssetsDir, project.SchedulesDir} {
		n := 0
		_ = filepath.WalkDir(filepath.Join(root, dir), func(name string, entry fs.DirEntry, err error) error {
			if n++; n > project.MaxFiles {
				return fs.SkipAll
			}
			if err != nil || entry.IsDir() {
				return nil //nolint:nilerr // unreadable files are ignored
			}
			if info, err := entry.Info(); err == nil {
				add(name, info)
			}
			return nil
		})
	}
	return sum.Sum64()
}

// difference describes which assets and schedules were added, removed and changed.
func difference(before, after *project.Project) string {
	was := map[string]*plan.Asset{}
	for i := range before.Assets {
		was[before.Assets[i].Key.String()] = &before.Assets[i]
	}
	var added, removed, changed []string
	for i := range after.Assets {
		key := after.Assets[i].Key.String()
		old, ok := was[key]
		delete(was, key)
		switch {
		case !ok:
			added = append(added, key)
		case !reflect.DeepEqual(old, &after.Assets[i]):
			changed = append(changed, key)
		}
	}
	for i := range before.Assets {
		if key := before.Assets[i].Key.String(); was[key] != nil {
			removed = append(removed, key)
		}
	}
	for _, s := range release.DiffSchedules(before.Schedules, after.Schedules) {
		list := &changed
		switch s.Kind {
		case release.Added:
			list = &added
		case release.Removed:
			list = &removed
		}
		*list = append(*list, "schedule "+s.Schedule)
	}
	var text strings.Builder
	for _, part := range []struct {
		word string
		keys []string
	}{{"added", added}, {"removed", removed}, {"changed", changed}} {
		if n := len(part.keys); n > 0 {
			const most = 5
			fmt.Fprintf(&text, "; %s: %s", part.word, strings.Join(part.keys[:min(n, most)], ", "))
			if n > most {
				fmt.Fprintf(&text, " and %d more", n-most)
			}
		}
	}
	return text.String()
}
