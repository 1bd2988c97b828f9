package project_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
)

// brokenProject returns a project with one asset without problems, and one asset for each kind of problem.
func brokenProject() fstest.MapFS {
	return fstest.MapFS{
		"servo.yaml":              {Data: []byte("name: demo\n")},
		"assets/a/sound.sql":      {Data: []byte("SELECT 1 AS x")},
		"assets/a/below.sql":      {Data: []byte("SELECT * FROM b.query")},
		"assets/b/query.sql":      {Data: []byte("hello")},
		"assets/b/header.sql":     {Data: []byte("/* servo\nretires: 3\n*/\nSELECT 1 AS x")},
		"assets/b/reader.sql":     {Data: []byte("SELECT * FROM b.header")},
		"assets/c/one.sql":        {Data: []byte("SELECT * FROM c.two")},
		"assets/c/two.sql":        {Data: []byte("SELECT * FROM c.one")},
		"assets/d/twice.sql":      {Data: []byte("SELECT 1 AS x")},
		"assets/more/d/twice.sql": {Data: []byte("SELECT 1 AS x")},
	}
}

func TestLoadIsolatesBrokenFiles(t *testing.T) {
	p, err := project.LoadFS(t.Context(), brokenProject(), "/p", options)
	var problems project.Problems
	require.ErrorAs(t, err, &problems)
	require.NotNil(t, p)
	broken := map[string]string{}
	for _, a := range p.Assets {
		broken[a.Key.String()] = a.Broken
	}
	require.Equal(t, map[string]string{
		"a/sound": "", "a/below": "",
		"b/query": "assets/b/query.sql has problems", "b/header": "assets/b/header.sql has problems",
		"b/reader": "it reads b/header, but assets/b/header.sql has problems",
		"c/one":    "assets/c/one.sql has problems", "c/two": "assets/c/two.sql has problems",
		"d/twice": "assets/d/twice.sql has problems",
	}, broken)

	made := func(key ids.AssetKey) []plan.Input {
		return []plan.Input{{MaterializationID: "M-" + key.String(), URI: "assets/" + key.String() + "/"}}
	}
	built, err := plan.Build(plan.Request{Assets: p.Assets, All: true, Materialized: made})
	require.NoError(t, err)
	require.Len(t, built.Tasks, 1, "a/sound")
	require.Contains(t, built.Warnings, "left out a/below: it reads b/query, whose file has problems")
	require.Equal(t, []string{"b/header", "b/query", "b/reader", "c/one", "c/two", "d/twice"}, built.LeftOut)
	_, err = plan.Build(plan.Request{Assets: p.Assets, Select: []ids.AssetKey{{Namespace: "c", Name: "one"}}})
	require.EqualError(t, err, "asset c/one cannot be materialized: assets/c/one.sql has problems: run `servo validate`")
}

func TestLoadReturnsNoProjectIfSettingsAreBroken(t *testing.T) {
	files := brokenProject()
	files["servo.yaml"] = &fstest.MapFile{Data: []byte("retires: 3\n")}
	p, err := project.LoadFS(t.Context(), files, "/p", options)
	require.Error(t, err)
	require.Nil(t, p)
}

// If asset files have problems, the release contains the deployed definitions of their assets: see [release.Compile].
func TestBrokenFilesStayInTheRelease(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml": {Data: []byte("name: demo\nchannels:\n  file: {file: {path: alerts.jsonl}}\n" +
			"alerts:\n- {name: gold, on: [task_failed], select: 'tag:gold', to: [file]}\n")},
		"assets/raw/a.sql": {Data: []byte("/* servo\ntags: [gold]\ndeadline: {by: \"07:00\"}\n*/\nSELECT 1 AS x")},
		"assets/raw/load.yaml": {Data: []byte("assets:\n- asset: raw/one\n  run: {command: [sh, -c, 'exit 0']}\n" +
			"- asset: raw/two\n  run: {command: [sh, -c, 'exit 0']}\n")},
		"assets/mart/b.sql": {Data: []byte("/* servo\ndeadline: {by: \"09:00\"}\n*/\nSELECT * FROM raw.a")},
		"assets/mart/c.sql": {Data: []byte("SELECT 3 AS z")},
	}
	compile := func(previous *release.Compiled) *release.Compiled {
		p, err := project.LoadFS(t.Context(), files, "/p", options)
		if previous == nil {
			require.NoError(t, err)
		} else {
			require.ErrorAs(t, err, new(project.Problems))
		}
		c, err := release.Compile(release.Input{
			Settings: release.Settings{Project: "demo", Alerts: p.Alerts, Watched: p.Watched}, Assets: p.Assets, Problems: p.Problems, Parser: "1",
		}, previous, nil)
		require.NoError(t, err)
		return c
	}
	before := compile(nil)
	require.Len(t, before.Alerts[0].Assets, 1)
	require.Len(t, before.Watched, 2)

	files["assets/raw/a.sql"] = &fstest.MapFile{Data: []byte("/* servo\ntags: gold: x\n*/\nSELECT 1 AS x")}
	files["assets/raw/load.yaml"] = &fstest.MapFile{Data: []byte("assets:\n- asset: raw/one\n  run: {command: [sh, -c, 'exit 0']}\n-asset: raw/two\n")}
	after := compile(before)
	require.Equal(t, before.Assets, after.Assets)
	require.Equal(t, before.Watched, after.Watched)
	require.Equal(t, before.Alerts, after.Alerts)
}
