package automator

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// An event with a text that is not UTF-8 is rejected, so the refusal would never be recorded.
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
