package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of streams of changes.
const (
	maxWatches   = 16
	maxWatchRuns = 100
	watchQuiet   = 15 * time.Second
)

// watchTables are the tables that a stream can have.
var watchTables = []string{"runs", "tasks", "partitions", "schedules", "backfills"}

// Changes are what changed from one revision to another.
type Changes struct {
	Revision    int64      `json:"revision"`
	Timeline    string     `json:"timeline"`
	PublishedAt event.Time `json:"published_at,omitempty,omitzero"`
	Runs        []Run      `json:"runs,omitempty"`
	Tasks       []RunTask  `json:"tasks,omitempty"`
	// Partitions are those with a new output or another mark.
	Partitions []ChangedPartition `json:"partitions,omitempty"`
	Schedules  []string           `json:"schedules,omitempty"`
	Backfills  []string           `json:"backfills,omitempty"`
}

// RunTask is a task with its run.
type RunTask struct {
	RunID string `json:"run_id"`
	Task
}

// ChangedPartition is a partition that has changed.
type ChangedPartition struct {
	AssetKey     string `json:"asset_key"`
	PartitionKey string `json:"partition_key,omitempty"`
}

// watch streams changes as server-sent events until the client disconnects.
func (h handler) watch(w http.ResponseWriter, r *http.Request) {
	if err := h.streamChanges(w, r); err != nil {
		h.serve(func(*http.Request) (int, any, error) { return 0, nil, err })(w, r)
	}
}

// streamChanges returns an error only before it has written anything.
func (h handler) streamChanges(w http.ResponseWriter, r *http.Request) error {
	after, err := watchPosition(r)
	if err != nil {
		return err
	}
	keep, err := watchFilter(r)
	if err != nil {
		return err
	}
	select {
	case h.watches <- struct{}{}:
		defer func() { <-h.watches }()
	default:
		w.Header().Set("Retry-After", "5")
		return refuse(http.StatusTooManyRequests, "%d streams of changes are open, the most that may be: close one", maxWatches)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flush := http.NewResponseController(w).Flush
	err = h.Engine.Watch(r.Context(), after, watchQuiet, keep, func(c *engine.Changes) error {
		if _, err := w.Write(changesEvent(c)); err != nil {
			return err
		}
		return flush()
	})
	if err != nil && r.Context().Err() == nil {
		// The client connects again, and continues after the last revision that it got. It may have disconnected.
		fmt.Fprintf(w, "event: error\ndata: %s\n\n", strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

// watchPosition returns the position after which a stream begins: from Last-Event-ID, else from the parameters.
func watchPosition(r *http.Request) (p engine.Position, err error) {
	revision := r.URL.Query().Get("after_revision")
	p.Timeline = r.URL.Query().Get("timeline")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		var ok bool
		if p.Timeline, revision, ok = strings.Cut(last, "."); !ok {
			return p, refuse(http.StatusBadRequest, "Last-Event-ID is %q: expected a timeline, a period and a revision", last)
		}
	}
	if revision == "" {
		return engine.Position{}, nil
	}
	if p.Revision, err = strconv.ParseInt(revision, 10, 64); err != nil || p.Revision < 0 {
		return p, refuse(http.StatusBadRequest, "the revision is %q: expected a number", revision)
	}
	return p, nil
}

// watchFilter returns which rows a stream has.
func watchFilter(r *http.Request) (func(state.Record) bool, error) {
	tables, runs := r.URL.Query()["tables"], r.URL.Query()["run_ids"]
	for _, name := range tables {
		if !slices.Contains(watchTables, name) {
			return nil, refuse(http.StatusBadRequest, "unknown table %q: expected one of %s", name, strings.Join(watchTables, ", "))
		}
	}
	if len(runs) > maxWatchRuns {
		return nil, refuse(http.StatusBadRequest, "%d run_ids: at most %d are allowed", len(runs), maxWatchRuns)
	}
	has := func(table string) bool { return len(tables) == 0 || slices.Contains(tables, table) }
	of := func(run string) bool { return len(runs) == 0 || slices.Contains(runs, run) }
	return func(row state.Record) bool {
		switch row := row.(type) {
		case *state.Run: // a deleted row has moved to history
			return has("runs") && of(row.RunID) && !row.Deleted
		case *state.Task:
			return has("tasks") && of(row.RunID) && row.Kind != event.KindGroup && !row.Deleted
		case *state.Partition, *state.Mark, *state.Candidate:
			return has("partitions")
		case *state.Schedule:
			return has("schedules")
		case *state.Backfill:
			return has("backfills")
		}
		return false
	}, nil
}

// changesEvent returns a server-sent event.
func changesEvent(c *engine.Changes) []byte {
	if c.Alive {
		return []byte(": nothing has changed\n\n")
	}
	name := "changes"
	if c.Resync {
		name = "resync"
	}
	data, err := json.Marshal(changesOf(c))
	if err != nil { // a year beyond 9999
		name, data = "resync", []byte("{}")
	}
	return fmt.Appendf(nil, "id: %s.%d\nevent: %s\ndata: %s\n\n", c.Timeline, c.Revision, name, data)
}

func changesOf(c *engine.Changes) *Changes {
	out := &Changes{Revision: c.Revision, Timeline: c.Timeline, PublishedAt: c.PublishedAt}
	cells := map[ChangedPartition]bool{}
	add := func(asset, partition string) {
		cell := ChangedPartition{asset, partition}
		if !cells[cell] {
			cells[cell] = true
			out.Partitions = append(out.Partitions, cell)
		}
	}
	for _, row := range c.Rows {
		switch row := row.(type) {
		case *state.Run:
			out.Runs = append(out.Runs, runOf(row))
		case *state.Task:
			out.Tasks = append(out.Tasks, RunTask{row.RunID, taskOf(row)})
		case *state.Partition:
			add(row.AssetKey, row.PartitionKey)
		case *state.Mark:
			add(row.AssetKey, row.PartitionKey)
		case *state.Candidate:
			add(row.AssetKey, row.PartitionKey)
		case *state.Schedule:
			out.Schedules = append(out.Schedules, row.ScheduleID)
		case *state.Backfill:
			out.Backfills = append(out.Backfills, row.BackfillID)
		}
	}
	return out
}
