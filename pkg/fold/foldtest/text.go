package foldtest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/state"
)

// Dump is every row but those of ledger_entries and run_key_conflicts, as text:
// what a group that does not take effect leaves as it was.
func Dump(s *state.State) string {
	rows := s.All()
	rows.Entries, rows.Conflicts = nil, nil
	return Text(rows)
}

// Text is rows, every column of them, as text to compare.
func Text(rows *state.Rows) string {
	raw, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		panic(err) // rows are made of what JSON has
	}
	return string(raw)
}

// Difference is the first line in which two texts differ, with the rows that
// they are in; "" if they are the same.
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
