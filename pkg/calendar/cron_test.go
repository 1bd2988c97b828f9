package calendar_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
)

func TestCronFormsTickOnTheirDates(t *testing.T) {
	for expression, want := range map[string]string{
		"0 0 L * *":          "01-31 02-28 03-31 04-30",
		"0 0 L-3 * *":        "01-28 02-25 03-28 04-27",
		"0 0 LW * *":         "01-31 02-28 03-31 04-30",
		"0 0 1W * *":         "01-01 02-03 03-03 04-01", // 2025-02-01 is a Saturday
		"0 0 15W * *":        "01-15 02-14 03-14 04-15",
		"0 0 31W 3-8 *":      "03-31 05-30 07-31 08-29",
		"0 0 * * FRIL":       "01-31 02-28 03-28 04-25",
		"0 0 * * mon#2":      "01-13 02-10 03-10 04-14",
		"0 0 * * 1#5":        "03-31 06-30 09-29 12-29",
		"0 0 13 * FRI":       "01-03 01-10 01-13 01-17",
		"0 0 1-7 * 1":        "01-01 01-02 01-03 01-04",
		"0 0 */10 * *":       "01-01 01-11 01-21 01-31",
		"0 0 * JAN-MAR/2 7":  "01-05 01-12 01-19 01-26",
		"0 0 29 2 *":         "2028-02-29 2032-02-29 2036-02-29 2040-02-29",
		"@monthly":           "01-01 02-01 03-01 04-01",
		"@YEARLY":            "01-01 2026-01-01 2027-01-01 2028-01-01",
		"\t0  0 * * fri-sun": "01-03 01-04 01-05 01-10",
		"0 0 * * 5-7":        "01-03 01-04 01-05 01-10",
	} {
		s := compile(t, calendar.Spec{Cron: expression})
		var got []string
		for _, text := range following(s, at(t, "2024-12-31T23:59Z"), 4) {
			got = append(got, strings.TrimPrefix(strings.TrimSuffix(text, "T00:00Z"), "2025-"))
		}
		require.Equal(t, want, strings.Join(got, " "), expression)
	}
}

func TestCronErrorsNamePlaceAndSuggest(t *testing.T) {
	for expression, want := range map[string]string{
		"":                  `column 1: the expression is empty: write "0 0 * * *"`,
		"0 24 * * *":        `hour, column 3: 24 is not between 0 and 23: write "0 0 * * *"`,
		"75 2 * * *":        `minute, column 1: 75 is not between 0 and 59: write "59 2 * * *"`,
		"0 2 0 13 8":        `day of month, column 5: 0 is not between 1 and 31: write "0 2 1 12 7"`,
		"0 0 2 * * *":       `column 1: seconds are not supported: write "0 2 * * *"`,
		"0 0 2 * * ? 2026":  `column 13: years are not supported: use start and end: write "0 2 * * *"`,
		"0 2 * * * 2026":    `column 11: years are not supported: use start and end: write "0 2 * * *"`,
		"0 2 * *":           `day of week, column 8: the expression has 4 of 5 fields: minute, hour, day of month, month, day of week: write "0 2 * * *"`,
		"0 2 ? * MON":       `day of month, column 5: ? is not supported: write "0 2 * * MON"`,
		"0 22-2 * * *":      `hour, column 3: the range 22-2 is reversed: write "0 22-23,0-2 * * *"`,
		"0 2 * * FRI-MON":   `day of week, column 9: the range FRI-MON is reversed: write "0 2 * * FRI-6,0-MON"`,
		"0 2 * * 5-0":       `day of week, column 9: the range 5-0 is reversed: write "0 2 * * 5-7"`,
		"0 2 * * MONDAY":    `day of week, column 9: unknown value "MONDAY": write "0 2 * * MON"`,
		"0 2 * FEV *":       `month, column 7: unknown value "FEV": write "0 2 * FEB *"`,
		"0 2 30 2 *":        `day of month, column 5: no month of the expression has such a day: write "0 2 L 2 *"`,
		"0 2 31W 4,6 *":     `day of month, column 5: no month of the expression has such a day: write "0 2 L 4,6 *"`,
		"*/90 * * * *":      `minute, column 1: the step 90 is longer than the range, so only 0 matches: write "0 * * * *"`,
		"5/15 * * * *":      `minute, column 1: a step needs a range or *: write "5-59/15 * * * *"`,
		"*/0 * * * *":       `minute, column 3: the step "0" is not a positive number: write "* * * * *"`,
		"*,5 * * * *":       `minute, column 1: * in a list makes the rest of the list useless: write "* * * * *"`,
		"1,,2 * * * *":      `minute, column 3: a value is missing: write "1,0,2 * * * *"`,
		"@reboot":           `column 1: @reboot is not supported: a schedule does not belong to a machine that boots: write "@daily"`,
		"@dayly":            `column 1: unknown name @dayly: write "@daily"`,
		"@every 5m":         `column 1: @every is not a cron expression: use the setting every instead of cron: write "0 * * * *"`,
		"@daily 5":          `column 8: nothing can follow @daily: write "@daily"`,
		"0 2 * * MON#6":     `day of week, column 9: a month has the weeks 1 to 5, not "6": write "0 2 * * MONL"`,
		"0 2 * * L":         `day of week, column 9: L needs a day of the week before it: write "0 2 * * SATL"`,
		"0 2 L-31 * *":      `day of month, column 5: "31" is not a number of days between 1 and 30: write "0 2 L * *"`,
		"1-2-3 * * * *":     `minute, column 5: a range has two ends: write "1-2 * * * *"`,
		"ä * * * *":         `minute, column 1: unknown value "ä": write "0 * * * *"`,
		"0 2 ä,* * *":       `day of month, column 5: unknown value "ä": write "0 2 * * *"`,
		"0 0-23/30/2 * * *": `hour, column 3: 0-23/30/2 has two steps: write "0 0 * * *"`,
	} {
		_, err := calendar.Spec{Cron: expression}.Compile()
		if expression == "" {
			_, err = calendar.Spec{Cron: " "}.Compile()
		}
		var invalid *calendar.CronError
		require.True(t, errors.As(err, &invalid), "%q: %v", expression, err)
		require.Equal(t, want, invalid.Error(), expression)
		_, err = calendar.Spec{Cron: invalid.Suggestion}.Compile()
		require.NoError(t, err, expression)
	}
}

func TestSpecErrorsNameField(t *testing.T) {
	day := at(t, "2025-01-01T00:00Z")
	for want, spec := range map[string]calendar.Spec{
		"cron: is missing: write cron or every":                                                                            {},
		"every: has no effect beside cron: remove one of them":                                                             {Cron: "@daily", EverySec: 60},
		"every: must be 1m to 8784h, in whole minutes":                                                                     {EverySec: 61},
		"dst: has no effect beside every, which counts elapsed time: remove dst, or replace every by cron":                 {EverySec: 60, DST: calendar.DST{Gap: "skip"}},
		`timezone: unknown time zone "Europe/Pariss": write Europe/Paris`:                                                  {Cron: "@daily", Timezone: "Europe/Pariss"},
		`timezone: unknown time zone "kolkata": write Asia/Kolkata`:                                                        {Cron: "@daily", Timezone: "kolkata"},
		`timezone: unknown time zone "Local": write an IANA name such as UTC, Europe/Paris or America/New_York`:            {Cron: "@daily", Timezone: "Local"},
		`dst.gap: unknown policy "move": write shift or skip`:                                                              {Cron: "@daily", DST: calendar.DST{Gap: "move"}},
		`dst.overlap: unknown policy "all": write first, last or both`:                                                     {Cron: "@daily", DST: calendar.DST{Overlap: "all"}},
		"jitter: must be between 0s and 24h":                                                                               {Cron: "@daily", JitterSec: 90_000},
		"end: 2025-01-01T00:00:00Z is not after the start: swap them, or remove end":                                       {Cron: "@daily", Start: day, End: day},
		"end: the schedule never ticks between its start and its end":                                                      {Cron: "@daily", Start: day.Add(time.Hour), End: day.Add(2 * time.Hour)},
		"start: 1969-12-31T23:59:59Z is not in the years 1970 to 2199":                                                     {Cron: "@daily", Start: time.Unix(-1, 0)},
		"dst.gap: the schedule never ticks, because clocks in Europe/Paris always skip its local time: write `gap: shift`": {Cron: "30 2 * 3 SUNL", Timezone: "Europe/Paris", DST: calendar.DST{Gap: "skip"}},
	} {
		_, err := spec.Compile()
		require.EqualError(t, err, want)
	}
}

func TestBoundReadsLocalTimes(t *testing.T) {
	for text, want := range map[string]string{
		"2025-01-01":             "2024-12-31T23:00Z",
		"2025-01-01T06:00":       "2025-01-01T05:00Z",
		"2025-01-01T06:00Z":      "2025-01-01T06:00Z",
		"2025-01-01T06:00-05:00": "2025-01-01T11:00Z",
		"2025-03-30T02:30":       "2025-03-30T01:00Z",
		"2025-10-26T02:30":       "2025-10-26T00:30Z",
	} {
		got, err := calendar.Bound(text, "Europe/Paris")
		require.NoError(t, err)
		require.Equal(t, at(t, want), got, text)
	}
	_, err := calendar.Bound("tomorrow", "Europe/Paris")
	require.EqualError(t, err, `"tomorrow" is not a date or a time: write 2026-01-31, 2026-01-31T06:00 or 2026-01-31T06:00Z`)
	_, err = calendar.Bound(strings.Repeat("2025", 1000), "UTC")
	require.ErrorContains(t, err, `2025"… is not a date`)
	_, err = calendar.Zone(strings.Repeat("Europe/Paris", 100_000))
	require.ErrorContains(t, err, `Euro"…: write an IANA name`)
	_, err = calendar.Bound("1969-01-01", "UTC")
	require.ErrorContains(t, err, "not in the years 1970 to 2199")
}

// Every text is either an expression with ticks in ascending order, or causes an error with a valid suggestion.
func FuzzCron(f *testing.F) {
	for _, seed := range []string{
		"8p A- Dx1NJ\xb0\xb0W", "0 0 * * ſat,\xff#1,ßL", "30 2 * * 1-5", "*/15 0-6,22,23 L,15W,L-3 JAN-DEC/3 MON#2,FRIL", "@daily", "0 0 30 2 *", "60 24 32 13 8", "@every 1m",
		"1-2-3/4/5 ? LW/2 * *", "0 0 1 1 * 2026", "ä , - / #L", "*/1 */1 */1 */1 */1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		s, err := calendar.Spec{Cron: expression, Timezone: "Australia/Lord_Howe"}.Compile()
		if err == nil {
			after := at(t, "2025-01-01T00:00Z")
			for range 3 {
				next, ok := s.Next(after)
				require.True(t, ok && next.After(after))
				require.True(t, calendar.IsTick(s.Explain(next), next))
				after = next
			}
			return
		}
		var invalid *calendar.CronError
		if !errors.As(err, &invalid) {
			require.Empty(t, expression)
			return
		}
		require.LessOrEqual(t, invalid.Column, len(expression)+1)
		require.Positive(t, invalid.Column)
		_, err = calendar.Spec{Cron: invalid.Suggestion}.Compile()
		require.NoError(t, err, "%q suggests %q", expression, invalid.Suggestion)
	})
}
