package project_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/release"
)

func TestPublishChoosesAssets(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files := fstest.MapFS{
		"servo.yaml":         file("{publish: {folder: ./published, duckdb: x.duckdb, select: 'tag:gold or b/*'}, environments: {bare: {}, other: {publish: {folder: ../there, mode: copy, select: b/two}}}}"),
		"assets/a/gold.sql":  file("/* servo\ntags: [gold]\n*/ SELECT 1 AS x"),
		"assets/a/off.sql":   file("/* servo\ntags: [gold]\npublish: false\n*/ SELECT 1 AS x"),
		"assets/a/on.sql":    file("/* servo\npublish: {name: sales/x, mode: link}\n*/ SELECT 1 AS x"),
		"assets/a/plain.sql": file("SELECT 1 AS x"),
		"assets/b/none.yaml": file("{run: {command: [x]}, output: none}"),
		"assets/b/two.sql":   file("SELECT 1 AS x"),
	}
	published := func(environment string) (*release.Places, map[string]*plan.Publish) {
		o := options
		o.Environment = environment
		p, err := project.LoadFS(t.Context(), files, "/p/demo", o)
		require.NoError(t, err)
		found := map[string]*plan.Publish{}
		for i := range p.Assets {
			if p.Assets[i].Publish != nil {
				found[p.Assets[i].Key.String()] = p.Assets[i].Publish
			}
		}
		return p.Publish, found
	}
	for _, environment := range []string{"", "bare"} {
		places, assets := published(environment)
		require.Equal(t, &release.Places{Folder: "./published", DuckDB: "x.duckdb"}, places)
		require.Equal(t, map[string]*plan.Publish{"a/gold": {Name: "a/gold"}, "a/on": {Name: "sales/x"}, "b/two": {Name: "b/two"}}, assets)
	}
	places, assets := published("other")
	require.Equal(t, &release.Places{Folder: "../there", DuckDB: "x.duckdb"}, places)
	require.Equal(t, map[string]*plan.Publish{"a/on": {Name: "sales/x"}, "b/two": {Name: "b/two", Copy: true}}, assets)

	delete(files, "servo.yaml")
	files["servo.yaml"] = file("{environments: {prod: {publish: {folder: there}}}}")
	places, assets = published("")
	require.Nil(t, places, "only an environment publishes")
	require.Empty(t, assets)
}
