package project

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/selector"
)

// A problem in a file affects only the assets of that file and their readers. All other assets
// can run.

// ofProject reports whether a problem affects every asset: a problem in servo.yaml or in a schedule, or a problem with
// the folder of assets itself. A broken schedule affects every asset, because a release without the schedule would
// remove it from the domain.
func (ps Problems) ofProject() bool {
	return slices.ContainsFunc(ps, func(p Problem) bool {
		return p.File == ConfigFile || p.File == AssetsDir || p.File == SchedulesDir || strings.HasPrefix(p.File, SchedulesDir+"/")
	})
}

// files returns the files with problems.
func (ps Problems) files() map[string]bool {
	files := make(map[string]bool, len(ps))
	for _, p := range ps {
		files[p.File] = true
	}
	return files
}

// Of returns the problems of a file.
func (ps Problems) Of(file string) Problems {
	var of Problems
	for _, p := range ps {
		if p.File == file {
			of = append(of, p)
		}
	}
	return of
}

// inAssets reports whether a file declares assets.
func inAssets(file string) bool { return file == AssetsDir || strings.HasPrefix(file, AssetsDir+"/") }

// assetsKnown reports whether all declarations of assets could be read. Otherwise assets, tags or partitions may be
// missing.
func (l *loader) assetsKnown() bool {
	for file := range l.unreadable {
		if inAssets(file) {
			return false
		}
	}
	return true
}

// certain reports whether a problem with a selection must be a mistake in the selection itself. If it returns false,
// problems in asset files may hide the selected assets.
func (l *loader) certain(selection string) bool {
	if l.assetsKnown() {
		return true
	}
	if _, err := selector.Parse(selection); err != nil {
		return true
	}
	_, err := ids.ParseAssetKey(selection)
	return err == nil && !l.nameless
}

// breakReaders marks as broken all assets whose queries read files or use extensions, if servo.yaml has problems: the
// settings in servo.yaml determine which files and extensions queries may use.
func (l *loader) breakReaders() {
	for i := range l.assets {
		if a := &l.assets[i]; l.unreadable[ConfigFile] && len(a.files)+len(a.uses) > 0 {
			l.project.Assets[i].Broken = ConfigFile + " has problems"
		}
	}
}

// breakAssets adds the files in more to files, and marks the assets of all these files as broken. It removes the
// dependencies of broken assets, so that the remaining graph has no cycle.
func (p *Project) breakAssets(files map[string]bool, more []string) {
	for _, file := range more {
		files[file] = true
	}
	p.Problems = files
	for i := range p.Assets {
		a := &p.Assets[i]
		if files[a.File] {
			a.Broken = a.File + " has problems"
		}
		if a.Broken != "" {
			a.Deps = nil
		}
	}
}
