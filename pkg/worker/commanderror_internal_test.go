package worker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
)

// A command may write its error in an encoding other than UTF-8. Converting the text to UTF-8 makes it longer, and the
// dispatcher rejects a report whose details are too long. So the limit applies to the converted text.
func TestErrorOfCommandThatIsNotUTF8IsReported(t *testing.T) {
	read := func(text string) (*event.Error, error) {
		path := filepath.Join(t.TempDir(), errorFile)
		require.NoError(t, os.WriteFile(path, []byte("{\"message\":\"fall\xf3\",\"details\":{\"text\":\""+text+"\"}}"), 0o600))
		described, err := readCommandError(path)
		if err != nil {
			return nil, err
		}
		f := &failure{code: CodeExitStatus, category: event.CategoryUser}
		described.apply(f)
		_, e := verdict(t.Context(), nil, f)
		return e, nil
	}
	e, err := read(strings.Repeat("\xe9 ", 1000))
	require.NoError(t, err)
	require.Equal(t, "fall\uFFFD", e.Message)
	require.Equal(t, `{"text":"`+strings.Repeat("\uFFFD ", 1000)+`"}`, e.Details)
	body, err := json.Marshal(contract.Finished{
		AttemptID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", WorkerID: "w", Outcome: event.Failed, Error: e, StartedAt: 1, CompletedAt: 1,
	})
	require.NoError(t, err)
	_, err = contract.DecodeFinished(body)
	require.NoError(t, err)

	_, err = read(strings.Repeat("\xe9 ", 2000))
	require.ErrorContains(t, err, "details have 8011 bytes: at most 4096 are allowed")
}
