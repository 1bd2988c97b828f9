package calendar_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
)

// texts returns the reasons for the clock changes within a period, as text.
func texts(t *testing.T, s *calendar.Schedule, from, to string) []string {
	t.Helper()
	var list []string
	for _, r := range s.Changes(at(t, from), at(t, to), 100) {
		list = append(list, s.Text(&r, "nightly"))
	}
	return list
}

func TestChangesExplainGaps(t *testing.T) {
	spec := calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris"}
	require.Equal(t, []string{
		"2025-03-30T02:30 Europe/Paris does not exist (clocks go from 02:00 to 03:00): gap: shift\n  → 03:00+02:00, 01:00Z",
	}, texts(t, compile(t, spec), "2025-01-01T00:00Z", "2025-10-01T00:00Z"))
	spec.DST.Gap = "skip"
	require.Equal(t, []string{
		"2025-03-30T02:30 Europe/Paris does not exist (clocks go from 02:00 to 03:00): gap: skip\n  → no tick",
	}, texts(t, compile(t, spec), "2025-01-01T00:00Z", "2025-10-01T00:00Z"))
	spec.Cron = "30 * * * *"
	require.Equal(t, []string{
		"2025-03-30T02:30 Europe/Paris does not exist (clocks go from 02:00 to 03:00): gap: every hour\n  → no tick",
	}, texts(t, compile(t, spec), "2025-01-01T00:00Z", "2025-10-01T00:00Z"))
	apia := compile(t, calendar.Spec{Cron: "0 12 * * *", Timezone: "Pacific/Apia"})
	require.Equal(t, []string{
		"2011-12-30T12:00 Pacific/Apia does not exist (clocks go from 2011-12-30T00:00 to 2011-12-31T00:00): gap: shift\n" +
			"  → 2011-12-31T00:00+14:00, 2011-12-30T10:00Z",
	}, texts(t, apia, "2011-12-01T00:00Z", "2012-01-01T00:00Z"))
}

func TestChangesExplainOverlaps(t *testing.T) {
	spec := calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris"}
	for overlap, want := range map[string]string{
		"first": "\n  → 02:30+02:00, 00:30Z",
		"last":  "\n  → 02:30+01:00, 01:30Z",
		"both":  "\n  → 02:30+02:00, 00:30Z\n  → 02:30+01:00, 01:30Z",
	} {
		spec.DST.Overlap = overlap
		require.Equal(t, []string{
			"2025-10-26T02:30 Europe/Paris occurs 2 times (clocks go from 03:00 to 02:00): overlap: " + overlap + want,
		}, texts(t, compile(t, spec), "2025-10-01T00:00Z", "2025-12-01T00:00Z"))
	}
}

func TestExplainAnswersForInstants(t *testing.T) {
	s := compile(t, calendar.Spec{Cron: "15,45 2 * * *", Timezone: "Europe/Paris"})
	gap := at(t, "2025-03-30T01:00Z")
	reasons := s.Explain(gap)
	require.Len(t, reasons, 2)
	require.Equal(t, "2025-03-30T02:15 2025-03-30T02:45", reasons[0].Local+" "+reasons[1].Local)
	require.True(t, calendar.IsTick(reasons, gap))

	second := at(t, "2025-10-26T01:15Z") // the clocks show 02:15 for the second time
	reasons = s.Explain(second)
	require.Len(t, reasons, 1)
	require.Equal(t, calendar.Overlap, reasons[0].Kind)
	require.Equal(t, []time.Time{second}, reasons[0].Skipped)
	require.False(t, calendar.IsTick(reasons, second))

	require.Empty(t, s.Explain(at(t, "2025-10-26T01:16Z")))
	require.Empty(t, s.Explain(at(t, "2025-10-26T01:15Z").Add(time.Second)))
	every := compile(t, calendar.Spec{EverySec: 600})
	require.True(t, calendar.IsTick(every.Explain(second.Add(5*time.Minute)), second.Add(5*time.Minute)))
	require.Empty(t, every.Explain(second))
}

// The text explains a tick with jitter. The jitter of 3m12s (192 seconds) follows from the hash.
func TestTextShowsJitter(t *testing.T) {
	s := compile(t, calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris", JitterSec: 300})
	tick := at(t, "2025-03-30T01:00Z")
	jitter := s.Jitter("nightly", tick)
	require.Equal(t, []string{
		"2025-03-30T02:30 Europe/Paris does not exist (clocks go from 02:00 to 03:00): gap: shift\n" +
			"  → 03:00+02:00, 01:00Z, jitter " + jitter.String() + " → " + tick.Add(jitter).Format(time.TimeOnly) + "Z",
	}, texts(t, s, "2025-01-01T00:00Z", "2025-10-01T00:00Z"))
}

func TestJitterNeverReachesNextTick(t *testing.T) {
	every := compile(t, calendar.Spec{Cron: "* * * * *", Timezone: "Europe/Paris", JitterSec: 300})
	tick, seen := at(t, "2025-03-30T00:00Z"), map[time.Duration]bool{}
	for range 1000 {
		next, ok := every.Next(tick)
		require.True(t, ok)
		due := every.Due("nightly", tick)
		require.False(t, due.Before(tick))
		require.True(t, due.Before(next))
		require.Equal(t, due, every.Due("nightly", tick))
		seen[due.Sub(tick)] = true
		tick = next
	}
	require.Greater(t, len(seen), 50, "jitter takes most of the 60 seconds")
	require.NotEqual(t, every.Jitter("a", tick)+every.Jitter("a", tick.Add(time.Minute)),
		every.Jitter("b", tick)+every.Jitter("b", tick.Add(time.Minute)))
}

func TestMissedHoldsBackJitteredTick(t *testing.T) {
	s := compile(t, calendar.Spec{Cron: "*/10 * * * *", JitterSec: 500})
	from, last := at(t, "2025-06-01T00:00Z"), at(t, "2025-06-01T02:00Z")
	due := s.Due("nightly", last)
	require.True(t, due.After(last), "choose another last tick")
	ticks, dropped := s.Missed("nightly", from, due.Add(-time.Second), 5)
	require.EqualValues(t, 6, dropped)
	require.Equal(t, last.Add(-10*time.Minute), ticks[4])
	ticks, dropped = s.Missed("nightly", from, due, 5)
	require.EqualValues(t, 7, dropped)
	require.Equal(t, last, ticks[4])
	ticks, dropped = s.Missed("nightly", from, due, 0)
	require.Empty(t, ticks)
	require.EqualValues(t, 12, dropped)
}
