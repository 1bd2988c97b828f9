package secret

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
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

// NewMask hides values of 4 bytes or more, also without the space around them and as they
// are quoted, and lines of 8 bytes or more.
func NewMask(values []string) *Mask {
	m := &Mask{}
	for _, value := range values {
		m.hide(value, minHidden)
		m.hide(strings.TrimSpace(value), minHidden)
		quoted := strconv.Quote(value) // as messages name files, and programs show texts
		m.hide(quoted[1:len(quoted)-1], minHidden)
		for line := range strings.Lines(value) {
			m.hide(strings.TrimRight(line, "\r\n"), minHiddenLine)
			m.hide(strings.TrimSpace(line), minHiddenLine)
		}
	}
	for i := range m.texts {
		slices.SortFunc(m.texts[i], func(a, b string) int { return len(b) - len(a) })
	}
	return m
}

func (m *Mask) hide(text string, least int) {
	if len(text) >= least && !slices.Contains(m.texts[text[0]], text) {
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
