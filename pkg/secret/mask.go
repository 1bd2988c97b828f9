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

// What is hidden: shorter texts stand in any output by chance, and to replace them would
// tell more than it hides.
const (
	minHidden     = 4 // bytes of a value
	minHiddenLine = 8 // bytes of a line of a value
)

// hidden stands for what is hidden.
const hidden = "***"

// Mask replaces values by "***". The zero value and nil hide nothing.
type Mask struct {
	// texts are what is hidden, by the first byte, the longest first.
	texts   [256][]string
	longest int
}

// NewMask hides values of 4 bytes or more, also without the space around them and as
// programs write them in messages, addresses and JSON, and lines that have 8 bytes or more
// without the space around them.
func NewMask(values []string) *Mask {
	m := &Mask{}
	for _, value := range values {
		for _, text := range []string{value, strings.TrimSpace(value)} {
			if len(text) < minHidden {
				continue // no form is shorter; those of a short text stand anywhere, as it does
			}
			for _, form := range forms(text) {
				m.hide(form)
			}
		}
		for line := range strings.Lines(value) {
			if trimmed := strings.TrimSpace(line); len(trimmed) >= minHiddenLine { // space is indentation elsewhere
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

// forms are a text, and how programs write it.
func forms(text string) []string {
	plain := quotedJSON(text, false)
	return []string{
		text,
		inner(strconv.Quote(text)), // as messages name files, and programs show texts
		url.QueryEscape(text), url.PathEscape(text),
		quotedJSON(text, true), plain, ascii(plain),
	}
}

// inner is what is between quotes.
func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

// quotedJSON is a text in JSON. Go's is fit for HTML unless one asks it not to be; that of
// other languages is not.
func quotedJSON(text string, html bool) string {
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(html)
	if err := to.Encode(text); err != nil { // never: a text has JSON, and memory takes it
		return text
	}
	return inner(strings.TrimSuffix(out.String(), "\n"))
}

// ascii is a text in JSON as Python's json.dumps has it.
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

// Bytes is a text without what is hidden.
func (m *Mask) Bytes(text []byte) []byte {
	if m == nil || m.longest == 0 {
		return text
	}
	var clean bytes.Buffer
	w := m.Writer(&clean)
	_, _ = w.Write(text) // neither fails: it is memory
	_ = w.Flush()
	return clean.Bytes()
}

// String is a text without what is hidden.
func (m *Mask) String(text string) string {
	if m == nil || m.longest == 0 {
		return text
	}
	return string(m.Bytes([]byte(text)))
}

// begins gives how long what is hidden at the start of a text is, 0: nothing.
func (m *Mask) begins(text []byte) int {
	for _, hide := range m.texts[text[0]] {
		if len(hide) <= len(text) && string(text[:len(hide)]) == hide {
			return len(hide)
		}
	}
	return 0
}

// decided gives how much of a text can be judged: what comes after it may be the
// beginning of something that goes on.
func (m *Mask) decided(text []byte) int {
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

// Writer hides in what is written to it, however it is split, and writes the rest to
// another.
type Writer struct {
	mask *Mask
	to   io.Writer
	// held is what is not written yet; its first bytes, covered in number, are hidden.
	held    []byte
	covered int
	// said is that what was written last is hidden: what follows on it is not said again.
	said bool
}

// Writer gives one. It must be flushed at the end.
func (m *Mask) Writer(to io.Writer) *Writer { return &Writer{mask: m, to: to} }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	if w.mask == nil || w.mask.longest == 0 {
		return w.to.Write(p)
	}
	w.held = append(w.held, p...)
	return len(p), w.release(w.mask.decided(w.held))
}

// Flush writes what was held back: nothing follows.
func (w *Writer) Flush() error { return w.release(len(w.held)) }

// release writes the first n bytes of what is held, without what is hidden.
func (w *Writer) release(n int) error {
	if n == 0 {
		return nil
	}
	clean := make([]byte, 0, n)
	for i, b := range w.held[:n] {
		if length := w.mask.begins(w.held[i:]); length > 0 {
			w.covered = max(w.covered, i+length)
		}
		switch {
		case i >= w.covered:
			clean = append(clean, b)
		case !w.said:
			clean = append(clean, hidden...)
		}
		w.said = i < w.covered
	}
	w.held = append(w.held[:0], w.held[n:]...)
	w.covered = max(0, w.covered-n)
	_, err := w.to.Write(clean)
	return err
}
