package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Backfill is a backfill with the number of its partitions in each state.
type Backfill struct {
	ID          string              `json:"backfill_id"`
	State       state.BackfillState `json:"state"`
	CreatedBy   string              `json:"created_by,omitempty"`
	Assets      []string            `json:"assets"`
	Selection   []string            `json:"partition_selection,omitempty"`
	Only        string              `json:"only,omitempty"`
	Release     string              `json:"release,omitempty"`
	Priority    int32               `json:"priority"`
	Pool        string              `json:"pool,omitempty"`
	Ordered     bool                `json:"ordered,omitempty"`
	Order       string              `json:"order"`
	MaxParallel int32               `json:"max_parallel"`
	StopAt      int64               `json:"stop_at,omitempty"`
	PausedAt    event.Time          `json:"paused_at,omitempty,omitzero"`
	PausedBy    string              `json:"paused_by,omitempty"`
	PauseReason string              `json:"pause_reason,omitempty"`
	Retries     int32               `json:"retries,omitempty"`
	Chunks      int32               `json:"chunks"`
	ChunksEnded int32               `json:"chunks_ended"`
	Partitions  int64               `json:"partitions"`
	Left        int64               `json:"left"`
	Running     int64               `json:"running"`
	Done        int64               `json:"done"`
	Failed      int64               `json:"failed"`
	Skipped     int64               `json:"skipped"`
	Cancelled   int64               `json:"cancelled"`
	CreatedAt   event.Time          `json:"created_at"`
	EndedAt     event.Time          `json:"ended_at,omitempty,omitzero"`
	// Next is the command that continues a backfill that is waiting for a person, or "".
	Next string `json:"next,omitempty"`
	// InFlight counts the tasks of the running chunks; nil: no chunk runs.
	InFlight *InFlight `json:"in_flight,omitempty"`
	// Only [FindBackfill] sets the following fields.
	//
	// Codes counts failed and skipped partitions by error code.
	Codes map[string]int64 `json:"error_codes,omitempty"`
	// Runs are the live runs of the backfill.
	Runs []string `json:"runs,omitempty"`
	// ETA estimates how much longer the backfill takes, from the partitions that ended in the last hour; nil: unknown.
	ETA *BackfillETA `json:"eta,omitempty"`
}

// InFlight counts the tasks in the runs of the running chunks. The other counts of a backfill change only when a
// chunk ends.
type InFlight struct {
	Chunks     int32 `json:"chunks"`
	Tasks      int64 `json:"tasks"`
	TasksEnded int64 `json:"tasks_ended"`
}

// inFlight returns the counts of the running chunks of a backfill, or nil.
func inFlight(s *state.State, row *state.Backfill) (f *InFlight) {
	if row.Running == 0 {
		return nil
	}
	s.ChunksOf(row.BackfillID, func(chunk *state.Chunk) bool {
		if run := s.Runs.Get(chunk.RunID); chunk.State == state.ChunkRunning && run != nil {
			if f == nil {
				f = &InFlight{}
			}
			f.Chunks++
			f.Tasks += int64(run.TasksTotal)
			f.TasksEnded += int64(view.Done(run))
		}
		return true
	})
	return f
}

// BackfillETA is an estimate of the remaining time, in seconds. Low and High are estimates from the quartiles of the
// time that the chunks took per partition.
type BackfillETA struct {
	Seconds float64 `json:"seconds"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
}

// BackfillOf converts a row of table backfills.
func BackfillOf(row *state.Backfill) (Backfill, error) {
	b := Backfill{
		ID: row.BackfillID, State: row.State, CreatedBy: row.CreatedBy, Only: row.Only, Release: row.Release, Priority: row.Priority, Pool: row.Pool,
		Ordered: row.Ordered, Order: row.Order, MaxParallel: row.MaxParallel, StopAt: row.StopAt, PausedAt: row.PausedAt, PausedBy: row.PausedBy,
		PauseReason: row.PauseReason, Retries: row.Round, Chunks: row.Chunks, ChunksEnded: row.ChunksEnded, Partitions: row.Cells, Left: row.Left,
		Running: row.Running, Done: row.Done, Failed: row.Failed, Skipped: row.Skipped, Cancelled: row.Cancelled,
		CreatedAt: row.CreatedAt, EndedAt: row.EndedAt, Next: nextCommand(row),
	}
	for _, list := range []struct {
		text string
		to   *[]string
	}{{row.Assets, &b.Assets}, {row.Selection, &b.Selection}} {
		if list.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(list.text), list.to); err != nil {
			return b, fmt.Errorf("read backfill %s: %w", row.BackfillID, err)
		}
	}
	return b, nil
}

// nextCommand returns the command that continues a backfill, or "".
func nextCommand(row *state.Backfill) string {
	switch {
	case row.State == state.BackfillPaused && row.Ordered && row.Failed+row.Skipped > 0, row.State == state.BackfillFailed:
		return "servo backfill retry-failed " + row.BackfillID
	case row.State == state.BackfillPaused:
		return "servo backfill resume " + row.BackfillID
	}
	return ""
}

// Backfills returns all backfills that are kept, newest first.
func Backfills(ctx context.Context, snap *snapshot.Snapshot) ([]Backfill, error) {
	rows, err := snap.Backfills(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Backfill, len(rows))
	for i, row := range rows {
		if all[i], err = BackfillOf(row); err != nil {
			return nil, err
		}
		all[i].InFlight = inFlight(snap.State, row)
	}
	return all, nil
}

// FindBackfill returns the backfill with the given id, or the only backfill whose id ends with the given text.
// "latest" means the newest backfill.
func FindBackfill(ctx context.Context, snap *snapshot.Snapshot, id string, now time.Time) (Backfill, error) {
	row, err := findBackfill(ctx, snap, id)
	if err != nil {
		return Backfill{}, err
	}
	b, err := BackfillOf(row)
	if err != nil {
		return b, err
	}
	chunks, err := snap.Chunks(ctx, row.BackfillID)
	if err != nil {
		return b, err
	}
	b.Codes, b.InFlight = map[string]int64{}, inFlight(snap.State, row)
	for _, chunk := range chunks {
		codes := map[string]int64{}
		if chunk.Codes != "" {
			if err := json.Unmarshal([]byte(chunk.Codes), &codes); err != nil {
				return b, fmt.Errorf("read chunk %d of backfill %s: %w", chunk.Chunk, b.ID, err)
			}
		}
		for code, n := range codes {
			b.Codes[code] += n
		}
		if chunk.State == state.ChunkRunning {
			b.Runs = append(b.Runs, chunk.RunID)
		}
	}
	if row.State == state.BackfillRunning {
		b.ETA = eta(row, chunks, event.At(now))
	}
	return b, nil
}

func findBackfill(ctx context.Context, snap *snapshot.Snapshot, id string) (*state.Backfill, error) {
	if row := snap.State.Backfills.Get(id); row != nil {
		return row, nil
	}
	rows, err := snap.Backfills(ctx)
	if err != nil {
		return nil, err
	}
	if id == "latest" && len(rows) > 0 {
		return rows[0], nil
	}
	var found []*state.Backfill
	for _, row := range rows {
		if id != "" && strings.HasSuffix(row.BackfillID, strings.ToUpper(id)) {
			found = append(found, row)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("backfill %q: %w: the ids of %d backfills end with it; use more characters of the id", id, ErrNotFound, len(found))
	case len(rows) == 0:
		return nil, fmt.Errorf("backfill %q: %w: there are no backfills: create one with `servo backfill create`", id, ErrNotFound)
	}
	return nil, fmt.Errorf("backfill %q: %w: list the backfills with `servo backfill list`", id, ErrNotFound)
}

// etaWindow is the period before now in which chunks must have ended to be part of an estimate.
const etaWindow = time.Hour

// minChunksOfETA is the minimum number of chunks in the window for an estimate. With fewer chunks, the rate is too
// uncertain.
const minChunksOfETA = 3

// eta estimates the time for the remaining partitions from the rate of the last hour. It returns nil if too few
// chunks have ended in that hour.
func eta(row *state.Backfill, chunks []*state.Chunk, now event.Time) *BackfillETA {
	since, partitions, first := now.Add(-etaWindow), 0.0, now
	var each []float64 // seconds per partition, for each chunk
	for _, chunk := range chunks {
		if chunk.State != state.ChunkEnded || chunk.StartedAt == 0 || chunk.EndedAt < since {
			continue
		}
		cells, err := state.ParseCells(chunk.Cells)
		if err != nil || len(cells) == 0 {
			continue
		}
		partitions += float64(len(cells))
		first = min(first, max(chunk.StartedAt, since))
		each = append(each, chunk.EndedAt.Sub(chunk.StartedAt).Seconds()/float64(len(cells)))
	}
	window := now.Sub(first).Seconds()
	if len(each) < minChunksOfETA || window <= 0 {
		return nil
	}
	slices.Sort(each)
	seconds := float64(row.Left) * window / partitions
	spread := func(percent int) float64 {
		at, median := each[(len(each)-1)*percent/100], each[(len(each)-1)/2]
		if median == 0 {
			return seconds
		}
		return math.Round(seconds * at / median)
	}
	const low, high = 25, 75
	return &BackfillETA{math.Round(seconds), min(seconds, spread(low)), max(seconds, spread(high))}
}

// CommandBackfill applies a command to a backfill, and returns the backfill.
func (e *Engine) CommandBackfill(ctx context.Context, p *event.AutomationCommand) (Backfill, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return Backfill{}, err
	}
	row, err := findBackfill(ctx, snap, p.Name)
	if err != nil {
		return Backfill{}, err
	}
	verb := strings.ReplaceAll(p.Verb, "_", "-")
	switch id, err := e.repeated(snap); {
	case err != nil:
		return Backfill{}, err
	case id != "":
		return FindBackfill(ctx, snap, row.BackfillID, e.cfg.Clock.Now())
	}
	if err := e.outdated(row.EditTag()); err != nil {
		return Backfill{}, fmt.Errorf("%s backfill %s: %w", verb, row.BackfillID, err)
	}
	if snap.State.Backfills.Get(row.BackfillID) == nil {
		return Backfill{}, fmt.Errorf("%s backfill %s: %w: it has been %s since %s: create a new one, for example for the missing partitions", verb, row.BackfillID, ErrNoEffect, row.State, row.EndedAt)
	}
	if ids.Valid(row.CommandID) {
		e.cfg.IDs.Observe(row.CommandID) // the fold ignores a command whose id is lower than the id in the row
	}
	p.CommandID, p.Target, p.Name = e.cfg.IDs.New(), event.TargetBackfill, row.BackfillID
	e.condition(p)
	snap, group, err := e.append(ctx, "", p)
	if err != nil {
		return Backfill{}, fmt.Errorf("%s backfill %s: %w", verb, p.Name, err)
	}
	if row := groupRow(snap, group); row != nil && row.Outcome == state.Stale {
		return Backfill{}, fmt.Errorf("%s backfill %s: %w: %s", verb, p.Name, ErrNoEffect, row.Detail)
	}
	if now := snap.State.Backfills.Get(p.Name); now != nil {
		if err := e.unmet(snap, p, group, now.CommandID, now.EditTag()); err != nil {
			return Backfill{}, fmt.Errorf("%s backfill %s: %w", verb, p.Name, err)
		}
	}
	return FindBackfill(ctx, snap, p.Name, e.cfg.Clock.Now())
}

// OpenBackfills returns the backfills that have not ended, oldest first.
func OpenBackfills(s *state.State) ([]Backfill, error) {
	var open []Backfill
	if s.OpenBackfills() == 0 {
		return nil, nil
	}
	for row := range s.Backfills.All {
		if row.State.Ended() {
			continue
		}
		b, err := BackfillOf(row)
		if err != nil {
			return nil, err
		}
		b.InFlight = inFlight(s, row)
		open = append(open, b)
	}
	return open, nil
}

// PartitionBackfill is a backfill that has not ended and in which a given partition is not done yet.
type PartitionBackfill struct {
	ID          string              `json:"backfill_id"`
	Chunk       int32               `json:"chunk"`
	ChunkState  state.ChunkState    `json:"chunk_state"`
	State       state.BackfillState `json:"state"`
	PauseReason string              `json:"pause_reason,omitempty"`
	Next        string              `json:"next,omitempty"`
}

// BackfillsOf returns the backfills that have not ended and in which the given partition is not done yet.
func BackfillsOf(ctx context.Context, store blob.Store, s *state.State, asset ids.AssetKey, partition string) ([]PartitionBackfill, error) {
	var found []PartitionBackfill
	open, err := OpenBackfills(s)
	if err != nil {
		return nil, err
	}
	for _, b := range open {
		if !slices.Contains(b.Assets, asset.String()) {
			continue
		}
		doc, err := ReadChunks(ctx, store, s.Backfills.Get(b.ID).ChunksRef)
		if err != nil {
			return nil, err
		}
		at, position := doc.Find(asset, partition)
		if at < 0 {
			continue
		}
		row := s.Chunks.Get(state.ChunkKey{BackfillID: b.ID, Chunk: at})
		cells, err := state.ParseCells(row.Cells)
		if err != nil {
			return nil, fmt.Errorf("read chunk %d of backfill %s: %w", at, b.ID, err)
		}
		if is := cells[position]; is == state.CellLeft || is == state.CellRunning {
			found = append(found, PartitionBackfill{b.ID, at, row.State, b.State, b.PauseReason, b.Next})
		}
	}
	return found, nil
}
