package sim

import (
	"iter"
	"maps"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// index holds data that the oracle derives from the rows of a domain's newest revision. It is updated from the changed
// rows only, so that the cost of a revision does not grow with the state. It does not use the indexes of the state
// itself, because the oracle checks these.
type index struct {
	// slots counts the tasks that hold slots.
	slots slotCount
	// upstreams holds the task keys of the upstreams of each task.
	upstreams map[state.Key2][]string
	// liveRuns holds the runs that have not ended.
	liveRuns map[string]bool
	// openTicks holds the ticks whose outcome is not final.
	openTicks map[string]bool
	// makers maps each materialization to the run that creates it. showers maps each materialization to the partitions
	// that have shown it.
	makers  map[string]string
	showers map[string]map[state.Key2]bool
}

func newIndex() *index {
	return &index{
		slots: newSlotCount(), upstreams: map[state.Key2][]string{}, liveRuns: map[string]bool{}, openTicks: map[string]bool{},
		makers: map[string]string{}, showers: map[string]map[state.Key2]bool{},
	}
}

// follow updates the index to the newest revision. The parameter "before" is the state of the previous revision. follow
// returns the slots that were in use in that state.
func (x *index) follow(f *followed, before *state.State) slotCount {
	then := slotCount{all: x.slots.all, pool: maps.Clone(x.slots.pool)}
	if f.rows == nil {
		*x = *newIndex()
		before = state.New(f.domain)
	}
	for is := range changed(f, f.state.Tasks) {
		was := before.Tasks.Get(is.Key())
		x.slots.add(was, -1)
		x.slots.add(is, 1)
		if was == nil {
			x.makers[ids.MaterializationID(f.domain, is.RunID, is.TaskKey)] = is.RunID
		}
	}
	for _, row := range deleted[state.Task](f) {
		x.slots.add(before.Tasks.Get(row.Key()), -1)
	}
	x.followDeps(f, before)
	for is := range changed(f, f.state.Runs) {
		set(x.liveRuns, is.RunID, !is.State.Terminal())
	}
	for _, row := range deleted[state.Run](f) {
		delete(x.liveRuns, row.RunID)
	}
	for is := range changed(f, f.state.Ticks) {
		set(x.openTicks, is.TickID, !is.Outcome.Final())
	}
	for _, row := range deleted[state.Tick](f) {
		delete(x.openTicks, row.TickID)
	}
	for is := range changed(f, f.state.Partitions) {
		if x.showers[is.MaterializationID] == nil {
			x.showers[is.MaterializationID] = map[state.Key2]bool{}
		}
		x.showers[is.MaterializationID][is.Key()] = true
	}
	return then
}

// followDeps updates the upstreams from the changed edges. If any edge was deleted, a whole run was deleted, so
// followDeps reads all edges again.
func (x *index) followDeps(f *followed, before *state.State) {
	edges := changed(f, f.state.Deps)
	if len(deleted[state.Dep](f)) > 0 {
		clear(x.upstreams)
		before, edges = state.New(f.domain), f.state.Deps.All
	}
	for d := range edges {
		if before.Deps.Get(d.Key()) == nil {
			key := state.Key2{A: d.RunID, B: d.Downstream}
			x.upstreams[key] = append(x.upstreams[key], d.Upstream)
		}
	}
}

// set adds a key to a set or removes it.
func set(keys map[string]bool, key string, in bool) {
	if in {
		keys[key] = true
	} else {
		delete(keys, key)
	}
}

// shows returns the partitions that show a materialization.
func (f *followed) shows(materialization string) (rows []*state.Partition) {
	for key := range f.index.showers[materialization] {
		if row := f.state.Partitions.Get(key); row != nil && row.MaterializationID == materialization {
			rows = append(rows, row)
		}
	}
	return rows
}

// changed yields the rows of a table that the newest revision has written. If it is unknown which rows these are,
// changed yields all rows.
func changed[K, R comparable](f *followed, table state.Table[K, R]) iter.Seq[*R] {
	if f.rows == nil {
		return table.All
	}
	return func(yield func(*R) bool) {
		for _, row := range state.List[R](f.rows) {
			if !isDeleted(row) && !yield(row) {
				return
			}
		}
	}
}

// deleted returns the tombstones of a table that the newest revision has written.
func deleted[R any](f *followed) (rows []*R) {
	if f.rows == nil {
		return nil
	}
	for _, row := range state.List[R](f.rows) {
		if isDeleted(row) {
			rows = append(rows, row)
		}
	}
	return rows
}

func isDeleted[R any](row *R) bool {
	return any(row).(interface{ RowMeta() *state.Meta }).RowMeta().Deleted //nolint:forcetypeassert,errcheck // every row has this method
}

// replaced yields the old versions of the rows of a table that the newest revision has changed or deleted. If it is
// unknown which rows these are, replaced yields all rows.
func replaced[K, R comparable](f *followed, before state.Table[K, R]) iter.Seq[*R] {
	if f.rows == nil {
		return before.All
	}
	return func(yield func(*R) bool) {
		for _, row := range state.List[R](f.rows) {
			key := any(row).(interface{ Key() K }).Key() //nolint:forcetypeassert,errcheck // every row has this method
			if was := before.Get(key); was != nil && !yield(was) {
				return
			}
		}
	}
}
