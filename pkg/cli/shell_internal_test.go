package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// typed types keys into a shell on a terminal, and returns the executed statements and the
// output.
func typed(t *testing.T, past *history, words []string, keys string) (statements []string, screen string) {
	t.Helper()
	var out strings.Builder
	editor := newLineEditor(strings.NewReader(keys), &out, editing{
		width:   80,
		rawMode: func() (func() error, error) { return func() error { return nil }, nil },
		history: past,
		words:   func() []string { return words },
	})
	sh := &shell{
		lines: editor, interactive: true, remember: past.append, report: func(err error) { out.WriteString(err.Error()) },
		command: func(line string) bool { return line == ".exit" },
		execute: func(_ context.Context, sql string) error {
			statements = append(statements, strings.TrimSpace(sql))
			if strings.Contains(sql, "wrong") {
				return errors.New("no such thing")
			}
			return nil
		},
	}
	require.NoError(t, sh.run(t.Context()))
	return statements, out.String()
}

const (
	up    = "\x1b[A"
	left  = "\x1b[D"
	ctrlC = "\x03"
	tab   = "\t"
)

func TestShellRecallsAndEditsStatements(t *testing.T) {
	t.Parallel()
	past := &history{}
	got, _ := typed(t, past, nil, "FROM runs\rLIMIT 1;\r"+up+left+"0;"+"\x7f"+"\r"+".exit\r"+"FROM never;\r")
	require.Equal(t, []string{"FROM runs\nLIMIT 1;", "FROM runs LIMIT 10;"}, got)
	require.Equal(t, []string{"FROM runs LIMIT 1;", "FROM runs LIMIT 10;"}, past.lines)
}

func TestShellCtrlCDiscardsTheStatement(t *testing.T) {
	t.Parallel()
	got, _ := typed(t, &history{}, nil, "FROM runs\rWHERE oops"+left+left+ctrlC+"FROM tasks;\r")
	require.Equal(t, []string{"FROM tasks;"}, got)
}

func TestShellContinuesAfterAnError(t *testing.T) {
	t.Parallel()
	got, screen := typed(t, &history{}, nil, "wrong;\rFROM tasks;\r")
	require.Equal(t, []string{"wrong;", "FROM tasks;"}, got)
	require.Contains(t, screen, "no such thing")
}

func TestShellTabCompletesNames(t *testing.T) {
	t.Parallel()
	names := []string{"tasks", "clean.daily", "clean.monthly", "runs"}
	got, screen := typed(t, &history{}, names, "FROM cl"+tab+"d"+tab+";\rFROM clean."+tab+"m"+tab+";\rFROM x"+tab+";\r")
	require.Equal(t, []string{"FROM clean.daily;", "FROM clean.monthly;", "FROM x;"}, got)
	require.Contains(t, screen, "clean.daily  clean.monthly")
}

func TestShellStopsAtTheFirstErrorOfAFile(t *testing.T) {
	t.Parallel()
	executed := 0
	failed := errors.New("no such thing")
	sh := &shell{
		lines: newLineScanner(strings.NewReader("FROM a;\nFROM b;\n")), remember: func(string) {},
		execute: func(context.Context, string) error { executed++; return failed },
	}
	require.ErrorIs(t, sh.run(t.Context()), failed)
	require.Equal(t, 1, executed)
}

func TestShellIgnoresSemicolonsInLiteralsAndComments(t *testing.T) {
	t.Parallel()
	const file = "-- the first report;\n\nFROM a -- all;\nWHERE b = 'c;\n'';'; -- done;\n/* nothing;\n;\n*/\nSELECT $$;\n$$; SELECT 1;\n;\n-- the end\n"
	var executed []string
	sh := &shell{
		lines: newLineScanner(strings.NewReader(file)), remember: func(string) {}, command: func(string) bool { return false },
		execute: func(_ context.Context, sql string) error { executed = append(executed, sql); return nil },
	}
	require.NoError(t, sh.run(t.Context()))
	require.Equal(t, []string{
		"-- the first report;\n\nFROM a -- all;\nWHERE b = 'c;\n'';'; -- done;\n",
		"/* nothing;\n;\n*/\nSELECT $$;\n$$; SELECT 1;\n",
	}, executed)
}

// A session reads only the assets that its statements name.
func TestStatementsOfAFileAreKnownInAdvance(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "report.sql")
	for text, want := range map[string]string{
		"FROM a.b;\nFROM c.d;\n":                 "FROM a.b;\nFROM c.d;\n",
		"":                                       "",
		strings.Repeat("FROM a.b;\n", 1_000_000): "", // larger than the limit of the function
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		file, err := os.Open(name)
		require.NoError(t, err)
		a := &app{Env: Env{Stdin: file}}
		got, err := a.statementsOnStdin()
		require.NoError(t, err)
		require.Equal(t, want, got)
		all, err := io.ReadAll(a.Stdin)
		require.NoError(t, err)
		require.Equal(t, text, string(all))
		require.NoError(t, file.Close())
	}
	a := &app{Env: Env{Stdin: strings.NewReader("FROM a.b")}}
	got, err := a.statementsOnStdin()
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestShellRejectsAStatementBeyondTheLimit(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", maxStatement/2) + "\n"
	sh := &shell{lines: newLineScanner(strings.NewReader(line + line + line))}
	require.ErrorContains(t, sh.run(t.Context()), "is longer than")
}

func TestHistoryIsSharedBetweenShells(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servo", "query_history")
	a, err := openHistory(path)
	require.NoError(t, err)
	b, err := openHistory(path)
	require.NoError(t, err)
	a.append("FROM runs;")
	a.append("FROM runs;")
	b.append("SELECT 1 -- one\n, 2;")
	require.NoError(t, a.save())
	require.NoError(t, b.save())
	require.NoError(t, b.save())

	again, err := openHistory(path)
	require.NoError(t, err)
	require.Equal(t, []string{"FROM runs;", "SELECT 1 -- one", ", 2;"}, again.lines)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestHistoryKeepsTheNewestStatements(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "query_history")
	h, err := openHistory(path)
	require.NoError(t, err)
	for i := range maxHistory + 10 {
		h.append(strings.Repeat("x", i+1))
	}
	require.NoError(t, h.save())
	again, err := openHistory(path)
	require.NoError(t, err)
	require.Len(t, again.lines, maxHistory)
	require.Equal(t, strings.Repeat("x", 11), again.At(maxHistory-1))
}

func TestHistoryThatCannotBeReadStaysInMemory(t *testing.T) {
	t.Parallel()
	h, err := openHistory(t.TempDir()) // a folder cannot be a history file
	require.ErrorContains(t, err, "read the history of the query shell")
	h.append("FROM runs;")
	require.NoError(t, h.save())
	require.Equal(t, 1, h.Len())
}

func TestLineScannerReportsTheEnd(t *testing.T) {
	t.Parallel()
	s := newLineScanner(strings.NewReader("a\nb"))
	for _, want := range []string{"a", "b"} {
		line, err := s.ReadLine("")
		require.NoError(t, err)
		require.Equal(t, want, line)
	}
	_, err := s.ReadLine("")
	require.ErrorIs(t, err, io.EOF)
}
