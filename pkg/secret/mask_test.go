package secret_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/secret"
)

func TestMaskHidesValuesAndLines(t *testing.T) {
	key := "-----BEGIN KEY-----\nMIIEvQIBADANBg\nshort\n-----END KEY-----\n"
	m := secret.NewMask([]string{"hunter2", "abc", "four", "hunter2-and-more", key, "  padded \n", "say \"x\""})
	for text, want := range map[string]string{
		"":                              "",
		"nothing":                       "nothing",
		"the password is hunter2.":      "the password is ***.",
		"hunter2":                       "***",
		"hunter2hunter2 hunter2":        "*** ***",
		"hunter2-and-more":              "***",
		"hunter2-and-mor":               "***-and-mor",
		"hunter":                        "hunter",
		"abc is too short":              "abc is too short",
		"four is not":                   "*** is not",
		key:                             "***",
		"of it MIIEvQIBADANBg, a line":  "of it ***, a line",
		"of it short, which is":         "of it short, which is",
		"padded":                        "***",
		`file "say \"x\""`:              `file "***"`,
		"[  padded \n]":                 "[***]",
		"\xffhunter2\x00":               "\xff***\x00",
		strings.Repeat("hunter2 ", 100): strings.Repeat("*** ", 100),
	} {
		require.Equal(t, want, m.String(text), "%q", text)
		require.Equal(t, want, string(m.Bytes([]byte(text))), "%q", text)
	}
	var none *secret.Mask
	require.Equal(t, "hunter2", none.String("hunter2"))
	require.Equal(t, "hunter2", (&secret.Mask{}).String("hunter2"))
	require.Equal(t, "abc", secret.NewMask([]string{"abc", ""}).String("abc"))
}

// Programs often log a secret within a URL or JSON.
func TestMaskHidesEncodedValues(t *testing.T) {
	m := secret.NewMask([]string{"correct horse battery staple", "a<b>&c/dé", "esc\x1b<key>", "smile\U0001f600", " in space&\n"})
	for text, want := range map[string]string{
		"https://x/correct%20horse%20battery%20staple/y": "https://x/***/y",
		"https://x/?p=correct+horse+battery+staple&q":    "https://x/?p=***&q",
		`{"p":"a\u003cb\u003e\u0026c/dé"}`:               `{"p":"***"}`,  // Go
		`{"p": "a<b>&c/d\u00e9"}`:                        `{"p": "***"}`, // Python
		`{"p":"esc\u001b<key>"}`:                         `{"p":"***"}`,  // JavaScript
		`{"p": "smile\ud83d\ude00"}`:                     `{"p": "***"}`,
		"?p=a%3Cb%3E%26c%2Fd%C3%A9":                      "?p=***",
		"?p=in+space%26":                                 "?p=***",
		`"in space\u0026"`:                               `"***"`,
		"correct horse":                                  "correct horse",
	} {
		require.Equal(t, want, m.String(text), "%q", text)
	}
	short := secret.NewMask([]string{"<", "é\n"})
	require.Equal(t, `\u003c %C3%A9 \u00e9`, short.String(`\u003c %C3%A9 \u00e9`), "a value that is too short")
}

func TestMaskKeepsIndentation(t *testing.T) {
	m := secret.NewMask([]string{"first line\n        \n      four\n        and a third"})
	for text, want := range map[string]string{
		"          indented":       "          indented",
		"      four":               "      four",
		"        and a third":      "***",
		"  and a third, elsewhere": "  ***, elsewhere",
	} {
		require.Equal(t, want, m.String(text), "%q", text)
	}
}

func TestMaskHidesOverlappingValues(t *testing.T) {
	m := secret.NewMask([]string{"abcdef", "defghi", "cdef"})
	require.Equal(t, "x***y", m.String("xabcdefghiy"))
	require.Equal(t, "x***y", m.String("xabcdefdefghiy"))
	require.Equal(t, "x***y", m.String("xabcdefy"))
}

// However the input is split between Writes, the output is the same, and equals the output of a naive search.
func TestMaskWriterHidesSplitValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab \n]{0,60}`).Draw(t, "text")
		values := rapid.SliceOfN(rapid.StringMatching(`[ab \n]{1,20}`), 0, 4).Draw(t, "values")
		m := secret.NewMask(values)
		want := m.String(text)
		require.Equal(t, naive(values, text), want)
		var got bytes.Buffer
		w := m.Writer(&got)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "written at once")
			written, err := w.Write([]byte(rest[:n]))
			require.NoError(t, err)
			require.Equal(t, n, written)
			rest = rest[n:]
		}
		require.NoError(t, w.Flush())
		require.Equal(t, want, got.String())
	})
}

// naive hides values by searching for each one at each position.
func naive(values []string, text string) string {
	covered := make([]bool, len(text))
	cover := func(hide string, least int) {
		for i := 0; len(hide) >= least && i+len(hide) <= len(text); i++ {
			for j := range hide {
				covered[i+j] = covered[i+j] || text[i:i+len(hide)] == hide
			}
		}
	}
	for _, value := range values {
		cover(value, 4)
		cover(strings.TrimSpace(value), 4)
		for line := range strings.SplitSeq(value, "\n") {
			if trimmed := strings.TrimSpace(line); len(trimmed) >= 8 {
				cover(line, 8)
				cover(trimmed, 8)
			}
		}
	}
	var clean strings.Builder
	for i := range text {
		switch {
		case !covered[i]:
			clean.WriteByte(text[i])
		case i == 0 || !covered[i-1]:
			clean.WriteString("***")
		}
	}
	return clean.String()
}

func BenchmarkMask(b *testing.B) {
	text := bytes.Repeat([]byte("2012-02-29 12:00:00 INFO loaded 1,024 rows of weather into the warehouse\n"), 14_000)
	for _, n := range []int{1, 30} {
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("%c%06d-a-secret-of-some-length", 'A'+i, i*7919)
		}
		m := secret.NewMask(values)
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				m.Bytes(text)
			}
		})
	}
}
