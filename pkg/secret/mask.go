package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Shorter texts are not hidden: they occur by chance in any output, and replacing every occurrence would reveal them.
const (
	minHidden     = 4 // minimum length of a hidden value, in bytes
	minHiddenLine = 8 // minimum length of a hidden line of a value, in bytes
)

// hidden is the text that is written in place of each secret text.
const hidden = "***"

// Mask replaces secret values by "***". The zero value and nil hide nothing.
type Mask struct {
	// texts are the texts to hide, by first byte, the longest first.
	texts   [256][]string
	longest int
}

// NewMask returns a mask that hides values of at least 4 bytes. It hides three forms of a value: the value as it is,
// the value without surrounding space, and the encodings that programs use in messages, URLs and JSON. It also hides
// each line of a value, with and without surrounding space, if the line has at least 8 bytes without this space.
func NewMask(values []string) *Mask {
	m := &Mask{}
	for _, value := range values {
		for _, text := range []string{value, strings.TrimSpace(value)} {
			if len(text) < minHidden {
				continue // do not hide its encoded forms either, even if they are longer: they occur by chance, too
			}
			for _, form := range forms(text) {
				m.hide(form)
			}
		}
		for line := range strings.Lines(value) {
			if trimmed := strings.TrimSpace(line); len(trimmed) >= minHiddenLine { // outputs may indent lines
				m.hide(strings.TrimRight(line, "\r\n"))
				m.hide(trimmed)
			}
		}
	}
	for i := range m.texts {
		slices.SortFunc(m.texts[i], func(a, b string) int { return len(b) - len(a) })
	}
	return m
}

// forms returns a text and its encodings.
func forms(text string) []string {
	plain := quotedJSON(text, false)
	return []string{
		text,
		inner(strconv.Quote(text)), // messages quote the text like this, for example in the name of a file
		url.QueryEscape(text), url.PathEscape(text),
		quotedJSON(text, true), plain, ascii(plain),
	}
}

// inner removes the quotes around a text.
func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

// quotedJSON returns a text as a JSON string without quotes. Go escapes HTML characters by
// default; other languages do not.
func quotedJSON(text string, html bool) string {
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(html)
	if err := to.Encode(text); err != nil { // cannot happen: every string is encodable, and a buffer does not fail
		return text
	}
	return inner(strings.TrimSuffix(out.String(), "\n"))
}

// ascii escapes the non-ASCII characters of a JSON string, as Python's json.dumps does.
func ascii(plain string) string {
	var out strings.Builder
	for _, r := range plain {
		switch {
		case r <= '~':
			out.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	return out.String()
}

func (m *Mask) hide(text string) {
	if !slices.Contains(m.texts[text[0]], text) {
		m.texts[text[0]] = append(m.texts[text[0]], text)
		m.longest = max(m.longest, len(text))
	}
}

// Bytes returns text with secret texts replaced by "***".
func (m *Mask) Bytes(text []byte) []byte {
	if m == nil || m.longest == 0 {
		return text
	}
	var clean bytes.Buffer
	w := m.Writer(&clean)
	_, _ = w.Write(text) // a buffer does not fail
	_ = w.Flush()
	return clean.Bytes()
}

// String returns text with secret texts replaced by "***".
func (m *Mask) String(text string) string {
	if m == nil || m.longest == 0 {
		return text
	}
	return string(m.Bytes([]byte(text)))
}

// match returns the length of the secret text with which text begins, or 0.
func (m *Mask) match(text []byte) int {
	for _, hide := range m.texts[text[0]] {
		if len(hide) <= len(text) && string(text[:len(hide)]) == hide {
			return len(hide)
		}
	}
	return 0
}

// complete returns the length of text without the suffix that may be the beginning of a secret text. Only the next
// Write shows whether this suffix belongs to a secret text.
func (m *Mask) complete(text []byte) int {
	for i := max(0, len(text)-m.longest+1); i < len(text); i++ {
		rest := text[i:]
		for _, hide := range m.texts[rest[0]] {
			if len(rest) < len(hide) && hide[:len(rest)] == string(rest) {
				return i
			}
		}
	}
	return len(text)
}

// Writer replaces secret texts in a stream, even if they are split between Writes, and passes the result to another
// writer.
type Writer struct {
	mask *Mask
	to   io.Writer
	// buffer is the input that has not been written yet. covered is the number of bytes at its beginning that belong to
	// secret texts.
	buffer  []byte
	covered int
	// masking means that the last byte written was part of a secret text. If a secret text follows immediately, it gets
	// no "***" of its own.
	masking bool
}

// Writer returns a [Writer] that writes to another writer. The caller must call Flush at the end.
func (m *Mask) Writer(to io.Writer) *Writer { return &Writer{mask: m, to: to} }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	if w.mask == nil || w.mask.longest == 0 {
		return w.to.Write(p)
	}
	w.buffer = append(w.buffer, p...)
	return len(p), w.release(w.mask.complete(w.buffer))
}

// Flush writes the buffered input at the end of the stream.
func (w *Writer) Flush() error { return w.release(len(w.buffer)) }

// release writes the first n bytes of the buffer, in which it replaces secret texts.
func (w *Writer) release(n int) error {
	if n == 0 {
		return nil
	}
	clean := make([]byte, 0, n)
	for i, b := range w.buffer[:n] {
		if length := w.mask.match(w.buffer[i:]); length > 0 {
			w.covered = max(w.covered, i+length)
		}
		switch {
		case i >= w.covered:
			clean = append(clean, b)
		case !w.masking:
			clean = append(clean, hidden...)
		}
		w.masking = i < w.covered
	}
	w.buffer = append(w.buffer[:0], w.buffer[n:]...)
	w.covered = max(0, w.covered-n)
	_, err := w.to.Write(clean)
	return err
}
