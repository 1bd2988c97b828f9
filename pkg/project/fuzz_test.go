package project_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/servo-orchestration/servo/pkg/project"
)

// lines counts line breaks as YAML does.
func lines(text []byte) int {
	n := 1
	for _, r := range string(text) {
		switch r {
		case '\n', '\r', '\u0085', '\u2028', '\u2029':
			n++
		}
	}
	return n
}

// FuzzLoad loads arbitrary files. Load must not panic or hang, and every problem must be at a position that exists in
// its file. The schema must accept every file without problems.
func FuzzLoad(f *testing.F) {
	names, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range append(names, "testdata/good.txtar") {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		byName := map[string][]byte{}
		for _, file := range a.Files {
			kind := filepath.Ext(file.Name)
			if file.Name == project.ConfigFile {
				kind = file.Name
			}
			byName[kind] = file.Data
			f.Add(byName[project.ConfigFile], byName[".sql"], byName[".yaml"])
		}
	}
	f.Add([]byte(""), []byte("SELECT 1"), []byte("\r\u0085text"))
	f.Add([]byte(`schedules:
  nightly: {cron: "30 2 L,15W * MON#2", timezone: Europe/Paris, run: {assets: [a/query, "*"], partitions: {date: [latest, 1]}},
    dst: {gap: skip, overlap: both}, catch_up: {policy: all, window: 1d}, overlap: buffer_all, jitter: 5m, start: 2025-01-01}
  often: {every: 15m, run: {assets: [a/list], upstream: stale}, end: 2035-01-01T06:00Z, labels: {a: b}, paused: true}
`), []byte("SELECT 1"), []byte("run: {command: [x]}"))
	s := compile(f)
	f.Fuzz(func(t *testing.T, config, query, list []byte) {
		files := map[string][]byte{"servo.yaml": config, "assets/a/query.sql": query, "assets/a/list.yaml": list}
		fsys := fstest.MapFS{}
		for name, data := range files {
			fsys[name] = &fstest.MapFile{Data: data}
		}
		loaded, err := project.LoadFS(t.Context(), fsys, "/p", options)
		var found project.Problems
		errors.As(err, &found)
		for name, data := range files {
			if wrong := s.validate(name, bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))); len(found.Of(name)) == 0 && wrong != nil {
				t.Fatalf("Load accepts %s, but the schema does not: %v", name, wrong)
			}
		}
		if err == nil {
			if len(loaded.Assets) == 0 {
				t.Fatal("a SQL file yields neither an asset nor a problem")
			}
			return
		}
		var problems project.Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("not about the files: %v", err)
		}
		for _, p := range problems {
			if p.Message == "" || p.Line < 1 || p.Line > lines(files[p.File])+1 || p.Column < 1 {
				t.Fatalf("no such place: %s", p)
			}
		}
	})
}
