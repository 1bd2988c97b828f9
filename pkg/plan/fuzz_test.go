package plan_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// A plan that can be decoded is valid, and is always encoded as the same bytes. Their hash names the plan.
func FuzzDecode(f *testing.F) {
	for _, r := range []plan.Request{
		{Root: "/p", Assets: weather(), All: true, Partitions: []plan.Selection{days("2012-01-02", "2012-01-03")}},
		{Assets: weather(), Select: keys("raw/weather")},
	} {
		p, err := plan.Build(r)
		require.NoError(f, err)
		data, _, err := p.Encode()
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
		f.Add(bytes.Replace(data, []byte(`"depends_on":["`), []byte(`"depends_on":["x`), 1))
	}
	for _, seed := range []string{
		`{"schema_version":1,"assets":{"a/a":{"sql":"SELECT 1"}},"tasks":[{"task_key":"a/a","asset_key":"a/a"}]}`,
		`{"schema_version":1,"tasks":[{"task_key":"a[*]","kind":"group","depends_on":["a[*]"]}],"groups":{"a":[{}]}}`,
		"", "null", "[]", "{}", `{"schema_version":2}`, `{"schema_version":1,"tasks":[null]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := plan.Decode(data)
		if err != nil {
			require.ErrorContains(t, err, "decode plan: ")
			return
		}
		require.NoError(t, p.Validate())
		stored, sha, err := p.Encode()
		require.NoError(t, err, "a plan that decodes does not encode")
		again, err := plan.Decode(stored)
		require.NoError(t, err)
		twice, shaAgain, err := again.Encode()
		require.NoError(t, err)
		require.Equal(t, string(stored), string(twice))
		require.Equal(t, sha, shaAgain)
		asked, err := p.Fingerprint()
		require.NoError(t, err)
		askedAgain, err := again.Fingerprint()
		require.NoError(t, err)
		require.Equal(t, asked, askedAgain)
	})
}

func FuzzParseSelection(f *testing.F) {
	for _, seed := range []string{
		"date=2025-01-15", "date=2025-01-01..2025-01-31", "date=2025-01-31..2025-01-01", "date=0000-01-01..9999-12-31",
		"date=2025-02-30", "date=", "=2025-01-15", "date=2025-01-01..", "date=..2025-01-01", "date=2025-01-01..2025-01-02..2025-01-03",
		"a=b=2025-01-15", "date=2025-1-5", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := plan.ParseSelection(text)
		if err != nil {
			require.ErrorContains(t, err, "partition selection ")
			return
		}
		if chosen, err := (plan.Calendar{}).Resolve(space.Days("2000-01-01", "2000-12-31"), s); err == nil {
			require.LessOrEqual(t, len(chosen.Values[0]), space.MaxPeriods)
		}
		again, err := plan.ParseSelection(s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}
