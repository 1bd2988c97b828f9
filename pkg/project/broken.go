package project

import (
	"slices"
	"strings"
)

// A problem in a file affects only the assets of that file and their readers. All other assets
// can run.

// ofProject reports whether a problem affects every asset. Such a problem is in the settings, in a schedule, or with
// the folder of assets. A broken schedule affects every asset, because a release without the schedule would remove it
// from the domain.
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

// breakAssets marks the assets in files with problems, and those in the files in more, as broken. It removes the
// dependencies of broken assets, so that the remaining graph has no cycle.
func (p *Project) breakAssets(problems Problems, more []string) {
	files := problems.files()
	for _, file := range more {
		files[file] = true
	}
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
