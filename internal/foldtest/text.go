package foldtest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/servo-orchestration/servo/pkg/state"
)

// Effects returns the rows of all tables except ledger_entries and run_key_conflicts. A group without an effect does
// not change these rows.
func Effects(s *state.State) *state.Rows {
	rows := s.All()
	state.Set[state.Entry](rows, nil)
	return state.Set[state.RunKeyConflict](rows, nil)
}

// Dump returns the rows of [Effects] as text.
func Dump(s *state.State) string { return Text(Effects(s)) }

// Text returns rows with all columns as text.
func Text(rows *state.Rows) string {
	var text strings.Builder
	for d, list := range rows.Lists {
		raw, err := json.MarshalIndent(list, "", " ")
		if err != nil {
			panic(err) // cannot happen: JSON supports the types of all columns
		}
		fmt.Fprintf(&text, "%s: %s\n", d.Name, raw)
	}
	return text.String()
}

// Compare returns the first line in which the texts of rows differ, with the lines around it, or ""
// if the rows are equal.
func Compare(have, want *state.Rows) string {
	if reflect.DeepEqual(have, want) {
		return ""
	}
	return Difference(Text(have), Text(want))
}

// Difference returns the first line in which two texts differ, with the lines around it, or "" if
// the texts are equal.
func Difference(have, want string) string {
	if have == want {
		return ""
	}
	a, b := strings.Split(have, "\n"), strings.Split(want, "\n")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return fmt.Sprintf("line %d\nhave …%s\nwant …%s", i+1, around(a, i), around(b, i))
}

func around(lines []string, i int) string {
	const before, after = 24, 12
	return strings.Join(lines[max(0, min(i, len(lines))-before):min(len(lines), i+after)], "")
}
