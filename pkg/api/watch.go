package api

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of streams.
const (
	maxStreams = 256
	// aliveEvery is how often a stream without changes says that its connection is alive.
	aliveEvery = 15 * time.Second
	// calm is the least time between two messages. Changes in between are merged.
	calm = 100 * time.Millisecond
	// maxChanges limits the rows of a message; with more, the client reads again what is visible.
	maxChanges = 10_000
	// resumable is how long a client may be disconnected and still resume. Ended runs stay in the state for
	// longer than that, so no change is missed.
	resumable = 5 * time.Minute
	// maxResumable limits the revisions that are remembered for that.
	maxResumable = 4096
)

// streams are the open streams of a server, and what it needs to resume one.
type streams struct {
	// timeline identifies this process: it knows the fold sequences of its own revisions only.
	timeline string
	open     chan struct{} // has an item for each open stream

	mu   sync.Mutex
	sent []sentRevision // oldest first
}

// sentRevision is a revision that clients have seen.
type sentRevision struct {
	revision, seq int64
	at            time.Time
}

func newStreams() *streams {
	return &streams{timeline: rand.Text(), open: make(chan struct{}, maxStreams)}
}

// enter counts a stream. The caller calls leave at its end.
func (s *streams) enter() (leave func(), err error) {
	select {
	case s.open <- struct{}{}:
		return func() { <-s.open }, nil
	default:
		return nil, refuse(tooManyStreams, "%d streams are open: close some of them", maxStreams)
	}
}

// remember records a revision that a client sees.
func (s *streams) remember(snap *snapshot.Snapshot, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = slices.DeleteFunc(s.sent, func(r sentRevision) bool { return r.revision == snap.Revision })
	s.sent = append(s.sent, sentRevision{snap.Revision, snap.State.FoldSeq, now})
	old := max(len(s.sent)-maxResumable, 0)
	for old < len(s.sent) && now.Sub(s.sent[old].at) > resumable {
		old++
	}
	s.sent = slices.Delete(s.sent, 0, old)
}

// seqOf returns the fold sequence of a revision that a client has seen. It returns false if changes since
// then may have left the state.
func (s *streams) seqOf(timeline string, revision int64, now time.Time) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.sent {
		if r.revision == revision && now.Sub(r.at) <= resumable {
			return r.seq, timeline == "" || timeline == s.timeline
		}
	}
	return 0, false
}

// Watch implements the call.
func (s *server) Watch(ctx context.Context, r *servov1.WatchRequest, to *connect.ServerStream[servov1.WatchResponse]) error {
	leave, err := s.streams.enter()
	if err != nil {
		return err
	}
	defer leave()
	snap, err := s.current(ctx)
	if err != nil {
		return err
	}
	w := &watcher{server: s, request: r, to: to, seq: snap.State.FoldSeq}
	resync := false
	if r.GetAfterRevision() != 0 {
		var known bool
		w.seq, known = s.streams.seqOf(r.GetTimeline(), r.GetAfterRevision(), s.Engine.Now())
		resync = !known
	}
	for {
		if err := w.send(snap, resync); err != nil {
			return err
		}
		if snap, err = w.next(ctx, snap); err != nil {
			return err
		}
		resync = false
	}
}

// watcher is a stream of changes.
type watcher struct {
	server  *server
	request *servov1.WatchRequest
	to      *connect.ServerStream[servov1.WatchResponse]
	seq     int64 // of the last event whose changes were sent
}

// next waits for a newer snapshot. Meanwhile it says that the connection is alive.
func (w *watcher) next(ctx context.Context, after *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	timer := time.NewTimer(calm)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, aliveEvery)
		snap, err := w.server.Engine.Await(waiting, after.Revision)
		cancel()
		switch {
		case err == nil:
			return snap, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		alive := &servov1.WatchResponse{Revision: after.Revision, Timeline: w.server.streams.timeline, Heartbeat: true}
		if err := w.to.Send(alive); err != nil {
			return nil, errors.Join(errDisconnected, err)
		}
	}
}

// send sends the changes up to a snapshot. A revision without changes is sent, too: it is the one that the
// client resumes after.
func (w *watcher) send(snap *snapshot.Snapshot, resync bool) error {
	m := &servov1.WatchResponse{
		Revision: snap.Revision, Timeline: w.server.streams.timeline, PublishedAt: timestamp(snap.State.FoldTime), Resync: resync,
	}
	if !resync && !w.changes(snap.State, m) {
		m = &servov1.WatchResponse{Revision: m.GetRevision(), Timeline: m.GetTimeline(), PublishedAt: m.GetPublishedAt(), Resync: true}
	}
	w.server.streams.remember(snap, w.server.Engine.Now())
	w.seq = snap.State.FoldSeq
	if err := w.to.Send(m); err != nil {
		return errors.Join(errDisconnected, err)
	}
	return nil
}

// changes adds the rows that have changed since the last message. It returns false if there are too many.
func (w *watcher) changes(s *state.State, m *servov1.WatchResponse) bool {
	if s.FoldSeq == w.seq {
		return true
	}
	if w.wants("runs") {
		for run := range s.Runs.All {
			if run.Seq > w.seq && w.wantsRun(run.RunID) {
				m.Runs = append(m.Runs, runOf(run))
			}
		}
	}
	if w.wants("tasks") || w.wants("partitions") {
		w.tasks(s, m)
	}
	if w.wants("partitions") {
		for row := range s.Partitions.All {
			if row.Seq > w.seq {
				m.Partitions = append(m.Partitions, changedPartition(row.AssetKey, row.PartitionKey))
			}
		}
		for mark := range s.Marks.All {
			if mark.Seq > w.seq {
				m.Partitions = append(m.Partitions, changedPartition(mark.AssetKey, mark.PartitionKey))
			}
		}
		slices.SortFunc(m.GetPartitions(), comparePartitions)
		m.Partitions = slices.CompactFunc(m.GetPartitions(), func(a, b *servov1.WatchResponse_ChangedPartition) bool { return comparePartitions(a, b) == 0 })
	}
	if w.wants("schedules") {
		for row := range s.Schedules.All {
			if row.Seq > w.seq {
				m.Schedules = append(m.Schedules, row.ScheduleID)
			}
		}
	}
	if w.wants("backfills") {
		for row := range s.Backfills.All {
			if row.Seq > w.seq {
				m.Backfills = append(m.Backfills, row.BackfillID)
			}
		}
	}
	return len(m.GetRuns())+len(m.GetTasks())+len(m.GetPartitions())+len(m.GetSchedules())+len(m.GetBackfills()) <= maxChanges
}

// tasks adds the changed tasks, and the partitions that they have made: a row of a partition may have left
// the state already.
func (w *watcher) tasks(s *state.State, m *servov1.WatchResponse) {
	visit := func(t *state.Task) bool {
		if t.Seq <= w.seq {
			return true
		}
		if w.wants("tasks") && w.wantsRun(t.RunID) {
			m.Tasks = append(m.Tasks, taskOf(t))
		}
		if w.wants("partitions") && t.State == state.TaskSucceeded && t.AssetKey != "" {
			m.Partitions = append(m.Partitions, changedPartition(t.AssetKey, t.PartitionKey))
		}
		return true
	}
	if len(w.request.GetRunIds()) == 0 || w.wants("partitions") {
		s.Tasks.All(visit)
		return
	}
	for _, id := range w.request.GetRunIds() {
		s.TasksOf(id, visit)
	}
}

func changedPartition(asset, partition string) *servov1.WatchResponse_ChangedPartition {
	return &servov1.WatchResponse_ChangedPartition{AssetKey: asset, PartitionKey: partition}
}

func comparePartitions(a, b *servov1.WatchResponse_ChangedPartition) int {
	if c := strings.Compare(a.GetAssetKey(), b.GetAssetKey()); c != 0 {
		return c
	}
	return strings.Compare(a.GetPartitionKey(), b.GetPartitionKey())
}

func (w *watcher) wants(table string) bool {
	return len(w.request.GetTables()) == 0 || slices.Contains(w.request.GetTables(), table)
}

func (w *watcher) wantsRun(id string) bool {
	return len(w.request.GetRunIds()) == 0 || slices.Contains(w.request.GetRunIds(), id)
}
