package project

// A problem in one file concerns the assets of that file. The others are sound and can be run.

// ofProject reports whether a problem concerns every asset: one of the settings, or of the
// folder of assets.
func (ps Problems) ofProject() bool {
	files := ps.files()
	return files[ConfigFile] || files[AssetsDir]
}

// files are the files that have problems.
func (ps Problems) files() map[string]bool {
	files := make(map[string]bool, len(ps))
	for _, p := range ps {
		files[p.File] = true
	}
	return files
}

// Of are the problems of a file.
func (ps Problems) Of(file string) Problems {
	var of Problems
	for _, p := range ps {
		if p.File == file {
			of = append(of, p)
		}
	}
	return of
}

// breakAssets marks the assets of files with problems, and of more files. They keep no dependencies, so that
// there is no cycle among the assets that are left.
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
