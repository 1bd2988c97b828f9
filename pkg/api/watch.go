package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of streams.
const (
	maxStreams = 256
	// aliveEvery is how often a stream without changes says that its connection is alive.
	aliveEvery = 15 * time.Second
)

// streams counts the open streams of a server.
type streams struct {
	open chan struct{} // has an item for each open stream
}

func newStreams() *streams { return &streams{open: make(chan struct{}, maxStreams)} }

// enter counts a stream. The caller calls the function leave when the stream ends.
func (s *streams) enter() (leave func(), err error) {
	select {
	case s.open <- struct{}{}:
		return func() { <-s.open }, nil
	default:
		return nil, refuse(tooManyStreams, "%d streams are open, which is the maximum: close some of them", maxStreams)
	}
}

// Watch implements the call.
func (s *server) Watch(ctx context.Context, r *servov1.WatchRequest, to *connect.ServerStream[servov1.WatchResponse]) error {
	leave, err := s.streams.enter()
	if err != nil {
		return err
	}
	defer leave()
	after := engine.Position{Timeline: r.GetTimeline(), Revision: r.GetAfterRevision()}
	return s.Engine.Watch(ctx, after, aliveEvery, watched(r), func(c *engine.Changes) error {
		if err := to.Send(changesOf(c)); err != nil {
			return errors.Join(errDisconnected, err)
		}
		return nil
	})
}

// watched returns a filter that keeps the rows that a stream sends.
func watched(r *servov1.WatchRequest) func(state.Record) bool {
	has := func(table string) bool { return len(r.GetTables()) == 0 || slices.Contains(r.GetTables(), table) }
	of := func(run string) bool { return len(r.GetRunIds()) == 0 || slices.Contains(r.GetRunIds(), run) }
	return func(row state.Record) bool {
		switch row := row.(type) {
		case *state.Run: // rows are deleted when they move to history
			return has("runs") && of(row.RunID) && !row.Deleted
		case *state.Task:
			return has("tasks") && of(row.RunID) && row.Kind != event.KindGroup && !row.Deleted
		case *state.Partition, *state.Mark, *state.Candidate:
			return has("partitions")
		case *state.Schedule:
			return has("schedules")
		case *state.Backfill:
			return has("backfills")
		case *state.Deployment, *state.AcceptedCode, *state.KeyBlock, *state.ForgottenAsset, *state.RunRequest, *state.DeadlineMiss, *state.AlertChannel:
			return has("others")
		}
		return false
	}
}

func changesOf(c *engine.Changes) *servov1.WatchResponse {
	m := &servov1.WatchResponse{Revision: c.Revision, Timeline: c.Timeline, PublishedAt: timestamp(c.PublishedAt), Resync: c.Resync, Heartbeat: c.Alive}
	cell := func(asset, partition string) {
		m.Partitions = append(m.Partitions, &servov1.WatchResponse_ChangedPartition{AssetKey: asset, PartitionKey: partition})
	}
	for _, row := range c.Rows {
		switch row := row.(type) {
		case *state.Run:
			m.Runs = append(m.Runs, runOf(row))
		case *state.Task:
			m.Tasks = append(m.Tasks, taskOf(row))
		case *state.Partition:
			cell(row.AssetKey, row.PartitionKey)
		case *state.Mark:
			cell(row.AssetKey, row.PartitionKey)
		case *state.Candidate:
			cell(row.AssetKey, row.PartitionKey)
		case *state.Schedule:
			m.Schedules = append(m.Schedules, row.ScheduleID)
		case *state.Backfill:
			m.Backfills = append(m.Backfills, row.BackfillID)
		default:
			m.Others = true
		}
	}
	byKey := func(a, b *servov1.WatchResponse_ChangedPartition) int {
		return cmp.Or(strings.Compare(a.GetAssetKey(), b.GetAssetKey()), strings.Compare(a.GetPartitionKey(), b.GetPartitionKey()))
	}
	slices.SortFunc(m.Partitions, byKey)
	m.Partitions = slices.CompactFunc(m.Partitions, func(a, b *servov1.WatchResponse_ChangedPartition) bool { return byKey(a, b) == 0 })
	return m
}
