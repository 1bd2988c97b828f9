package repair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Result is what a rebuild made.
type Result struct {
	Revision int64 `json:"revision"`
	Entries  int   `json:"entries"`
	Rows     int64 `json:"rows"`
	// Recorded says that the order in which the ledger had been folded was known,
	// so that the state is the same as it was; else it is a valid one, in which all
	// facts hold.
	Recorded bool `json:"recorded_order"`
	// Lost is how many groups the state had folded that the ledger does not have any
	// more, as far as that is known: what they said is forgotten.
	Lost int `json:"lost_groups,omitempty"`
	// Renamed is how many entries were named far ahead of the store's clock and have
	// names of the store's time now.
	Renamed int `json:"renamed_entries,omitempty"`
}

// LostError says that the ledger lacks what the state has folded.
type LostError struct {
	// Groups are what it lacks, a line each.
	Groups []string
}

// Error implements error.
func (e *LostError) Error() string {
	const some = 5
	var text strings.Builder
	groups := "1 group"
	if n := len(e.Groups); n > 1 {
		groups = fmt.Sprintf("%d groups", n)
	}
	text.WriteString("the ledger lacks " + groups + " that the state has folded, or their plans, and a rebuild would forget what was said there: tasks that have ended may run again")
	for _, line := range e.Groups[:min(some, len(e.Groups))] {
		text.WriteString("\n  " + line)
	}
	if len(e.Groups) > some {
		text.WriteString("\n  …")
	}
	return text.String()
}

// Reads are what the keys begin with that a rebuild reads: without the first three it
// makes another state, and without the others it knows neither the order in which the
// ledger was folded nor which revisions there were.
func Reads(d ids.Domain) []string {
	return []string{
		ledger.Prefix(d), archive.Prefix(d), compactor.PlanPrefix(d), manifest.Prefix(d), manifest.PinPrefix(d), manifest.StatePrefix(d),
		manifest.BoundaryKey(d), manifest.HintKey(d),
	}
}

// Writes are what the keys begin with that a rebuild writes, in its order: what is copied
// is copied in the same one.
func Writes(d ids.Domain) []string {
	return []string{manifest.StatePrefix(d), manifest.BoundaryKey(d), manifest.Prefix(d), manifest.HintKey(d)}
}

// Rebuild makes the state anew from the ledger and publishes it as a new
// lineage. The caller must own the domain: nobody else may be writing.
//
// Where ledger_entries can still be read the ledger is replayed in its recorded
// order; without it, entry by entry in the order of their ids, as far as nothing
// speaks against it. Where the record says that the ledger has lost entries the error
// is a [LostError], unless the caller wants them forgotten.
func Rebuild(ctx context.Context, cfg Config) (Result, error) {
	result := Result{}
	st := state.New(cfg.Domain)
	cut := state.Cut{} // what was late for the last one stays so, and so does what was passed by
	var named *renaming
	if order, m, err := cfg.recorded(ctx); err == nil {
		base := m.BaseSnapshot
		if named, err = cfg.rename(ctx, order, m.Watermarks.CompleteThrough); err != nil {
			return Result{}, err
		}
		replayed, err := cfg.replay(ctx, order, base.RunsFrom, nil, named.to)
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if result.Lost = len(replayed.lost); result.Lost > 0 && !cfg.Forget {
			return Result{}, &LostError{Groups: replayed.lost}
		}
		if err == nil && result.Lost == 0 && len(replayed.problems) == 0 {
			st, result.Recorded, cut.Runs, cut.Entries = replayed.state, true, base.RunsFrom, base.EntriesFrom
		}
	}
	if !result.Recorded {
		named = nil // no order, no names: what is far ahead is refused
	}
	if err := named.create(ctx); err != nil {
		return Result{}, err
	}
	entries, err := cfg.foldRest(ctx, st, cut.Entries, named)
	if err != nil {
		return Result{}, err
	}
	result.Entries, result.Renamed = entries, named.len()
	cut.Seq, cut.Time = st.FoldSeq, st.FoldTime
	if result, err = cfg.publish(ctx, st, cut, result); err != nil {
		return Result{}, err
	}
	return result, named.drop(ctx)
}

// recorded reads ledger_entries alone, from the newest manifest, and gives that manifest.
func (cfg Config) recorded(ctx context.Context) (order []place, m *manifest.Manifest, err error) {
	if m, err = cfg.Manifests.Load(ctx); err != nil {
		return nil, nil, err
	}
	only := *m
	only.BaseSnapshot.Files = onlyEntries(m.BaseSnapshot.Files, func(f manifest.File) string { return f.Table })
	only.L1, only.L0, only.History = nil, nil, nil
	for _, d := range slices.Concat(m.L1, m.L0) {
		d.Files = onlyEntries(d.Files, func(f manifest.File) string { return f.Table })
		d.Inline = onlyEntries(d.Inline, func(r manifest.Rows) string { return r.Table })
		only.L0 = append(only.L0, d)
	}
	st, err := snapshot.Load(ctx, cfg.Codec, cfg.Manifests, &only)
	if err != nil {
		return nil, nil, err
	}
	order = appendPlaces(nil, st.Entries.Rows())
	for rows, err := range snapshot.Segments(ctx, cfg.Codec, cfg.Manifests, m, "ledger_entries") {
		if err != nil {
			return nil, nil, err
		}
		order = appendPlaces(order, rows.Entries)
	}
	return order, m, nil
}

// onlyEntries are those that hold rows of ledger_entries.
func onlyEntries[T any](parts []T, table func(T) string) []T {
	return slices.DeleteFunc(slices.Clone(parts), func(part T) bool { return table(part) != "ledger_entries" })
}

// foldRest folds, in the order of the ids, whatever of ledger and archive is not
// folded yet. What was not and is named below an id was passed by: it appeared when its
// writer had given it up.
//
// What is far ahead of the store's clock is refused, as the compactor refuses it.
func (cfg Config) foldRest(ctx context.Context, st *state.State, passedBy string, named *renaming) (int, error) {
	r, waiting := cfg.reader(), cfg.reader()
	h := newHeld()
	n := 0
	for e, err := range r.entries.List(ctx, archive.Range{}) {
		if err != nil {
			return n, err
		}
		if e.ID < passedBy && !st.Recorded(e.ID) || named.has(e.ID) {
			continue
		}
		n++
		if e.Data != nil {
			e.Stored = ids.Time(e.ID).Add(ledger.MaxBehind) // at the latest
			err = r.take(ctx, e.ID, e.Data)
		} else {
			err = r.load(ctx, e.ID)
		}
		if err != nil {
			return n, err
		}
		compactor.RefuseAhead(r.groups, e.Stored)
		for _, g := range slices.Clone(r.groups) {
			if err := foldAll(ctx, st, waiting, h.next(st, g)); err != nil {
				return n, err
			}
		}
	}
	if err := foldAll(ctx, st, waiting, h.rest()); err != nil {
		return n, err
	}
	for _, key := range h.timers {
		g, err := r.group(ctx, key.A, key.B)
		if err == nil {
			err = foldOne(ctx, st, waiting, g)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func foldAll(ctx context.Context, st *state.State, waiting *reader, groups []fold.Group) error {
	for _, g := range groups {
		if err := foldOne(ctx, st, waiting, g); err != nil {
			return err
		}
	}
	return nil
}

// foldOne folds a group, and then the dead letters that waited for what it brought.
func foldOne(ctx context.Context, st *state.State, waiting *reader, g fold.Group) error {
	queue := []fold.Group{g}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for _, run := range fold.Apply(st, next).Appeared {
			for _, key := range st.Waiting(run) {
				redriven, err := waiting.group(ctx, key.A, key.B)
				if err != nil {
					return err
				}
				queue = append(queue, redriven)
			}
		}
	}
	return nil
}

// publish writes a state as the first revision of a new lineage: what lives, and as history
// what is closed, as the next base would, so that whoever opens it need not have all of it
// in memory. Its files are written before the old lineage ends.
func (cfg Config) publish(ctx context.Context, st *state.State, cut state.Cut, result Result) (Result, error) {
	last := lastEntry(st)
	history, buried, err := cfg.bury(ctx, st.Evict(cut).KeptFrom(cut.Runs))
	if err != nil {
		return Result{}, err
	}
	base := manifest.BaseSnapshot{ID: cfg.IDs.New(), RunsFrom: cut.Runs}
	if cut.Time != 0 {
		base.FoldSeq, base.FoldTime, base.EntriesFrom = cut.Seq, cut.Time, cut.Entries
	}
	files, err := cfg.Codec.Encode(st.All())
	if err != nil {
		return Result{}, err
	}
	result.Rows = buried
	for _, f := range files {
		stored, err := cfg.store(ctx, f, manifest.TierBase)
		if err != nil {
			return Result{}, err
		}
		base.Files = append(base.Files, stored)
		result.Rows += f.Rows
	}
	m, err := cfg.Manifests.NewLineage(ctx, cfg.Writer)
	if err != nil {
		return Result{}, err
	}
	base.Revision = m.Revision
	m.BaseSnapshot, m.History = base, history
	m.FoldSeq, m.FoldTime = st.FoldSeq, st.FoldTime
	if last != "" {
		m.Watermarks.EventsProcessedThrough, m.Watermarks.LastProcessedFile = last, ledger.Key(cfg.Domain, last)
	}
	if err := cfg.Manifests.Publish(ctx, m); err != nil {
		return Result{}, fmt.Errorf("publish rebuilt state: %w; run `servo admin rebuild` again", err)
	}
	result.Revision = m.Revision
	return result, nil
}

// bury writes rows as segments of history, and an index of each table; and gives these, and
// how many rows there are.
func (cfg Config) bury(ctx context.Context, closed *state.Rows) (indexes map[string]manifest.File, rows int64, err error) {
	segments := map[string][]manifest.File{}
	for portion := range closed.Chunks(snapshot.MaxSegment) {
		files, err := cfg.Codec.Encode(portion)
		if err != nil {
			return nil, 0, err
		}
		for _, f := range files {
			stored, err := cfg.store(ctx, f, manifest.TierHistory)
			if err != nil {
				return nil, 0, err
			}
			stored.MinEntry, stored.MaxEntry = f.MinEntry, f.MaxEntry
			segments[f.Table] = append(segments[f.Table], stored)
			rows += f.Rows
		}
	}
	for _, table := range slices.Sorted(maps.Keys(segments)) { // in one order: each takes an id
		data, index, err := manifest.EncodeIndex(manifest.IndexKey(cfg.Domain, table, cfg.IDs.New()), table, segments[table])
		if err == nil {
			err = cfg.create(ctx, index.Key, data)
		}
		if err != nil {
			return nil, 0, err
		}
		if indexes == nil {
			indexes = map[string]manifest.File{}
		}
		indexes[table] = index
	}
	return indexes, rows, nil
}

func (cfg Config) store(ctx context.Context, f snapshot.File, tier string) (manifest.File, error) {
	key := manifest.StateKey(cfg.Domain, f.Table, tier, cfg.IDs.New())
	return manifest.File{
		Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data),
		MinRun: f.MinRun, MaxRun: f.MaxRun,
	}, cfg.create(ctx, key, f.Data)
}

func (cfg Config) create(ctx context.Context, key string, data []byte) error {
	if _, err := cfg.Store.Create(ctx, key, data); err != nil {
		return fmt.Errorf("write rebuilt state: %w", err)
	}
	return nil
}

func lastEntry(st *state.State) string {
	last := ""
	for row := range st.Entries.All {
		if row.Reason != event.ReasonClockAhead {
			last = max(last, row.Entry)
		}
	}
	return last
}
