package plan_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
)

func TestPrefixesEndWithASlash(t *testing.T) {
	for prefix, valid := range map[string]bool{
		"s3://landing/": true, "s3://landing/events/": true, "https://data.example.com/": true, "http://127.0.0.1:8080/a/b=1/": true, "gs://b/": true,
		"s3://landing": false, "s3://landing/events": false, "s3://": false, "s3:///": false, "s3://*/": false, "file:///etc/": false, "/etc/": false,
		"s3://landing/../": false, "s3://landing/./": false, "s3://landing/%2e%2e/": false, "https://user:pw@host/": false, "https://h/a?b/": false,
		"S3://landing/": false, "hf://datasets/": false, "s3://land'ing/": false,
	} {
		require.Equal(t, valid, plan.ValidPrefix(prefix), prefix)
	}
	e := plan.External{Prefixes: []string{"s3://landing/events/"}}
	require.True(t, e.Covers("s3://landing/events/x.csv"))
	require.False(t, e.Covers("s3://landing/events2/x.csv"))
	require.False(t, (&plan.External{}).Covers("s3://landing/x.csv"))
}

func TestClimbingURLs(t *testing.T) {
	for name, climbs := range map[string]bool{
		"s3://a/b.csv": false, "s3://a/..b.csv": false, "s3://a/b..c": false, "s3://a/*/x.csv": false, "s3://a/100%.csv": false,
		"s3://a/../b": true, "s3://a/./b": true, "s3://a/..": true, `s3://a/..\b`: true, "s3://a/%2e%2E/b": true, "s3://a/%252e./b": true,
		"s3://a/%25252525252e/b": true, "s3://a/b?x=/../": false,
	} {
		require.Equal(t, climbs, plan.Climbs(name), name)
	}
}

func TestSourcePathsAreOutsideOfTheProject(t *testing.T) {
	for name, valid := range map[string]bool{
		"../reference": true, "../../a/b": true, "/srv/landing": true,
		"data": false, "..": false, "../..": false, "/": false, "": false, ".": false, "../.git": false, "/a/../b": false, "/a/*": false, "a/../../b": false, "/a/": false,
	} {
		require.Equal(t, valid, plan.ValidSourcePath(name), name)
	}
	p := plan.Plan{Data: []string{"/srv/landing", "../x"}}
	require.Equal(t, []string{"data"}, p.DataFolders())
	require.Equal(t, []string{"/srv/landing", "../x"}, p.SourcePaths())
	p.Data = append(p.Data, "seeds")
	require.Equal(t, []string{"seeds"}, p.DataFolders())
}

func TestPlanWarnsOfExternalDataAndListsItsSecrets(t *testing.T) {
	list := weather()
	for i := range list {
		if list[i].Work.SQL != "" {
			list[i].Work.External = []plan.External{{
				Extension: plan.ExtensionHTTPFS, Directory: plan.ExtensionsDir, Prefixes: []string{"s3://a/"},
				Secrets: []plan.ExternalSecret{{Name: "lake", Type: "s3", References: map[string]string{"key_id": "env:LAKE_ID", "secret": "file:lake"}}},
			}}
		}
	}
	p := build(t, plan.Request{Root: "/p", Assets: list, All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	require.Len(t, p.Warnings, 1)
	require.Contains(t, p.Warnings[0], "Servo does not notice when the external data of ")
	require.Equal(t, []string{"LAKE_ID"}, p.SecretVariables, "no command inherits the variable")
	data, _, err := p.Encode()
	require.NoError(t, err)
	_, err = plan.Decode(data)
	require.NoError(t, err)
}

func TestDecodeRejectsInvalidExternalData(t *testing.T) {
	good := plan.External{Extension: plan.ExtensionHTTPFS, Directory: "x"}
	with := func(change func(*plan.External)) plan.External {
		e := good
		change(&e)
		return e
	}
	for want, e := range map[string]plan.External{
		`unknown extension "shellfs"`: {Extension: "shellfs", Directory: "x"},
		"has no folder":               {Extension: plan.ExtensionExcel},
		"invalid prefix":              with(func(e *plan.External) { e.Prefixes = []string{"file:///etc/"} }),
		"invalid database name":       with(func(e *plan.External) { e.Attach = map[string]string{`a"b`: "x"} }),
		"is not a reference": with(func(e *plan.External) {
			e.Secrets = []plan.ExternalSecret{{Name: "a", Type: "s3", References: map[string]string{"secret": "hunter2"}}}
		}),
		"invalid name, type or scope": with(func(e *plan.External) { e.Secrets = []plan.ExternalSecret{{Name: "a", Type: "s3, x"}} }),
		"unknown setting": with(func(e *plan.External) {
			e.Secrets = []plan.ExternalSecret{{Name: "a", Type: "s3", Options: map[string]string{"provider": "credential_chain"}}}
		}),
	} {
		p := build(t, plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
		p.Assets["raw/weather"] = plan.Work{SQL: "SELECT 1", External: []plan.External{e}}
		data, err := json.Marshal(p)
		require.NoError(t, err)
		_, err = plan.Decode(data)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
