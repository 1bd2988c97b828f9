package state

import (
	"cmp"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// DefaultWorkspaceSlots is the number of slots of a workspace without a limit.
const DefaultWorkspaceSlots = 1000

// TimeoutGrace is how long the fold waits after a task's timeout before it closes the attempt.
// The worker enforces the timeout itself and normally reports within this period.
const TimeoutGrace = 10 * time.Second

// index contains data derived from the rows. Like the tables, it is copy-on-write.
type index struct {
	ready     sorted[readyItem] // ready tasks that are not admitted
	heads     sorted[headItem]  // the next admissible task of each run and pool
	headOf    byText[headItem]
	runSlots  byText[int32] // slots in use by run
	poolSlots byText[int32] // slots in use by pool
	allSlots  int32         // slots in use in the workspace
	deadlines sorted[Deadline]
	// waiting has the run, entry and group of each waiting dead letter. The run is empty if the
	// dead letter waits for a newer build.
	waiting  sorted[Key3]
	expiries sorted[keyExpiry]
	unmet    sorted[Key3] // run, downstream and upstream of each edge that is resolved but not satisfied
	chains   sorted[Key2] // live runs, by the first run of their chain of retries
	liveRuns int
	// candidates is the number of pending candidates in quarantine.
	candidates int
	automation automation
	backfills  backfills
	alerting   alerting
}

// runPool is the key of a run and a pool.
type runPool = string

func runPoolKey(run, pool string) runPool { return run + "/" + pool }

// readyItem orders a run's ready tasks within a pool: highest priority, then longest ready, then
// key.
type readyItem struct {
	run, pool string
	priority  int32
	readyAt   event.Time
	key       string
}

func lessReady(a, b readyItem) bool {
	return cmp.Or(
		cmp.Compare(a.run, b.run), cmp.Compare(a.pool, b.pool), cmp.Compare(b.priority, a.priority),
		cmp.Compare(a.readyAt, b.readyAt), cmp.Compare(a.key, b.key),
	) < 0
}

// headItem orders the tasks of a pool that are next in their runs: highest priority, then the run with the fewest
// slots in use, then longest ready, then run and key.
type headItem struct {
	pool     string
	priority int32
	slots    int32 // slots in use by the run
	readyAt  event.Time
	run, key string
}

func compareHead(a, b headItem) int {
	return cmp.Or(
		cmp.Compare(b.priority, a.priority), cmp.Compare(a.slots, b.slots),
		cmp.Compare(a.readyAt, b.readyAt), cmp.Compare(a.run, b.run), cmp.Compare(a.key, b.key),
	)
}

func lessHead(a, b headItem) bool { return cmp.Or(cmp.Compare(a.pool, b.pool), compareHead(a, b)) < 0 }

type keyExpiry struct {
	at  event.Time
	key string
}

// DeadlineKind is the kind of a deadline.
type DeadlineKind int

// Kinds of deadlines.
const (
	DeadlineHeartbeat DeadlineKind = iota
	DeadlineTask
	DeadlineRun
	DeadlineCancel
	DeadlineCandidate
)

// Deadline is the time at which a heartbeat, task, run or cancellation is overdue, or at which a
// candidate in quarantine expires.
type Deadline struct {
	At             event.Time
	Kind           DeadlineKind
	RunID, TaskKey string
	// Timeout is the duration that ends at At or, for a task, [TimeoutGrace] before At. The liveness timer may fire late
	// by up to a tenth of this duration.
	Timeout time.Duration
	// Candidate is the key of the candidate, if Kind is DeadlineCandidate.
	Candidate Key3
}

func lessDeadline(a, b Deadline) bool {
	return cmp.Or(
		cmp.Compare(a.At, b.At), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.TaskKey, b.TaskKey), compare3(a.Candidate, b.Candidate),
	) < 0
}

func newIndex() *index {
	return &index{
		ready:      newSorted(lessReady),
		heads:      newSorted(lessHead),
		headOf:     newByText[headItem](),
		runSlots:   newByText[int32](),
		poolSlots:  newByText[int32](),
		deadlines:  newSorted(lessDeadline),
		chains:     newSorted(func(a, b Key2) bool { return compare2(a, b) < 0 }),
		waiting:    newSorted(func(a, b Key3) bool { return compare3(a, b) < 0 }),
		unmet:      newSorted(func(a, b Key3) bool { return compare3(a, b) < 0 }),
		automation: newAutomation(),
		backfills:  newBackfills(),
		alerting:   newAlerting(),
		expiries: newSorted(func(a, b keyExpiry) bool {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key)) < 0
		}),
	}
}

func (x *index) copy() *index {
	c := *x
	c.ready, c.heads, c.deadlines = x.ready.copy(), x.heads.copy(), x.deadlines.copy()
	c.waiting, c.expiries, c.chains, c.unmet = x.waiting.copy(), x.expiries.copy(), x.chains.copy(), x.unmet.copy()
	c.automation = x.automation.copy()
	c.backfills = x.backfills.copy()
	c.alerting = x.alerting.copy()
	c.headOf, c.runSlots, c.poolSlots = x.headOf.copy(), x.runSlots.copy(), x.poolSlots.copy()
	return &c
}

func (row *Run) reindex(s *State, old *Run) {
	x := s.index
	x.setWatch(Watch{RunID: row.RunID}, old.sla(), row.sla())
	if old != nil {
		if d, ok := runDeadline(old); ok {
			x.deadlines.Delete(d)
		}
	}
	if !row.Deleted {
		if d, ok := runDeadline(row); ok {
			x.deadlines.Set(d)
		}
	}
	switch was, is := isLive(old), isLive(row); {
	case was && !is:
		x.liveRuns--
		x.chains.Delete(Key2{row.Root(), row.RunID})
		if row.ScheduleID != "" {
			x.automation.runs.Delete(Key2{row.ScheduleID, row.RunID})
		}
	case is && !was:
		x.liveRuns++
		x.chains.Set(Key2{row.Root(), row.RunID})
		if row.ScheduleID != "" {
			x.automation.runs.Set(Key2{row.ScheduleID, row.RunID})
		}
	}
	if old == nil || row.Deleted || admits(old) != admits(row) || old.MaxParallelism != row.MaxParallelism {
		x.refreshRun(s, row.RunID)
	}
}

func isLive(r *Run) bool { return r != nil && !r.Deleted && !r.State.Terminal() }

func admits(r *Run) bool { return r != nil && (r.State == RunPending || r.State == RunRunning) }

func runDeadline(r *Run) (Deadline, bool) {
	switch {
	case r.State.Terminal():
		return Deadline{}, false
	case r.State == RunCancelling:
		grace := time.Duration(r.CancelGraceSec) * time.Second
		return Deadline{r.CancelRequestedAt.Add(grace), DeadlineCancel, r.RunID, "", grace, Key3{}}, true
	case r.TimeoutSec > 0:
		timeout := time.Duration(r.TimeoutSec) * time.Second
		return Deadline{r.CreatedAt.Add(timeout), DeadlineRun, r.RunID, "", timeout, Key3{}}, true
	}
	return Deadline{}, false
}

// taskDeadline measures the timeout from the start time that the worker reported, or from the admission if that is
// later. So a slow clock of the worker does not shorten the timeout.
func taskDeadline(t *Task) (Deadline, bool) {
	if t.State != TaskRunning || t.TimeoutSec == 0 {
		return Deadline{}, false
	}
	timeout := time.Duration(t.TimeoutSec) * time.Second
	return Deadline{max(t.StartedAt, t.AdmittedAt).Add(timeout + TimeoutGrace), DeadlineTask, t.RunID, t.TaskKey, timeout, Key3{}}, true
}

func (row *Task) reindex(s *State, old *Task) {
	x := s.index
	if was, is := old.sla(), row.sla(); was != is {
		x.setWatch(Watch{RunID: row.RunID, TaskKey: row.TaskKey}, was, is)
	}
	if old != nil {
		if d, ok := taskDeadline(old); ok {
			x.deadlines.Delete(d)
		}
	}
	if d, ok := taskDeadline(row); ok && !row.Deleted {
		x.deadlines.Set(d)
	}
	wasReady, isReady := isReady(old), isReady(row)
	if wasReady {
		x.ready.Delete(readyOf(old))
	}
	if isReady {
		x.ready.Set(readyOf(row))
	}
	if wasReady || isReady {
		x.refresh(s, row.RunID, row.Pool)
	}
	if delta := slotsOf(row) - slotsOf(old); delta != 0 {
		add(x.runSlots, row.RunID, delta)
		add(x.poolSlots, row.Pool, delta)
		x.allSlots += delta
		x.refreshRun(s, row.RunID)
	}
}

func isReady(t *Task) bool {
	return t != nil && !t.Deleted && t.State == TaskReady && t.AdmittedAt == 0
}

func readyOf(t *Task) readyItem { return readyItem{t.RunID, t.Pool, t.Priority, t.ReadyAt, t.TaskKey} }

func slotsOf(t *Task) int32 {
	if t != nil && !t.Deleted && t.AdmittedAt != 0 {
		return 1
	}
	return 0
}

func add(m byText[int32], key string, delta int32) {
	n, _ := m.Get(key)
	if n += delta; n == 0 {
		m.Delete(key)
	} else {
		m.Set(key, n)
	}
}

// refreshRun updates which task of a run is next for admission in each pool. This depends on the run's state, limit
// and slots in use.
func (x *index) refreshRun(s *State, run string) {
	pool := ""
	for {
		x.refresh(s, run, pool)
		next, found := x.ready.First(readyItem{run: run, pool: pool + "\x00", priority: maxPriority})
		if !found || next.run != run {
			return
		}
		pool = next.pool
	}
}

const maxPriority = 1<<31 - 1

// refresh updates which task of a run is next for admission in a pool.
func (x *index) refresh(s *State, run, pool string) {
	key := runPoolKey(run, pool)
	if head, ok := x.headOf.Get(key); ok {
		x.heads.Delete(head)
		x.headOf.Delete(key)
	}
	row := s.Runs.Get(run)
	slots, _ := x.runSlots.Get(run)
	if !admits(row) || (row.MaxParallelism > 0 && slots >= row.MaxParallelism) {
		return
	}
	if it, found := x.ready.First(readyItem{run: run, pool: pool, priority: maxPriority}); found && it.run == run && it.pool == pool {
		head := headItem{pool, it.priority, slots, it.readyAt, run, it.key}
		x.heads.Set(head)
		x.headOf.Set(key, head)
	}
}

func (row *Heartbeat) reindex(s *State, old *Heartbeat) {
	x := s.index
	if old != nil {
		if d, ok := heartbeatDeadline(s, old); ok {
			x.deadlines.Delete(d)
		}
	}
	if d, ok := heartbeatDeadline(s, row); ok && !row.Deleted {
		x.deadlines.Set(d)
	}
}

func heartbeatDeadline(s *State, h *Heartbeat) (Deadline, bool) {
	task := s.Tasks.Get(Key2{h.RunID, h.TaskKey})
	if task == nil {
		return Deadline{}, false
	}
	timeout := time.Duration(task.HeartbeatTimeoutSec) * time.Second
	return Deadline{h.LastHeartbeatAt.Add(timeout), DeadlineHeartbeat, h.RunID, h.TaskKey, timeout, Key3{}}, true
}

func (row *RunKey) reindex(s *State, old *RunKey) {
	x := s.index
	if old != nil {
		x.expiries.Delete(keyExpiry{old.ExpiresAt, old.RunKey})
	}
	if !row.Deleted {
		x.expiries.Set(keyExpiry{row.ExpiresAt, row.RunKey})
	}
}

func (row *Dep) reindex(s *State, old *Dep) {
	if old.isUnmet() {
		s.index.unmet.Delete(Key3{old.RunID, old.Downstream, old.Upstream})
	}
	if row.isUnmet() && !row.Deleted {
		s.index.unmet.Set(Key3{row.RunID, row.Downstream, row.Upstream})
	}
}

func (row *Dep) isUnmet() bool { return row != nil && row.Resolution != "" && !row.Satisfied }

func (row *Entry) reindex(s *State, old *Entry) {
	x := s.index
	if old != nil && old.Waits() {
		x.waiting.Delete(Key3{old.RunID, old.Entry, old.Group})
	}
	if !row.Deleted && row.Waits() {
		x.waiting.Set(Key3{row.RunID, row.Entry, row.Group})
	}
}

// Waits reports whether a dead letter may still be folded: after its run or plan appears, or by a build that supports
// its event type.
func (row *Entry) Waits() bool {
	return row.Outcome == DeadLetter && (row.RunID != "" || row.Reason == event.ReasonUnsupported)
}
