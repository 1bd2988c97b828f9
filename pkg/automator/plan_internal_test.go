package automator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// A message that was cut within a character is not UTF-8. Its event would be rejected, so the refusal would never be
// recorded.
func TestRefusalMessageIsCutBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		message := strings.Repeat("x", shift) + strings.Repeat("€", maxMessage)
		cut := refusal(errors.New(message)).Message
		require.True(t, utf8.ValidString(cut), "shifted by %d", shift)
		require.LessOrEqual(t, len(cut), maxMessage+len("…"))
		require.Greater(t, len(cut), maxMessage-len("€"))
	}
	require.Equal(t, "file \uFFFD", refusal(errors.New("file \xff")).Message)
}

func TestDamagedDocumentHasCodeOfItsOwn(t *testing.T) {
	err := fmt.Errorf("plan a chunk: %w", &engine.DamagedError{Err: errors.New("the list is damaged")})
	cause := refusal(err)
	require.Equal(t, fold.DocumentDamaged, cause.Code)
	require.True(t, cause.Retryable, "a tick waits until somebody restores the release")
}
