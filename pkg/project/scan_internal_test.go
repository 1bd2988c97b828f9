package project

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTrimQueryKeepsOnlyTheStatement(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		" ;; -- only\n/* a /* b */ c */":        "",
		"SELECT 1":                              "SELECT 1",
		"-- first\n SELECT 1 -- and\n; -- last": "SELECT 1",
		"SELECT ';--' ;":                        "SELECT ';--'",
		`SELECT "a;b" /* x */ ; /* y`:           `SELECT "a;b"`,
		"SELECT $$;-- $$;":                      "SELECT $$;-- $$",
		"SELECT $a$ $$; $a$;":                   "SELECT $a$ $$; $a$",
		`SELECT E'it\'s; --' ; --`:              `SELECT E'it\'s; --'`,
		`SELECT date'x\';`:                      `SELECT date'x\'`,
		"SELECT 'it''s;';":                      "SELECT 'it''s;'",
		"SELECT 1; SELECT 2;":                   "SELECT 1; SELECT 2",
		"SELECT 'open; --":                      "SELECT 'open; --",
		"SELECT x$1 ;":                          "SELECT x$1",
		"SELECT $1 ;":                           "SELECT $1",
		"SELECT a FROM t -- all\rWHERE a > 1\r": "SELECT a FROM t -- all\rWHERE a > 1",
	} {
		got, start := trimQuery(text)
		require.Equal(t, want, got, "%q", text)
		require.True(t, strings.HasPrefix(text[start:], got), "%q", text)
	}
}

func TestTrimQueryIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{
			"a", " ", "\n", "\r", ";", "--", "/*", "*/", "'", `"`, "$$", "$t$", "E'", `\`, "é",
		})).Draw(t, "text"), "")
		query, start := trimQuery(text)
		if !strings.HasPrefix(text[start:], query) {
			t.Fatalf("%q is not in %q at %d", query, text, start)
		}
		if again, _ := trimQuery(query); again != query {
			t.Fatalf("%q becomes %q, then %q", text, query, again)
		}
	})
}
