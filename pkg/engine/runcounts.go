package engine

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// RunCounts are the numbers of runs by hour and state.
type RunCounts struct {
	// Hours are the hours, newest first.
	Hours []RunHour `json:"hours"`
	// CountedFrom is the time from which all runs are counted.
	CountedFrom event.Time `json:"counted_from"`
}

// RunHour counts the runs that were requested within an hour.
type RunHour struct {
	From event.Time       `json:"from"`
	Runs map[string]int32 `json:"runs"` // by state
}

// CountRuns counts the runs that were requested in the hours before a time. It examines closed runs newest first, and
// stops after approximately as many closed runs as the parameter "most" says.
func CountRuns(ctx context.Context, snap *snapshot.Snapshot, to time.Time, hours, most int) (RunCounts, error) {
	from := to.Add(-time.Duration(hours) * time.Hour)
	counts := RunCounts{Hours: make([]RunHour, hours), CountedFrom: event.At(from)}
	for i := range counts.Hours {
		counts.Hours[i] = RunHour{From: event.At(to.Add(-time.Duration(i+1) * time.Hour)), Runs: map[string]int32{}}
	}
	page, err := snap.FindRuns(ctx, snapshot.RunQuery{
		Since: ids.AtTime(from), Before: ids.AtTime(to), Most: most,
		Match: func(r snapshot.RunHead) bool {
			counts.Hours[(to.Sub(ids.Time(r.RunID))-1)/time.Hour].Runs[string(r.State)]++
			return false // count the run, but do not return its row
		},
	})
	if page.Next != "" { // older runs were not examined
		counts.CountedFrom = event.At(ids.Time(page.Next[:len(ids.AtTime(to))]).Add(time.Millisecond))
	}
	return counts, err
}
