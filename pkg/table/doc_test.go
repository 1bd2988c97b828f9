package table_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// documented returns the columns under each heading of docs/format/tables.md.
func documented(t *testing.T) map[string][]table.Column {
	t.Helper()
	text, err := os.ReadFile("../../docs/format/tables.md")
	require.NoError(t, err)
	sections := map[string][]table.Column{}
	heading := ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
			heading = name
		}
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		require.NotEmpty(t, cells[5], "%s.%s has no meaning", heading, cells[1])
		columnType := table.Type(cells[2])
		if columnType == "TIMESTAMPTZ" {
			columnType = table.Timestamp
		}
		sections[heading] = append(sections[heading], table.Column{
			Name: strings.Trim(cells[1], "`"), Type: columnType, Key: cells[3] != "", Nullable: cells[4] == "yes",
		})
	}
	return sections
}

func TestDocumentListsEveryColumn(t *testing.T) {
	t.Parallel()
	sections := documented(t)
	every := sections["Columns of every table"]
	require.Len(t, every, 5)
	for _, d := range state.Declarations() {
		var columns []table.Column
		for _, c := range d.Columns {
			columns = append(columns, table.Column{Name: c.Name, Type: c.Type, Key: c.Key, Nullable: c.Nullable})
		}
		require.Equal(t, columns, append(sections[d.Name], every...), d.Name)
	}
	require.Len(t, sections, 1+len(state.Declarations()), "the document describes an unknown table")
}
