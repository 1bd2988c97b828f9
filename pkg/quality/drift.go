package quality

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// JudgeDrift returns the result of a [SchemaDrift] check. The parameter known says whether both lists of columns are
// known; changed says whether the schemas differ.
func (c *Check) JudgeDrift(changed, known bool, before, after []ColumnType) event.CheckResult {
	r := c.result()
	if r.Passed = !changed; r.Passed {
		return r
	}
	r.Failing = 1
	differences := []string{"the columns are not recorded"}
	if known {
		differences = Differences(before, after)
		r.Failing = int64(max(len(differences), 1))
	}
	if len(differences) == 0 {
		differences = []string{"the same columns, in another order or stored in another form"}
	}
	const most = 5
	more := ""
	if len(differences) > most {
		more = " and " + strconv.Itoa(len(differences)-most) + " more"
		differences = differences[:most]
	}
	r.Message = Short("the schema differs from the schema of the newest output: " + strings.Join(differences, ", ") + more)
	return r
}

// Differences describes how the columns of two outputs differ.
func Differences(before, after []ColumnType) (changes []string) {
	was := make(map[string]string, len(before))
	for _, c := range before {
		was[c.Name] = c.Type
	}
	for _, c := range after {
		kind, ok := was[c.Name]
		switch {
		case !ok:
			changes = append(changes, "added "+strconv.Quote(c.Name)+" "+printable(c.Type))
		case kind != c.Type:
			changes = append(changes, strconv.Quote(c.Name)+" changed from "+printable(kind)+" to "+printable(c.Type))
		}
		delete(was, c.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		changes = append(changes, "removed "+strconv.Quote(name)+" "+printable(was[name]))
	}
	return changes
}

// Mixed compares the columns of partitions that a query reads as one table. It describes the columns that have several
// types, and names the columns that some of the partitions lack. Both lists are in the order of the first occurrence.
func Mixed(partitions ...[]ColumnType) (retyped, lacking []string) {
	var names []string
	types, occurs := map[string][]string{}, map[string]int{}
	for _, columns := range partitions {
		for _, c := range columns {
			if occurs[c.Name]++; occurs[c.Name] == 1 {
				names = append(names, c.Name)
			}
			if !slices.Contains(types[c.Name], c.Type) {
				types[c.Name] = append(types[c.Name], c.Type)
			}
		}
	}
	for _, name := range names {
		if kinds := types[name]; len(kinds) > 1 {
			retyped = append(retyped, strconv.Quote(name)+" ("+printable(strings.Join(kinds, ", "))+")")
		}
		if occurs[name] < len(partitions) {
			lacking = append(lacking, strconv.Quote(name))
		}
	}
	return retyped, lacking
}

// printable returns text from a worker with its control characters escaped.
func printable(text string) string { return strings.Trim(strconv.Quote(text), `"`) }
