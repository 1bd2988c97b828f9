package space_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/space"
)

// A clause that CheckClause rejects must fail at any time: it cannot be resolved, or it selects undeclared values.
func TestCheckClauseRejectsOnlyWhatNeverResolves(t *testing.T) {
	rejected, accepted := 0, 0
	for _, d := range []space.Dimension{
		{Name: "d", Kind: space.Daily, Start: "2025-02-10", End: "2025-04-20"},
		{Name: "d", Kind: space.Daily, Start: "2025-02-10"},
		{Name: "d", Kind: space.Hourly, Start: "2025-02-10", Timezone: "Europe/Paris"},
		{Name: "d", Kind: space.Weekly, Start: "2025-02-10"},
		{Name: "d", Kind: space.Monthly, Start: "2025-02", End: "2025-06"},
		{Name: "d", Kind: space.Static, Values: []string{"eu", "us"}},
		{Name: "d", Kind: space.Dynamic, Set: "customers"},
	} {
		s := space.New(d)
		ends := []string{
			"2025-01-31", "2025-02-10", "2025-02", "2025-03-30T02:00", "2025-03-30T01:00Z", "2025-03-03", "2025-04-20", "2025", "2026", "latest", "latest-3", "latestt",
			"today", "yesterday", "eu", "xx", "foo",
		}
		texts := append([]string{"*"}, ends...)
		for _, first := range ends {
			texts = append(texts, first+"..", ".."+first, first+",eu", first+",2025-03-03")
			for _, last := range ends {
				texts = append(texts, first+".."+last)
			}
		}
		for _, text := range texts {
			selection, err := space.ParseSelection("d=" + text)
			if err != nil {
				continue
			}
			err = d.CheckClause(selection.Clauses[0], calendar.Zone)
			if err == nil {
				accepted++
				continue
			}
			rejected++
			for _, now := range []time.Time{day(2025, 3, 20), day(2025, 6, 1), day(2027, 1, 1)} {
				c := space.Calendar{Now: now, Future: true, Zone: calendar.Zone}
				chosen, failed := c.Resolve(s, selection)
				if failed != nil {
					continue
				}
				require.ErrorAs(t, err, new(*space.UndeclaredError), "%s %s", d.Kind, text)
				members, failed := c.Members(s)
				require.NoError(t, failed)
				declared := len(chosen.Values[0]) > 0
				for _, v := range chosen.Values[0] {
					declared = declared && members.HasValue(0, v)
				}
				require.False(t, declared, "%s %s at %s: %v", d.Kind, text, now, err)
			}
		}
	}
	require.Greater(t, rejected, 100)
	require.Greater(t, accepted, 100)
}

func day(year int, month time.Month, day int) time.Time {
	return time.Date(year, month, day, 12, 0, 0, 0, time.UTC)
}
