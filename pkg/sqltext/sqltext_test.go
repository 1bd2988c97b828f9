package sqltext_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/sqltext"
)

func TestTokenFindsCommentsAndLiterals(t *testing.T) {
	for text, want := range map[string]string{
		"a -- b\nc":              "a| |-- b\n|c",
		"a -- b\rc":              "a| |-- b\r|c",
		"--":                     "--",
		"a/* /* */ */b":          "a|/* /* */ */|b",
		"/* /* */":               "/* /* */",
		"'it''s'":                "'it'|'s'",
		`"a""b"`:                 `"a"|"b"`,
		`E'\''x`:                 `E|'\''|x`,
		`aE'\'x`:                 `a|E|'\'|x`,
		`a$E'\'x`:                `a|$|E|'\'|x`,
		`E'a''\''x`:              `E|'a''\''|x`,
		"E'a' 'b\\'x":            "E|'a'| |'b\\'|x",
		"e'a'\n'\\' 'x":          "e|'a'\n'\\' '|x",
		"E'' --'\r\f--'\n'\\''x": "E|'' --'\r\f--'\n'\\''|x",
		"E''/*\n*/'\\'x":         "E|''|/*\n*/|'\\'|x",
		"E''\v\n'\\'x":           "E|''|\v|\n|'\\'|x",
		"'a'\n'\\'x":             "'a'|\n|'\\'|x",
		"$$'$$x":                 "$$'$$|x",
		"$é1$ $$ $é1$x":          "$é1$ $$ $é1$|x",
		"a$$b":                   "a|$|$|b",
		"$1$$":                   "$|1|$|$",
		"'open":                  "'open",
		"\v\t;":                  "\v|\t|;",
		"- - / *":                "-| |-| |/| |*",
		"$a $":                   "$|a| |$",
		"$$open ' /* -- x":       "$$open ' /* -- x",
	} {
		var tokens []string
		for i := 0; i < len(text); {
			end, _ := sqltext.Token(text, i)
			tokens = append(tokens, text[i:end])
			i = end
		}
		require.Equal(t, want, strings.Join(tokens, "|"), "%q", text)
	}
}

func TestTokenReportsBlanks(t *testing.T) {
	for text, want := range map[string]bool{
		" x": true, "\r": true, "-- x": true, "/* x */": true, "-": false, ";": false, "'--'": false, "$$ $$": false, "\u00a0": false,
	} {
		_, blank := sqltext.Token(text, 0)
		require.Equal(t, want, blank, "%q", text)
	}
}

func TestFindForbiddenFindsCalls(t *testing.T) {
	for _, text := range []string{
		"FROM query('SELECT 1')", `FROM system.main."QUERY" ('SELECT 1')`, "FROM json_execute_serialized_sql(x)",
		"FROM query -- a\n('x')", "FROM query--a\r('x')", "FROM query/* a /* b */ ( */('x')", "FROM query\v\f\n('x')",
		"FROM enable_logging(storage = 'file')", "FROM enable_profiling(x)", "CALL disable_profile()", "FROM enable_peg_parser()",
		"SELECT ',' FROM query('x')", "FROM query\u00a0('x')", "FROM query\u3000-- (\r\u200b('x')", "FROM query\ufeff('x')",
		"SELECT 1 /* ' */ AS x\u00a0$$ FROM query('x') -- $$", "SELECT e'a'\n'\\' , ' AS x FROM query('SELECT 1') --'",
		"SELECT e'a' -- c\n'\\' , ' AS x FROM enable_logging(storage = 'file') --'", "SELECT e'a''\\' , ' AS x FROM query('SELECT 1') --'",
	} {
		found := sqltext.FindForbidden(text)
		require.NotNil(t, found, "%q", text)
		require.Equal(t, strings.ToLower(found.Message), "a query may not call "+strings.ToLower(text[found.At:found.At+len(found.Message)-len("a query may not call ()")])+"()")
	}
	require.Equal(t, &sqltext.Forbidden{At: 5, Message: "a query may not call query()", Action: "write the SQL itself"}, sqltext.FindForbidden("FROM Query (x)"))
}

func TestFindForbiddenAcceptsOtherText(t *testing.T) {
	for _, text := range []string{
		"SELECT query, (1) FROM t", "SELECT query AS q FROM (SELECT 'query(1)' AS query)", "FROM query_table('a')", "FROM my_query(1)",
		"SELECT 1 -- the query (of a day)\nFROM t", "/* the query (of a day) */ SELECT 1", "SELECT $$query(1)$$", "SELECT enable_logging FROM t",
		"SELECT E'a''\\' query(1)'", "SELECT E'a'\n'\\' query(1)'",
		"SELECT query\u00a0FROM (SELECT 1 AS query)",
	} {
		require.Nil(t, sqltext.FindForbidden(text), "%q", text)
	}
}
