package automator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// advance appends the instants that schedules wait for.
func (a *Automator) advance(ctx context.Context, rows []*state.Schedule) error {
	var items []event.CalendarItem
	instants := 0
	flush := func() error {
		if len(items) == 0 {
			return nil
		}
		err := a.engine.AdvanceCalendar(ctx, items)
		items, instants = nil, 0
		return err
	}
	for _, row := range rows {
		item := answer(row)
		if len(items) == event.MaxSchedules || instants+len(item.Missed) > event.MaxInstants {
			if err := flush(); err != nil {
				return err
			}
		}
		items, instants = append(items, item), instants+len(item.Missed)
	}
	return flush()
}

// answer returns the calendar's answer about a schedule. It depends on the row alone, so all automators
// compute the same answer, whatever their clocks say.
func answer(row *state.Schedule) event.CalendarItem {
	item := event.CalendarItem{
		Schedule: row.ScheduleID, Version: row.Version, After: row.Cursor, Through: row.Cursor, Calendar: calendar.ZoneVersion,
	}
	var spec event.Schedule
	if err := json.Unmarshal([]byte(row.Spec), &spec); err != nil {
		item.Error = limited(fmt.Sprintf("read the definition: %v", err))
		return item
	}
	s, err := calendar.Compile(&spec)
	if err != nil {
		item.Error = limited(err.Error())
		return item
	}
	after, by := row.Cursor.Time(), row.WantedAt.Time()
	ticks, dropped := s.Missed(spec.Name, after, by, fold.MostMissed(&spec))
	for _, tick := range ticks {
		item.Missed = append(item.Missed, event.At(tick))
	}
	if n := len(item.Missed); n > 0 {
		item.Through, after = item.Missed[n-1], ticks[n-1]
	}
	taken := fold.Taken(&spec, item.Missed, row.WantedAt)
	item.Dropped = dropped + int64(len(item.Missed)-len(taken))
	item.Missed = taken
	if next, ok := s.Next(after); ok {
		item.Next, item.NextAt = event.At(next), event.At(s.Due(spec.Name, next))
	}
	return item
}

// maxDefinedBytes limits the total size of the definitions in one event, in bytes.
const maxDefinedBytes = 256 << 10

// define brings the rows of schedules in line with the deployed release. It appends the definitions
// that differ, as many as fit into one event.
func (a *Automator) define(ctx context.Context, snap *snapshot.Snapshot, d *state.Deployment, project *project, err error) error {
	var defined []event.Schedule
	if d.Schedules != "" {
		if err != nil {
			return err
		}
		defined = project.release.Schedules
	}
	p := &event.SchedulesDefined{DeployID: d.DeployID, Last: true}
	names, size := make(map[string]bool, len(defined)), 0
	for i := range defined {
		s := &defined[i]
		names[s.Name] = true
		row := snap.State.Schedules.Get(s.Name)
		if row != nil && row.RemovedAt == 0 && row.Version == s.DefinitionVersion() {
			continue
		}
		raw, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode schedule %s: %w", s.Name, err)
		}
		if size += len(raw); len(p.Set) == event.MaxSchedules || len(p.Set) > 0 && size > maxDefinedBytes {
			p.Last = false
			break
		}
		p.Set = append(p.Set, *s)
	}
	if p.Last { // names contains every declared schedule: remove the rows of all others
		for row := range snap.State.Schedules.All {
			switch {
			case row.RemovedAt != 0 || names[row.ScheduleID]:
			case len(p.Remove) == event.MaxInstants:
				p.Last = false
			default:
				p.Remove = append(p.Remove, row.ScheduleID)
			}
		}
	}
	return a.engine.DefineSchedules(ctx, p)
}

// attempts holds the time at which an automator last handled each piece of work, by key and version of the row.
// Work that is still in the state afterwards has failed. The automator repeats it after retryAfter, not
// immediately.
type attempts map[string]time.Time

// retryAfter is the delay before work that had no effect is repeated.
const retryAfter = 10 * time.Second

// begin reports whether the work may be handled now: it returns false if the work was handled less than retryAfter ago.
// If it returns true, it has recorded that the work is handled now.
func (m attempts) begin(key string, seq int64, now time.Time) bool {
	key = fmt.Sprintf("%s#%d", key, seq)
	if at, handled := m[key]; handled && now.Sub(at) < retryAfter {
		return false
	}
	m[key] = now
	return true
}

// forget removes the work that was handled longer ago than retryAfter.
func (m attempts) forget(now time.Time) {
	for key, at := range m {
		if now.Sub(at) >= retryAfter {
			delete(m, key)
		}
	}
}
