package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ErrPaused reports that a schedule is paused.
var ErrPaused = errors.New("the schedule is paused")

// Schedule is a schedule of the deployed release, with the number of its ticks in each state.
type Schedule struct {
	Name       string         `json:"schedule"`
	Definition event.Schedule `json:"definition"`
	// Status is "active", "paused", "ended", "due" or "error".
	Status string `json:"status"`
	// Next is the next instant. NextAt is the time of its tick, which includes jitter.
	Next     event.Time `json:"next,omitempty,omitzero"`
	NextAt   event.Time `json:"next_at,omitempty,omitzero"`
	Cursor   event.Time `json:"cursor,omitempty,omitzero"`
	PausedAt event.Time `json:"paused_at,omitempty,omitzero"`
	PausedBy string     `json:"paused_by,omitempty"`
	Reason   string     `json:"pause_reason,omitempty"`
	Error    string     `json:"error,omitempty"`
	Calendar string     `json:"calendar,omitempty"`
	Failures int32      `json:"failures,omitempty"`
	// Active are the live runs of the schedule, and its requests that will become runs. Buffered is the number of ticks
	// that wait until these have ended.
	Active   []string `json:"active,omitempty"`
	Buffered int      `json:"buffered,omitempty"`
	// LastRun is the newest run. Started, Skipped and Dropped count the ticks of the schedule that ended in these ways.
	LastRun      string `json:"last_run,omitempty"`
	LastRunState string `json:"last_run_state,omitempty"`
	Started      int64  `json:"ticks_started"`
	Skipped      int64  `json:"ticks_skipped"`
	Dropped      int64  `json:"ticks_dropped"`
}

// scheduleOf converts a row of table schedules.
func scheduleOf(s *state.State, row *state.Schedule) (Schedule, error) {
	x := Schedule{
		Name: row.ScheduleID, Status: scheduleStatus(row), Next: row.Next, NextAt: row.NextAt, Cursor: row.Cursor,
		PausedAt: row.PausedAt, PausedBy: row.PausedBy, Reason: row.Reason, Error: row.Error, Calendar: row.Calendar, Failures: row.Failures,
		LastRun: row.LastRun, Started: row.TicksStarted, Skipped: row.TicksSkipped, Dropped: row.TicksDropped,
	}
	runs, requests := s.ActiveOf(row.ScheduleID)
	x.Active = slices.Concat(runs, requests)
	_, x.Buffered = s.BufferedOf(row.ScheduleID)
	if run := s.Runs.Get(row.LastRun); run != nil {
		x.LastRunState = string(run.State)
	}
	if err := json.Unmarshal([]byte(row.Spec), &x.Definition); err != nil {
		return x, fmt.Errorf("read schedule %s: %w", row.ScheduleID, err)
	}
	return x, nil
}

func scheduleStatus(row *state.Schedule) string {
	switch {
	case row.Paused:
		return "paused"
	case row.Error != "":
		return "error"
	case row.WantedAt != 0:
		return "due"
	case row.Next == 0:
		return "ended"
	}
	return "active"
}

// Schedules returns the schedules of the deployed release, by name.
func Schedules(s *state.State) ([]Schedule, error) {
	all := []Schedule{}
	for row := range s.Schedules.All {
		if row.RemovedAt != 0 {
			continue
		}
		x, err := scheduleOf(s, row)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// FindSchedule returns a schedule of the deployed release.
func FindSchedule(s *state.State, name string) (Schedule, error) {
	row := s.Schedules.Get(name)
	if row != nil && row.RemovedAt == 0 {
		return scheduleOf(s, row)
	}
	var names []string
	for other := range s.Schedules.All {
		if other.RemovedAt == 0 {
			names = append(names, other.ScheduleID)
		}
	}
	switch near := plan.Suggest(name, names); {
	case s.SchedulesPending() != nil && s.SchedulesPending().Schedules != "":
		return Schedule{}, fmt.Errorf("schedule %q: %w: the schedules of the deployed release are not active yet: start `servo dev`, which activates them", name, ErrNotFound)
	case row != nil:
		return Schedule{}, fmt.Errorf("schedule %q: %w: a deployment removed it at %s", name, ErrNotFound, row.RemovedAt)
	case near != "":
		return Schedule{}, fmt.Errorf("schedule %q: %w: did you mean %s?", name, ErrNotFound, near)
	case len(names) == 0:
		return Schedule{}, fmt.Errorf("schedule %q: %w: the deployed release has no schedules: start `servo dev`, or deploy the project", name, ErrNotFound)
	}
	return Schedule{}, fmt.Errorf("schedule %q: %w: list the schedules with `servo schedules`", name, ErrNotFound)
}

// Tick is an instant of a schedule, with its state and its run.
type Tick struct {
	ID      string            `json:"tick_id"`
	Logical event.Time        `json:"logical"`
	Kind    string            `json:"kind"`
	Outcome state.TickOutcome `json:"outcome"`
	// RunState is the state of the run, if it is live or ended recently.
	RunID     string     `json:"run_id,omitempty"`
	RunState  string     `json:"run_state,omitempty"`
	Detail    string     `json:"detail,omitempty"`
	Calendar  string     `json:"calendar,omitempty"`
	RequestID string     `json:"request_id,omitempty"`
	DecidedAt event.Time `json:"decided_at"`
}

// Ticks returns the newest ticks of a schedule, newest first.
func Ticks(ctx context.Context, snap *snapshot.Snapshot, name string, limit int) ([]Tick, error) {
	if _, err := FindSchedule(snap.State, name); err != nil {
		return nil, err
	}
	rows, err := snap.Ticks(ctx, name, limit)
	if err != nil {
		return nil, err
	}
	ticks := make([]Tick, len(rows))
	for i, row := range rows {
		t := Tick{
			ID: row.TickID, Logical: row.Logical, Kind: row.Kind, Outcome: row.Outcome, RunID: row.RunID, Detail: row.Detail,
			Calendar: row.Calendar, RequestID: row.RequestID, DecidedAt: row.DecidedAt,
		}
		if run := snap.State.Runs.Get(row.RunID); run != nil {
			t.RunState = string(run.State)
		}
		if r := snap.State.Requests.Get(row.RequestID); t.Detail == "" && r != nil && r.ErrorMessage != "" && !r.State.Ended() {
			t.Detail = fmt.Sprintf("will be planned again at %s: %s", r.NextAt, view.Problem(r.ErrorCode, r.ErrorMessage))
		}
		ticks[i] = t
	}
	return ticks, nil
}

// CommandSchedule applies a command to a schedule, and returns the schedule.
func (e *Engine) CommandSchedule(ctx context.Context, p *event.AutomationCommand) (Schedule, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return Schedule{}, err
	}
	if _, err := FindSchedule(snap.State, p.Name); err != nil {
		return Schedule{}, err
	}
	row := snap.State.Schedules.Get(p.Name)
	if id, err := e.repeated(snap); err != nil || id != "" {
		return scheduleAfter(snap, p.Name, err)
	}
	if err := e.outdated(row.EditTag()); err != nil {
		return Schedule{}, fmt.Errorf("%s schedule %s: %w", p.Verb, p.Name, err)
	}
	if row.CommandID != "" {
		e.cfg.IDs.Observe(row.CommandID) // the fold ignores a command whose id is lower than the id in the row
	}
	p.CommandID, p.Target = e.cfg.IDs.New(), event.TargetSchedule
	e.condition(p)
	snap, group, err := e.append(ctx, "", p)
	if err != nil {
		return Schedule{}, fmt.Errorf("%s schedule %s: %w", p.Verb, p.Name, err)
	}
	if row := groupRow(snap, group); row != nil && row.Outcome == state.Stale {
		return Schedule{}, fmt.Errorf("%s schedule %s: %s", p.Verb, p.Name, row.Detail)
	}
	if row := snap.State.Schedules.Get(p.Name); row != nil {
		if err := e.unmet(snap, p, group, row.CommandID, row.EditTag()); err != nil {
			return Schedule{}, fmt.Errorf("%s schedule %s: %w", p.Verb, p.Name, err)
		}
	}
	return FindSchedule(snap.State, p.Name)
}

func scheduleAfter(snap *snapshot.Snapshot, name string, err error) (Schedule, error) {
	if err != nil {
		return Schedule{}, err
	}
	return FindSchedule(snap.State, name)
}

// groupRow returns the record of the fold about a group that this process appended. It returns nil if a later publish
// has removed the record.
func groupRow(snap *snapshot.Snapshot, group state.Key2) *state.Entry {
	return snap.State.Entries.Get(group)
}

// ScheduleBackfill is the result of a backfill of a schedule. It counts the instants in the given interval.
type ScheduleBackfill struct {
	// Ticks is the number of ticks that were created. LeftOut is the number of instants whose tick already has a run.
	Ticks   int `json:"ticks"`
	LeftOut int `json:"left_out"`
	// Later is the number of instants after the newest tick. They got no ticks from the backfill, because the schedule
	// itself will tick for them. Newest is the instant of the newest tick.
	Later  int64      `json:"later"`
	Newest event.Time `json:"newest"`
}

// BackfillSchedule creates ticks for the instants of a schedule in a past interval, which includes its start but not
// its end. The ticks run one after the other. BackfillSchedule skips instants whose tick already has a run, and
// instants after the newest tick.
func (e *Engine) BackfillSchedule(ctx context.Context, name string, from, to time.Time) (b ScheduleBackfill, err error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return b, err
	}
	found, err := FindSchedule(snap.State, name)
	if err != nil {
		return b, err
	}
	repeated, err := e.repeated(snap)
	switch {
	case err != nil:
		return b, err
	case found.Status == "paused" && repeated == "":
		return b, fmt.Errorf("backfill schedule %s: %w: resume it with `servo schedule resume %s`", name, ErrPaused, name)
	}
	s, err := calendar.Compile(&found.Definition)
	if err != nil {
		return b, fmt.Errorf("backfill schedule %s: %w", name, err)
	}
	last := found.Cursor.Time()
	b.Newest = found.Cursor
	if from, to = from.Add(-time.Second), to.Add(-time.Second); to.After(last) {
		begin := last
		if from.After(last) {
			begin = from
		}
		_, b.Later = s.Between(begin, to, 0)
		to = last
	}
	instants, more := s.Between(from, to, event.MaxInstants)
	if more > 0 {
		return b, &InvalidError{fmt.Errorf("backfill schedule %s: the interval has %d ticks: at most %d are allowed", name, more+int64(len(instants)), event.MaxInstants)}
	}
	ran, err := ranAt(ctx, snap, name, repeated)
	if err != nil {
		return b, err
	}
	p := &event.AutomationCommand{Name: name, Verb: event.VerbBackfill}
	for _, instant := range instants {
		if at := event.At(instant); ran[at] {
			b.LeftOut++
		} else {
			p.Instants = append(p.Instants, at)
		}
	}
	if repeated != "" {
		b.Ticks = len(p.Instants)
		return b, nil
	}
	if len(p.Instants) == 0 {
		return b, fmt.Errorf("backfill schedule %s: %w: %s", name, ErrNothing, b.whyEmpty())
	}
	_, err = e.CommandSchedule(ctx, p)
	b.Ticks = len(p.Instants)
	return b, err
}

// whyEmpty returns the reason why a backfill created no tick.
func (b *ScheduleBackfill) whyEmpty() string {
	switch {
	case b.LeftOut == 0 && b.Later > 0:
		return fmt.Sprintf("the interval begins after the newest tick, %s: the schedule itself ticks for these instants", b.Newest)
	case b.LeftOut == 0:
		return "the schedule has no instant in the interval"
	case b.Later > 0:
		return fmt.Sprintf("every instant up to the newest tick, %s, already has a run: the schedule itself ticks for the later ones", b.Newest)
	}
	return "every instant of the interval already has a run"
}

// maxTicksRead limits the number of existing ticks that are read for a backfill.
const maxTicksRead = 100_000

// ranAt returns the instants of a schedule whose tick has a run or waits for one. It omits the ticks that the given
// backfill command created.
func ranAt(ctx context.Context, snap *snapshot.Snapshot, name, command string) (map[event.Time]bool, error) {
	rows, err := snap.Ticks(ctx, name, maxTicksRead)
	if err != nil {
		return nil, err
	}
	ran := make(map[event.Time]bool, len(rows))
	for _, row := range rows {
		if command != "" && strings.HasPrefix(row.RequestID, "backfill:"+command+":") {
			continue
		}
		if row.Kind != state.TickManual && (row.Outcome == state.TickStarted || !row.Outcome.Final()) {
			ran[row.Logical] = true
		}
	}
	return ran, nil
}
