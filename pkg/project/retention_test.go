package project_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

// retention writes files and reads their retention rules.
func retention(t *testing.T, files map[string]string) (*project.Retention, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return project.LoadRetention(t.Context(), dir, project.Options{})
}

func TestRetentionOfAssetOverridesDefault(t *testing.T) {
	const day = 24 * time.Hour
	files := map[string]string{
		"servo.yaml":        "{defaults: {keep: {versions: 5, for: 10d}}, keep_logs: 2d}",
		"assets/a/none.sql": "SELECT this is not parsed",
		"assets/a/some.sql": "/* servo\nkeep: {versions: 1}\n*/ SELECT 1",
		"assets/a/all.sql":  "/* servo\nkeep: all\n*/ SELECT 1",
		"assets/list.yaml":  "assets: [{asset: b/x, run: {command: [x]}, keep: {for: 2h}}]",
	}
	r, err := retention(t, files)
	require.NoError(t, err)
	require.Empty(t, r.Problems)
	require.False(t, r.Everything())
	require.Equal(t, 2*day, r.Logs)
	for asset, want := range map[string]plan.Keep{
		"a/none": {Versions: 5, For: 10 * day}, "a/some": {Versions: 1, For: 10 * day}, "a/all": {All: true, Versions: 5, For: 10 * day},
		"b/x": {Versions: 5, For: 2 * time.Hour}, "old/removed": {Versions: 5, For: 10 * day},
	} {
		require.Equal(t, want, r.Of(asset), asset)
	}

	files["servo.yaml"] = "defaults: {keep: all}"
	r, err = retention(t, files)
	require.NoError(t, err)
	require.False(t, r.Everything(), "two assets do not keep everything")
	require.Equal(t, plan.Keep{Versions: 1}, r.Of("a/some"))
	require.True(t, r.Of("a/none").All)
	r, err = retention(t, map[string]string{"servo.yaml": files["servo.yaml"], "assets/a/none.sql": "SELECT 1"})
	require.NoError(t, err)
	require.True(t, r.Everything())
}

func TestUnknownRetentionKeepsEverything(t *testing.T) {
	files := map[string]string{
		"servo.yaml":        "",
		"assets/a/good.sql": "/* servo\nkeep: {versions: 2}\n*/ SELECT 1",
		"assets/b/one.yaml": "{asset: twice/x, run: {command: [x]}, keep: {versions: 1}}",
		"assets/b/two.yaml": "{asset: twice/x, run: {command: [x]}, keep: {versions: 9}}",
		"assets/a/bad.sql":  "/* servo\nkeep: {versions: none}\n*/ SELECT 1",
	}
	r, err := retention(t, files)
	require.NoError(t, err)
	require.Len(t, r.Problems, 1)
	require.False(t, r.Everything())
	require.Equal(t, plan.Keep{Versions: 2}, r.Of("a/good"))
	for _, asset := range []string{"a/bad", "twice/x", "perhaps/declared_in_the_bad_file"} {
		require.True(t, r.Of(asset).All, asset)
	}

	delete(files, "assets/a/bad.sql")
	r, err = retention(t, files)
	require.NoError(t, err)
	require.True(t, r.Of("twice/x").All, "two files contradict each other")
	require.Equal(t, plan.Keep{}, r.Of("old/removed"), "no file declares the asset")

	files["servo.yaml"] = "defaults: {keep: 3}"
	_, err = retention(t, files)
	require.ErrorContains(t, err, "servo.yaml:1:18: keep must be a mapping or all")
}
