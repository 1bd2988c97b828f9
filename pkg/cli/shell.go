package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// maxStatement is the longest statement that the shell accepts, in bytes.
const maxStatement = query.MaxSQLBytes

// errLineCancelled reports that the user pressed Ctrl-C while editing a line.
var errLineCancelled = errors.New("line cancelled")

// lineReader returns the input of the shell line by line. It returns io.EOF at the end of the input, and
// errLineCancelled when the user discards a line.
type lineReader interface {
	ReadLine(prompt string) (string, error)
}

// shell executes the statements that it reads. A statement ends with a line that ends in ";" or in ";" and a comment,
// or at the end of the input.
type shell struct {
	lines lineReader
	// interactive: after an error, the shell reports it and continues. Otherwise, the first error ends the shell.
	interactive bool
	execute     func(ctx context.Context, sql string) error
	// command executes a line that begins with a dot, and reports whether to exit.
	command func(line string) (leave bool)
	// remember adds a complete statement to the history.
	remember func(statement string)
	report   func(err error)
}

// queryShell reads statements from standard input: with editing, history and
// completion on a terminal, line by line elsewhere.
func (a *app) queryShell(ctx context.Context, db *query.DB, m *manifest.Manifest) error {
	sh := &shell{
		execute:  func(ctx context.Context, sql string) error { return a.answer(ctx, db, sql) },
		command:  a.meta,
		remember: func(string) {},
		report:   func(err error) { a.note("%s", a.style.errorText(err.Error())) },
	}
	width, terminal := a.width(a.Stdin)
	if !terminal || a.RawMode == nil {
		sh.lines = newLineScanner(a.Stdin)
		return sh.run(ctx)
	}
	revision := int64(0)
	if m != nil {
		revision = m.Revision
	}
	a.note("revision %d; end a statement with \";\"; Tab completes names; .help for help; Ctrl-D to leave", revision)
	past, err := openHistory(a.historyFile())
	if err != nil {
		a.note("servo: %v; this shell keeps its history in memory only", err)
	}
	sh.interactive, sh.remember = true, past.append
	editor := newLineEditor(a.Stdin, a.Stderr, editing{
		width:   width,
		rawMode: func() (func() error, error) { return a.RawMode(a.Stdin) },
		history: past,
		words:   func() []string { return append(db.Names(), tableNames()...) },
	})
	defer editor.Close()
	sh.lines = editor
	sh.execute = func(ctx context.Context, sql string) error { return a.interruptible(ctx, db, sql) }
	err = sh.run(ctx)
	if saveErr := past.save(); saveErr != nil {
		a.note("servo: %v", saveErr)
	}
	return err
}

// interruptible executes a statement. Ctrl-C interrupts the statement, but does not end the shell.
func (a *app) interruptible(ctx context.Context, db *query.DB, sql string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	restore := a.signal.replaceHandler(func(os.Signal, int) { cancel(errStatementInterrupted) })
	defer restore()
	err := a.answer(ctx, db, sql)
	if err != nil && errors.Is(context.Cause(ctx), errStatementInterrupted) {
		return errStatementInterrupted
	}
	return err
}

// errStatementInterrupted reports that the user ended a statement of the shell.
var errStatementInterrupted = errors.New("statement interrupted")

func (s *shell) run(ctx context.Context) error {
	var statement strings.Builder
	for {
		line, err := s.lines.ReadLine(prompt(statement.Len() > 0))
		if errors.Is(err, errLineCancelled) {
			statement.Reset()
			continue
		}
		more := err == nil
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if more && statement.Len() == 0 && isCommand(line) {
			if s.command(strings.TrimSpace(line)) {
				return nil
			}
			continue
		}
		if more {
			statement.WriteString(line + "\n")
		}
		if statement.Len() > maxStatement {
			return fmt.Errorf("the statement is longer than %d bytes, the limit of the shell", maxStatement)
		}
		if !more || strings.Contains(line, ";") && query.Complete(statement.String()) {
			err := s.complete(ctx, statement.String())
			statement.Reset()
			if err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// isCommand reports whether a line at the start of a statement is blank, or a command of the shell.
func isCommand(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || strings.HasPrefix(line, ".") || line == "exit" || line == "quit"
}

// complete executes a whole statement. It returns an error only if the error ends the shell.
func (s *shell) complete(ctx context.Context, sql string) error {
	if len(query.Statements(sql)) == 0 {
		return nil
	}
	s.remember(strings.TrimSpace(sql))
	err := s.execute(ctx, sql)
	if err == nil || !s.interactive || ctx.Err() != nil || errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	s.report(err)
	return nil
}

func prompt(inside bool) string {
	if inside {
		return "    … "
	}
	return "servo> "
}

// meta executes a command of the shell, and reports whether it ends the shell.
func (a *app) meta(line string) (leave bool) {
	switch strings.TrimPrefix(line, ".") {
	case "exit", "quit", "q":
		return true
	case "":
	case "tables":
		a.note("%s", strings.Join(tableNames(), "\n"))
	case "json", "csv", "yaml", "table":
		a.format = render.Format(strings.TrimPrefix(line, "."))
	default:
		a.note(".tables                    list the tables of the state; assets are namespace.name\n" +
			"DESCRIBE tasks;            show the columns of a table\n" +
			".table .json .yaml .csv    choose the output format\n" +
			".exit                      leave")
	}
	return false
}

// lineScanner reads lines of a file or a pipe.
type lineScanner struct{ *bufio.Scanner }

func newLineScanner(r io.Reader) lineScanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, bufio.MaxScanTokenSize), maxStatement)
	return lineScanner{s}
}

// ReadLine implements [lineReader]; it shows no prompt.
func (s lineScanner) ReadLine(string) (string, error) {
	if s.Scan() {
		return s.Text(), nil
	}
	if err := s.Err(); err != nil {
		return "", fmt.Errorf("read statements: %w", err)
	}
	return "", io.EOF
}
