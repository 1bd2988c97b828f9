package compactor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
)

func TestListingsLag(t *testing.T) {
	noon := event.At(time.Unix(1_800_000_000, 0))
	at := func(minutes int) event.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	type noted struct{ caughtUp, wakeup, now event.Time }
	for name, tc := range map[string]struct {
		noted []noted
		now   event.Time
		want  time.Duration
	}{
		"nothing is known":                       {nil, at(0), 0},
		"an idle domain needs no listing":        {[]noted{{at(-600), 0, at(0)}}, at(1), 0},
		"new work after a day":                   {[]noted{{at(-1440), 0, at(-1)}, {at(-1440), at(9), at(0)}}, at(2), 3 * time.Minute},
		"work that waits for a timer":            {[]noted{{at(-60), at(120), at(0)}}, at(1), 0},
		"a listing ended the lag":                {[]noted{{at(-30), at(-9), at(-9)}, {at(0), at(10), at(0)}}, at(1), time.Minute},
		"the wakeup moved without a listing":     {[]noted{{at(-60), at(-40), at(-40)}, {at(-60), at(10), at(0)}}, at(1), 51 * time.Minute},
		"a listing, and work that waits":         {[]noted{{at(-60), at(-40), at(-40)}, {at(0), at(500), at(0)}}, at(4), 0},
		"knowledge that is too old":              {[]noted{{at(-60), at(-40), at(-40)}}, at(0), 0},
		"a rebuild lists an earlier time":        {[]noted{{at(-1), at(9), at(-1)}, {at(-20), at(5), at(0)}}, at(1), 6 * time.Minute},
		"the clock was set back":                 {[]noted{{at(30), at(40), at(30)}}, at(0), 0},
		"the domain came to rest before a sweep": {[]noted{{at(-60), at(-9), at(-9)}, {at(-60), 0, at(0)}}, at(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var l listings
			for _, n := range tc.noted {
				l.note(n.caughtUp, n.wakeup, n.now)
			}
			require.Equal(t, tc.want, l.lag(tc.now))
		})
	}
}
