package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// editing configures a lineEditor.
type editing struct {
	// width is the width of the terminal in columns.
	width int
	// rawMode switches the terminal to raw mode and returns a function that restores it. Raw
	// mode is on only while a line is edited, so that Ctrl-C interrupts statements.
	rawMode func() (restore func() error, err error)
	history term.History
	// words are the names that Tab completes.
	words func() []string
}

// lineEditor reads lines from a terminal, with editing, history and completion.
type lineEditor struct {
	editing

	terminal  *term.Terminal
	cancelled bool
}

func newLineEditor(in io.Reader, out io.Writer, with editing) *lineEditor {
	e := &lineEditor{editing: with}
	e.terminal = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{&cancelKeys{in: in}, out}, "")
	e.terminal.History = with.history
	e.terminal.AutoCompleteCallback = e.key
	e.terminal.SetBracketedPasteMode(true)
	if with.width > 0 {
		const height = 24 // any height will do: the editor uses only the width
		_ = e.terminal.SetSize(with.width, height)
	}
	return e
}

// ReadLine implements [lineReader].
func (e *lineEditor) ReadLine(prompt string) (line string, err error) {
	restore, err := e.rawMode()
	if err != nil {
		return "", fmt.Errorf("switch the terminal to raw mode: %w", err)
	}
	defer func() {
		if restoreErr := restore(); restoreErr != nil {
			err = errors.Join(err, fmt.Errorf("restore the terminal: %w", restoreErr))
		}
	}()
	e.terminal.SetPrompt(prompt)
	line, err = e.terminal.ReadLine()
	if e.cancelled {
		e.cancelled = false
		return "", errLineCancelled
	}
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	return line, err
}

// Close restores the terminal.
func (e *lineEditor) Close() { e.terminal.SetBracketedPasteMode(false) }

const (
	keyTab    = '\t'
	keyCancel = 0x07
)

// key handles the keys that the terminal does not handle itself.
func (e *lineEditor) key(line string, pos int, key rune) (string, int, bool) {
	switch key {
	case keyCancel:
		e.cancelled = true
		return "", 0, true
	case keyTab:
		return e.completed(line, pos)
	}
	return "", 0, false
}

// completed completes the name before the cursor up to the point at which the candidates differ. If they differ at the
// cursor already, it lists them.
func (e *lineEditor) completed(line string, pos int) (string, int, bool) {
	begin := strings.LastIndexFunc(line[:pos], func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '.'
	}) + 1
	typed := line[begin:pos]
	var candidates []string
	for _, word := range e.words() {
		if strings.HasPrefix(word, typed) && !slices.Contains(candidates, word) {
			candidates = append(candidates, word)
		}
	}
	if len(candidates) == 0 {
		return line, pos, true
	}
	slices.Sort(candidates)
	common := commonPrefix(candidates)
	if common == typed && len(candidates) > 1 {
		_, _ = fmt.Fprintln(e.terminal, strings.Join(candidates, "  "))
		return line, pos, true
	}
	return line[:begin] + common + line[pos:], begin + len(common), true
}

// commonPrefix returns the longest common prefix of words, which must not be empty.
func commonPrefix(words []string) string {
	prefix := words[0]
	for _, word := range words[1:] {
		for !strings.HasPrefix(word, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix
}

// cancelKeys replaces each Ctrl-C in its input with a key that discards the line, followed by Enter. The package of
// the terminal would treat a Ctrl-C as the end of the input.
type cancelKeys struct {
	in      io.Reader
	pending []byte
}

// Read implements [io.Reader].
func (c *cancelKeys) Read(p []byte) (int, error) {
	if len(c.pending) == 0 {
		const ctrlC = 0x03
		n, err := c.in.Read(p)
		for _, b := range p[:n] {
			if b == ctrlC {
				c.pending = append(c.pending, keyCancel, '\r')
			} else {
				c.pending = append(c.pending, b)
			}
		}
		if len(c.pending) == 0 {
			return 0, err
		}
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}
