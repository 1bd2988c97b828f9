package query_test

import (
	"database/sql"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// If DuckDB executes a text, it must call query() if and only if FindForbidden finds the call in the text.
func TestFindForbiddenReadsLiteralsAsDuckDB(t *testing.T) {
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	pieces := []string{"'", "'", "'", "e'", "b'", `\`, `\'`, `\'`, "\n", "\r", " ", "\f", "\v", "-- c", "--'", "/*'*/", ",", "1."}
	tails := []string{"", " --'", "'", "\n'"}
	called, hidden := 0, 0
	for range 20_000 {
		text := "SELECT e'"
		for range random.IntN(9) {
			text += pieces[random.IntN(len(pieces))]
		}
		text += " AS x FROM query('FROM missing')" + tails[random.IntN(len(tails))]
		rows, err := db.QueryContext(t.Context(), text)
		switch {
		case err == nil: // the call is part of a literal or a comment
			require.NoError(t, rows.Err())
			require.NoError(t, rows.Close())
			require.Nil(t, sqltext.FindForbidden(text), "%q", text)
			hidden++
		case strings.Contains(err.Error(), "Table with name missing does not exist"):
			require.NotNil(t, sqltext.FindForbidden(text), "%q", text)
			called++
		}
	}
	require.Greater(t, called, 100)
	require.Greater(t, hidden, 100)
}
