package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIdentifyKnowsCommonLicences(t *testing.T) {
	const bsd = "Redistribution and use in source and binary forms, with or without\n modification, are permitted provided that"
	for content, want := range map[string][]string{
		"                 Apache License\n           Version 2.0, January 2004\n":                                                           {"Apache-2.0"},
		"Permission is hereby granted, free of charge, to any person obtaining a copy\nof this software and associated documentation files": {"MIT"},
		bsd + " … Neither the name of Google": {"BSD-3-Clause"},
		bsd:                                   {"BSD-2-Clause"},
		"Mozilla Public License Version 2.0":  {"MPL-2.0"},
		bsd + " … Licensed under the Apache License, Version 2.0 (the …": {"Apache-2.0", "BSD-2-Clause"},
		"All rights reserved.": nil,
	} {
		require.Equal(t, want, identify(content), content)
	}
}

// Each module of each program must have a known licence, and must be listed in the program's bill of materials and
// notices.
func TestEveryModuleHasNotices(t *testing.T) {
	found := newLicences()
	programs, err := filepath.Glob("../../cmd/servo*")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(programs), 5)
	for _, program := range programs {
		modules := listed(t, program)
		require.NotEmpty(t, modules)
		components, err := found.components(modules)
		require.NoError(t, err)
		require.Len(t, components, len(modules))
		encoded, err := encodeBill(filepath.Base(program), "v1", "00", components)
		require.NoError(t, err)
		var b bill
		require.NoError(t, json.Unmarshal(encoded, &b))
		require.Len(t, b.Components, len(modules))
		text := string(notices(components))
		refs := map[string]bool{}
		for i, m := range modules {
			require.Equal(t, m.path, b.Components[i].Name)
			require.False(t, refs[b.Components[i].Ref], "%s is in the bill of %s twice", m.path, program)
			refs[b.Components[i].Ref] = true
			require.NotEmpty(t, b.Components[i].Licences[0].Expression)
			require.Contains(t, text, m.path+" "+m.version+": "+b.Components[i].Licences[0].Expression+"\n")
			require.Contains(t, text, "\n"+m.path+"/", "%s has no text", m.path)
		}
		require.Len(t, b.Dependencies[0].On, len(modules))
	}
}

// listed returns the modules whose packages a program imports.
func listed(t *testing.T, program string) []module {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", ".")
	cmd.Dir, cmd.Stderr = program, t.Output()
	out, err := cmd.Output()
	require.NoError(t, err)
	lines := slices.Compact(slices.Sorted(strings.Lines(string(out))))
	var modules []module
	for _, line := range lines {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			modules = append(modules, module{path: path, version: version})
		}
	}
	return modules
}

func TestRunDescribesAProgram(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	out := t.TempDir()
	require.NoError(t, run([]string{"-o", out, program}))
	folder := filepath.Join(out, filepath.Base(program))
	first, err := os.ReadFile(filepath.Join(folder, billFile))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(folder, noticesFile))
	require.NoError(t, err)
	require.Contains(t, string(text), "\nstd "+info.GoVersion+": BSD-3-Clause\n")
	require.Contains(t, string(first), `"purl": "pkg:golang/std@`+strings.TrimPrefix(info.GoVersion, "go"))
	require.NoError(t, run([]string{"-o", out, program}))
	again, err := os.ReadFile(filepath.Join(folder, billFile))
	require.NoError(t, err)
	require.Equal(t, first, again, "the same program, the same bill")
}

func TestLinkedFollowsReplacedModules(t *testing.T) {
	modules := linked(&debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:a"},
		{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1+incompatible", Sum: "h1:f"}},
	}})
	require.Equal(t, []module{
		{standardLibrary, "go1.26.8", ""}, {"example.com/a", "v1.0.0", "h1:a"}, {"example.com/fork", "v1.0.1+incompatible", "h1:f"},
	}, modules)
	require.Equal(t, "pkg:golang/example.com/fork@v1.0.1%2Bincompatible", packageURL(modules[2]))
}

func TestModuleWithoutLicenceIsAnError(t *testing.T) {
	m := module{path: "example.com/x", version: "v1.0.0"}
	folder := t.TempDir()
	_, err := readComponent(m, folder)
	require.ErrorContains(t, err, "no file with a licence")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "license.go"), []byte("package x"), 0o600))
	_, err = readComponent(m, folder)
	require.ErrorContains(t, err, "no file with a licence")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "LICENSE"), []byte("Ask us."), 0o600))
	_, err = readComponent(m, folder)
	require.ErrorContains(t, err, "unknown")
	require.Error(t, run([]string{"-o", folder}))
	require.Error(t, run([]string{"-o", folder, filepath.Join(folder, "LICENSE")}))
}
