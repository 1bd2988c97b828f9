package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxHistory is the greatest number of statements in the history of the query shell.
const maxHistory = 1000

// history holds the statements of the query shell as lines, oldest first. It implements the History of a terminal.
type history struct {
	path  string
	lines []string
	// added is the number of lines that are not in the file yet.
	added int
}

// historyFile returns the path of the history file, or "" if the user has no home folder.
func (a *app) historyFile() string {
	dir := a.getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home := a.getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "servo", "query_history")
}

// openHistory reads the history. If reading fails, it returns the error and an empty history that is not saved.
func openHistory(path string) (*history, error) {
	if path == "" {
		return &history{}, nil
	}
	lines, err := readHistory(path)
	if err != nil {
		return &history{}, err
	}
	return &history{path: path, lines: lines}, nil
}

func readHistory(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the history of the query shell: %w", err)
	}
	lines := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
	return slices.Clone(lines[max(0, len(lines)-maxHistory):]), nil
}

// Add implements [term.History]. It ignores the lines that the terminal adds, because the method append adds whole
// statements.
func (h *history) Add(string) {}

// Len implements [term.History].
func (h *history) Len() int { return len(h.lines) }

// At implements [term.History]: index 0 is the newest statement.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

// append adds a statement. It joins the lines of the statement, unless a comment extends to the
// end of a line.
func (h *history) append(statement string) {
	lines := []string{strings.ReplaceAll(statement, "\n", " ")}
	if strings.Contains(statement, "--") {
		lines = strings.Split(statement, "\n")
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" && (len(h.lines) == 0 || h.At(0) != line) {
			h.lines = append(h.lines, line)
			h.added++
		}
	}
}

// save adds the new statements to the file. It keeps the statements that other shells have added to the file meanwhile.
func (h *history) save() error {
	if h.path == "" || h.added == 0 {
		return nil
	}
	const private = 0o700
	if err := os.MkdirAll(filepath.Dir(h.path), private); err != nil {
		return fmt.Errorf("save the history of the query shell: %w", err)
	}
	others, err := readHistory(h.path)
	if err != nil {
		return err
	}
	all := slices.Concat(others, h.lines[max(0, len(h.lines)-h.added):])
	all = all[max(0, len(all)-maxHistory):]
	tmp, err := os.CreateTemp(filepath.Dir(h.path), "query_history-*") // mode 0600: statements may have secrets
	if err != nil {
		return fmt.Errorf("save the history of the query shell: %w", err)
	}
	_, err = tmp.WriteString(strings.Join(all, "\n") + "\n")
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), h.path)
	}
	if err != nil {
		return fmt.Errorf("save the history of the query shell: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	h.added = 0
	return nil
}
