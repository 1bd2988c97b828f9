package sqltext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/sqltext"
)

func TestParseTypeReadsNestedTypes(t *testing.T) {
	scalar := func(name string) sqltext.Type { return sqltext.Type{Name: name} }
	decimal := sqltext.Type{Name: "DECIMAL", Width: 9, Scale: 2}
	for text, want := range map[string]sqltext.Type{
		"BIGINT":                           scalar("BIGINT"),
		"TIMESTAMP WITH TIME ZONE":         scalar("TIMESTAMP WITH TIME ZONE"),
		"DECIMAL(9,2)":                     decimal,
		"DECIMAL(9, 2)[]":                  {Name: "LIST", Parts: []sqltext.Type{decimal}},
		"INTEGER[3]":                       {Name: "LIST", Parts: []sqltext.Type{scalar("INTEGER")}},
		"ENUM('a', 'b')":                   scalar("ENUM"),
		"MAP(VARCHAR, DATE)":               {Name: "MAP", Parts: []sqltext.Type{scalar("VARCHAR"), scalar("DATE")}},
		`STRUCT("a ""(,b" BIGINT, c DATE)`: {Name: "STRUCT", Fields: []string{`a "(,b`, "c"}, Parts: []sqltext.Type{scalar("BIGINT"), scalar("DATE")}},
		"STRUCT(a MAP(VARCHAR, DECIMAL(9,2)[]))[]": {Name: "LIST", Parts: []sqltext.Type{{
			Name: "STRUCT", Fields: []string{"a"}, Parts: []sqltext.Type{{
				Name: "MAP", Parts: []sqltext.Type{scalar("VARCHAR"), {Name: "LIST", Parts: []sqltext.Type{decimal}}},
			}},
		}}},
		`UNION(n INTEGER, "d ,)" DECIMAL(9,2)[])`: {Name: "UNION", Fields: []string{"n", "d ,)"}, Members: []sqltext.Type{
			scalar("INTEGER"), {Name: "LIST", Parts: []sqltext.Type{decimal}},
		}},
		"broken(": scalar("broken("),
	} {
		require.Equal(t, want, sqltext.ParseType(text), text)
	}
}
