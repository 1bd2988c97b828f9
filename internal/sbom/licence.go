package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// standardLibrary is the module path under which this command lists Go's standard library.
const standardLibrary = "std"

// module is a module that a program contains.
type module struct {
	path, version string
	sum           string // the checksum, as in go.sum; may be empty
}

// component is a module with its licences.
type component struct {
	module
	licences []string // SPDX identifiers, sorted
	texts    []text
}

// text is a file with a licence or a notice.
type text struct {
	file    string // path in the module
	content string
}

// licences finds the licences of modules. It reads each module only once.
type licences struct{ known map[module]component }

func newLicences() *licences { return &licences{known: map[module]component{}} }

// components returns a component for each module, in the same order.
func (l *licences) components(modules []module) ([]component, error) {
	var missing []module
	for _, m := range modules {
		if _, ok := l.known[m]; !ok {
			missing = append(missing, m)
		}
	}
	folders, err := foldersOf(missing)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, m := range missing {
		c, err := readComponent(m, folders[m])
		if err != nil {
			problems = append(problems, fmt.Errorf("module %s %s: %w", m.path, m.version, err))
		}
		l.known[m] = c
	}
	components := make([]component, len(modules))
	for i, m := range modules {
		components[i] = l.known[m]
	}
	return components, errors.Join(problems...)
}

// foldersOf returns the folders of modules in the module cache.
func foldersOf(modules []module) (map[module]string, error) {
	folders := map[module]string{}
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		if m.path == standardLibrary {
			root, err := exec.Command("go", "env", "GOROOT").Output() //nolint:noctx // the command ends immediately
			if err != nil {
				return nil, fmt.Errorf("go env GOROOT: %w", err)
			}
			folders[m] = strings.TrimSpace(string(root))
			continue
		}
		args = append(args, m.path+"@"+m.version)
	}
	if len(args) == 3 { //nolint:mnd // no module
		return folders, nil
	}
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // the arguments come from a program that go has built
	cmd.Stderr = os.Stderr
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(listed)); ; {
		var m struct{ Path, Version, Dir string }
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return folders, nil
		} else if err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		for _, wanted := range modules {
			if wanted.path == m.Path && wanted.version == m.Version {
				folders[wanted] = m.Dir
			}
		}
	}
}

// licenceFile matches the names of files with licences and notices.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|third[-_]?party[-_]?(notices?|licen[cs]es?))([-._].*)?$`)

// sourceFile matches the names of source files. Such a name may begin like that of a licence: license.go.
var sourceFile = regexp.MustCompile(`\.(go|s|c|h|py|js|ts|json|ya?ml)$`)

// readComponent reads the licences of a module from its folder. The module's own licences are in files of the folder
// itself. Subfolders may have the licences of other code that the module contains.
func readComponent(m module, folder string) (component, error) {
	c := component{module: m}
	if folder == "" {
		return c, errors.New("it is not in the module cache")
	}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || m.path == standardLibrary && path != folder):
			return fs.SkipDir
		case entry.IsDir() || !licenceFile.MatchString(entry.Name()) || sourceFile.MatchString(entry.Name()):
			return nil
		}
		content, err := os.ReadFile(path) //nolint:gosec // a file in the module cache
		if err != nil {
			return err
		}
		file, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		c.texts = append(c.texts, text{filepath.ToSlash(file), strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))})
		if filepath.Dir(path) == folder {
			c.licences = append(c.licences, identify(string(content))...)
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	slices.Sort(c.licences)
	c.licences = slices.Compact(c.licences)
	switch {
	case len(c.texts) == 0:
		return c, errors.New("it has no file with a licence")
	case len(c.licences) == 0:
		return c, fmt.Errorf("its licence is unknown: read %s, then add words of this licence to internal/sbom/licence.go", filepath.Join(folder, c.texts[0].file))
	}
	return c, nil
}

// phrases are texts that occur in only one licence. They are in lower case, with single spaces.
var phrases = []struct{ licence, words string }{
	{"Apache-2.0", "apache license version 2.0, january 2004"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"MPL-2.0", "mozilla public license, version 2.0"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted, provided that"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided that"},
	{"0BSD", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted. the software"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
	{"BSL-1.0", "boost software license - version 1.0"},
	{"Zlib", "altered source versions must be plainly marked as such"},
	{"CC0-1.0", "cc0 1.0 universal"},
}

// identify returns the SPDX identifiers of the licences in a text.
func identify(content string) []string {
	words := strings.Join(strings.Fields(strings.ToLower(content)), " ")
	var found []string
	for _, p := range phrases {
		if strings.Contains(words, p.words) {
			found = append(found, p.licence)
		}
	}
	if strings.Contains(words, "redistribution and use in source and binary forms, with or without modification, are permitted") {
		if strings.Contains(words, "neither the name") || strings.Contains(words, "names of its contributors") {
			return append(found, "BSD-3-Clause")
		}
		return append(found, "BSD-2-Clause")
	}
	return found
}
