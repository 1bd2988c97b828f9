package source_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/source"
)

// TestCodeNoticesChanges changes the file of a task's code before, during and after the task.
func TestCodeNoticesChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "code.py")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("one")
	planned := map[string]string{"code.py": source.FileText(os.DirFS(dir), "code.py")}
	var texts source.Texts
	require.False(t, texts.Watch(dir, planned).Changed())

	code := texts.Watch(dir, planned)
	write("two")
	require.True(t, code.Changed(), "written while the task ran")
	require.True(t, texts.Watch(dir, planned).Changed(), "another file than the plan's")

	write("one")
	require.False(t, texts.Watch(dir, planned).Changed(), "the content of the plan again")
	code = texts.Watch(dir, planned)
	write("two")
	write("one")
	require.True(t, code.Changed(), "the task may have read the other content")

	code = texts.Watch(dir, planned)
	require.NoError(t, os.Remove(file))
	require.True(t, code.Changed(), "gone")
	require.True(t, texts.Watch(dir, planned).Changed(), "gone before the task")

	write("12345")
	require.False(t, texts.Watch(dir, map[string]string{"code.py": "5 bytes"}).Changed(), "only the size is part of the code")
	require.True(t, texts.Watch(dir, map[string]string{"code.py": "6 bytes"}).Changed())
}
