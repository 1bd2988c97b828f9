package snapshot_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// declaration is the line that adds a table to the registry, and rowType is the row type of this table.
// CONTRIBUTING.md shows both.
const (
	declaration = "\tNotes Table[Key2, Note] `table:\"notes,history,run=run_id\"`\n"
	rowType     = `package state

// Note is a row of notes: a remark of a user about a task.
type Note struct {
	RunID   string ` + "`col:\"run_id,key\"`" + `
	TaskKey string ` + "`col:\"task_key,key\"`" + `
	Text    string ` + "`col:\"text,null\"`" + `
	Meta
}

// Key returns the primary key.
func (r *Note) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

func (*Note) newTable() store { return new(rowTable[Key2, Note, *Note]) }
`
	use = `package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestNewTable(t *testing.T) {
	st := state.New(acme)
	note := &state.Note{RunID: "r", TaskKey: "t", Text: "x", Meta: state.Meta{Seq: 1}}
	st.Notes.Put(note)
	require.Equal(t, []*state.Note{note}, state.List[state.Note](st.Changed()))
	require.Equal(t, int64(1), st.Counts()["notes"])
	st.Drain()
	require.Zero(t, st.Changed().Len())

	files, err := codec.Encode(st.All())
	require.NoError(t, err)
	require.Equal(t, "notes", files[0].Table)
	require.Equal(t, "r", files[0].MinRun)

	copied := st.Copy()
	require.Empty(t, state.Diff(st, copied, 1))
	closed := copied.Evict(state.Cutoff{Seq: 1, Time: event.Time(1)})
	require.Equal(t, []*state.Note{note}, state.List[state.Note](closed), "its run is not in the live state")
	require.Zero(t, copied.Notes.Len())
	require.Equal(t, 1, closed.OfRun("r").Len())
	require.Zero(t, closed.KeptFrom("s").Len())
	require.Len(t, state.Diff(st, copied, 9), 1)
}
`
)

// TestOneLineAddsATable copies the sources and adds a table to the copy. In the copy, it executes the tests that check
// every table.
func TestOneLineAddsATable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles the tests a second time")
	}
	guide, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	for line := range strings.Lines(rowType) {
		if !strings.HasPrefix(line, "package") {
			require.Contains(t, string(guide), line, "CONTRIBUTING.md shows another row type")
		}
	}
	require.Contains(t, strings.Join(strings.Fields(string(guide)), " "), "+ "+strings.TrimSpace(declaration))

	registry, err := filepath.Abs("../state/registry.go")
	require.NoError(t, err)
	source, err := os.ReadFile(registry)
	require.NoError(t, err)
	head, tail, ok := strings.Cut(string(source), "`table:\"ledger_entries,history,entry=entry\"`\n")
	require.True(t, ok)
	here, err := filepath.Abs(".")
	require.NoError(t, err)

	dir := t.TempDir()
	replace := map[string]string{}
	for path, text := range map[string]string{
		registry: head + "`table:\"ledger_entries,history,entry=entry\"`\n" + declaration + tail,
		filepath.Join(filepath.Dir(registry), "note.go"): rowType,
		filepath.Join(here, "note_test.go"):              use,
	} {
		copied := filepath.Join(dir, filepath.Base(path))
		require.NoError(t, os.WriteFile(copied, []byte(text), 0o600))
		replace[path] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))

	test := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"),
		"-run", "TestNewTable|EveryTable", ".")
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, passed := range []string{
		"TestNewTable", "TestDiffComparesEveryTable/notes", "TestWithoutCoversEveryTable/notes",
		"TestMergeCoversEveryTable/notes", "TestCodecRoundTripsEveryTable",
	} {
		require.Contains(t, string(out), "--- PASS: "+passed)
	}
}
