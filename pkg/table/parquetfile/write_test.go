package parquetfile_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

var (
	arrow = &parquetfile.Arrow{}
	small = &parquetfile.Small{}
)

func TestWriterMatchesArrowOnEveryTable(t *testing.T) {
	t.Parallel()
	for _, d := range state.Declarations() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				rows := tabletest.DrawList(t, d)
				want, err := d.Encode(arrow, rows)
				require.NoError(t, err)
				got, err := d.Encode(small, rows)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "%d and %d bytes", len(want), len(got))
			})
		})
	}
}

// pattern is a row with a column of each type and option.
type pattern struct {
	ID       int32      `col:"id,key"`
	Name     string     `col:"name,key"`
	Word     string     `col:"word,dict"`
	Maybe    string     `col:"maybe,null,dict"`
	Text     string     `col:"text,null"`
	Flag     bool       `col:"flag"`
	Some     bool       `col:"some,null"`
	Count    int32      `col:"count,null"`
	Size     int64      `col:"size"`
	At       event.Time `col:"at,null"`
	Previous string     `col:"run_id,null"`
}

// repeats returns a function that returns random values. Each value is repeated for a random number of calls, which
// may be large.
func repeats(random *rand.Rand, values int) func() int {
	longest := 1 << random.IntN(12)
	value, left := 0, 0
	return func() int {
		if left--; left < 0 {
			value, left = random.IntN(values), random.IntN(longest)
		}
		return value
	}
}

func patterns(random *rand.Rand, n int) []*pattern {
	word, maybe, text := repeats(random, 1+random.IntN(300)), repeats(random, 1+random.IntN(3)), repeats(random, 2)
	flag, some, count, at := repeats(random, 2), repeats(random, 2), repeats(random, 3), repeats(random, 2)
	rows := make([]*pattern, n)
	for i := range rows {
		r := &pattern{
			ID: int32(i) - 5, Word: fmt.Sprint("w", word()), Flag: flag() == 1, Some: some() == 1, //nolint:gosec // small
			Count: int32(count() - 1), Size: random.Int64() - 1<<62, At: event.Time(at() * random.Int()), //nolint:gosec // small
		}
		if m := maybe(); m > 0 {
			r.Maybe = strings.Repeat("é", m)
		}
		if text() == 1 {
			r.Text, r.Previous = fmt.Sprint(random.Uint64()), fmt.Sprint(i%7)
		}
		rows[i] = r
	}
	return rows
}

func TestWriterMatchesArrowOnRunsOfValues(t *testing.T) {
	t.Parallel()
	tab := table.Of[pattern]("patterns")
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		rows := patterns(random, 1+[]int{random.IntN(40), random.IntN(2000), random.IntN(20_000)}[seed%3])
		want, err := tab.Encode(arrow, rows)
		require.NoError(t, err)
		got, err := tab.Encode(small, rows)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "seed %d, %d rows: %d and %d bytes", seed, len(rows), len(want), len(got))
		read, err := tab.Decode(format, got)
		require.NoError(t, err)
		require.Equal(t, rows, read)
	}
}

func TestLargeTextsAreLeftToArrow(t *testing.T) {
	t.Parallel()
	tab := table.Of[pattern]("patterns")
	for what, c := range map[string]struct {
		row   pattern
		small bool
	}{
		"a page of text":         {pattern{Text: strings.Repeat("x", 1<<20-5)}, true},
		"more than a page":       {pattern{Text: strings.Repeat("x", 1<<20-4)}, false},
		"a page of words":        {pattern{Word: strings.Repeat("x", 1<<20-15)}, true},
		"more than a dictionary": {pattern{Word: strings.Repeat("x", 1<<20-14)}, false},
		"a long bound":           {pattern{Name: strings.Repeat("x", 1<<10)}, true},
		"a longer bound":         {pattern{Name: strings.Repeat("x", 1<<10+1)}, false},
		"a bound beyond Arrow's": {pattern{Previous: strings.Repeat("x", 5000)}, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rows := []*pattern{{ID: -1, Word: "a"}, &c.row, {ID: 1, Word: "a"}}
			got, err := tab.Encode(small, rows)
			require.NoError(t, err)
			require.Equal(t, c.small, got != nil)
			data, err := tab.Encode(format, rows)
			require.NoError(t, err)
			want, err := tab.Encode(arrow, rows)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, data))
			read, err := tab.Decode(format, data)
			require.NoError(t, err)
			require.Equal(t, rows, read)
		})
	}
}
