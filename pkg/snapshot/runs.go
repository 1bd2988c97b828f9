package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// RunHead contains the columns of a run that a [RunQuery] compares. Decoding only these columns takes a tenth of the
// time that whole rows need.
type RunHead struct {
	RunID       string         `col:"run_id,key"`
	TriggerType string         `col:"trigger_type,dict"`
	State       state.RunState `col:"state,dict"`
	RootAssets  string         `col:"root_assets,null"`
	ScheduleID  string         `col:"schedule_id,null,dict"`
	TasksFailed int32          `col:"tasks_failed"`
	// RootAssetsTotal is the number of requested assets. RootAssets names only the first 20.
	RootAssetsTotal int32 `col:"root_assets_total"`
}

var runHeadSchema = &table.Of[RunHead](runsTable).Schema

func headOf(r *state.Run) RunHead {
	return RunHead{r.RunID, r.TriggerType, r.State, r.RootAssets, r.ScheduleID, r.TasksFailed, r.RootAssetsTotal}
}

// RunQuery is a query for the newest runs, live and closed.
type RunQuery struct {
	// Before and Since restrict the ids of the runs: an id must be less than Before and at least Since. "": no
	// restriction.
	Before, Since string
	Limit         int
	// Match reports whether the query accepts a run. If it is nil, the query accepts all runs.
	Match func(RunHead) bool
	// Most is the approximate maximum number of closed runs that the query examines; 0: no limit.
	Most int
	// Enough reports whether the query must stop because it has taken too long. If it is nil, the query has no time
	// limit.
	Enough func() bool
}

// RunPage is the result of a [RunQuery].
type RunPage struct {
	// Runs are the newest runs, newest first.
	Runs []*state.Run
	// Next is the value of [RunQuery.Before] for the next page. It is "" after the last page. If Next is not "", Runs
	// may still contain fewer runs than Limit, because Most or Enough can end a query early.
	Next string
	// Looked is the number of closed runs whose columns the query compared. Live runs are not included.
	Looked int
}

// FindRuns returns the newest runs that a query accepts. It decodes the parts of history one by one, beginning with
// the newest, until it has enough runs.
func (s *Snapshot) FindRuns(ctx context.Context, q RunQuery) (RunPage, error) {
	f := runFinder{h: s.History, q: q}
	s.State.Runs.Ascend(q.Since, func(run *state.Run) bool {
		if q.Before != "" && run.RunID >= q.Before {
			return false
		}
		if q.Match == nil || q.Match(headOf(run)) {
			f.found = append(f.found, foundRun{id: run.RunID, row: run})
		}
		return true
	})
	slices.Reverse(f.found)
	next, err := f.run(ctx)
	if err != nil {
		return RunPage{}, err
	}
	page := RunPage{Looked: f.looked, Next: next}
	page.Runs, err = f.rows()
	return page, err
}

// foundRun is a run that a query accepts: its row, or the position of its row in a part of a file.
type foundRun struct {
	id  string
	row *state.Run
	in  *runPart
	at  int
}

// runPart is a part of a segment of the table "runs". The query may have to read this part. If the segment has not been
// opened yet, runPart is the whole segment.
type runPart struct {
	file            manifest.File
	parts           table.Parts
	part            int
	least, greatest string
}

// runFinder executes a query.
type runFinder struct {
	h      History
	q      RunQuery
	left   []*runPart
	found  []foundRun // newest first
	looked int
}

// run examines parts until it has found enough runs. It returns [RunPage.Next].
func (f *runFinder) run(ctx context.Context) (next string, err error) {
	if index, has := f.h.indexes[runsTable]; has {
		if f.q.Limit > 0 && f.above(index.MaxRun) >= f.q.Limit { // no run in history is newer than these
			f.found = f.found[:f.q.Limit]
			return f.found[f.q.Limit-1].id, nil
		}
		files, err := f.h.store.Segments(ctx, index)
		if err != nil {
			return "", err
		}
		for _, file := range files {
			f.add(&runPart{file: file, least: file.MinRun, greatest: file.MaxRun})
		}
	}
	for {
		at := f.newest()
		if at < 0 {
			break
		}
		bound := f.left[at].greatest // all runs above bound have been examined
		if done := f.above(bound); done > f.q.Limit || done == f.q.Limit && f.q.Limit > 0 {
			f.found = f.found[:f.q.Limit]
			return f.found[f.q.Limit-1].id, nil
		} else if f.looked > 0 && (f.q.Before == "" || bound+"!" < f.q.Before) && (f.q.Most > 0 && f.looked >= f.q.Most || f.q.Enough != nil && f.q.Enough()) {
			f.found = f.found[:done]
			return bound + "!", nil // a query with this Before finds the run with the id in bound, but no later runs
		}
		part := f.left[at]
		f.left = slices.Delete(f.left, at, at+1)
		if err := f.look(ctx, part); err != nil {
			return "", err
		}
	}
	if len(f.found) > f.q.Limit {
		f.found = f.found[:f.q.Limit]
		return f.found[f.q.Limit-1].id, nil
	}
	return "", nil
}

// add adds a part to f.left if the part may contain runs that the query accepts.
func (f *runFinder) add(p *runPart) {
	if p.greatest < f.q.Since || f.q.Before != "" && p.least >= f.q.Before || !f.h.Kept(p.greatest) {
		return
	}
	f.left = append(f.left, p)
}

// newest returns the index in f.left of the part that contains the greatest run id, or -1 if f.left is empty.
func (f *runFinder) newest() int {
	at := -1
	for i, p := range f.left {
		if at < 0 || p.greatest > f.left[at].greatest {
			at = i
		}
	}
	return at
}

// above returns the number of found runs whose ids are greater than a bound.
func (f *runFinder) above(bound string) int {
	n, _ := slices.BinarySearchFunc(f.found, bound, func(r foundRun, bound string) int { return strings.Compare(bound, r.id) })
	return n
}

// look examines a part, and adds the runs that the query accepts to f.found. If p is a segment that is not open yet,
// look opens it and adds its parts to f.left.
func (f *runFinder) look(ctx context.Context, p *runPart) error {
	switch {
	case !f.h.divided():
		return f.lookAtFile(ctx, p)
	case p.parts == nil:
		parts, err := f.h.open(ctx, p.file)
		if err != nil {
			return err
		}
		for i := range parts.Len() {
			one := &runPart{file: p.file, parts: parts, part: i, least: p.least, greatest: p.greatest}
			if least, greatest, known := parts.Bounds(i, runIDColumn); known {
				one.least, one.greatest = least, greatest
			}
			f.add(one)
		}
		return nil
	}
	heads, err := f.h.heads(p)
	if err != nil {
		return err
	}
	f.looked += len(heads)
	var found []foundRun
	for i, head := range slices.Backward(heads) {
		if len(found) > f.q.Limit { // enough to fill the page, and to know that a next page exists
			break
		}
		if f.accepts(head) {
			found = append(found, foundRun{id: head.RunID, in: p, at: i})
		}
	}
	f.merge(found)
	return nil
}

func (f *runFinder) accepts(head RunHead) bool {
	return head.RunID >= f.q.Since && (f.q.Before == "" || head.RunID < f.q.Before) && f.h.Kept(head.RunID) && (f.q.Match == nil || f.q.Match(head))
}

// lookAtFile is like look, but examines a file that has no parts.
func (f *runFinder) lookAtFile(ctx context.Context, p *runPart) error {
	runs, err := f.h.runs(ctx, []manifest.File{p.file})
	if err != nil {
		return err
	}
	f.looked += len(runs)
	var found []foundRun
	for _, run := range slices.Backward(runs) {
		if f.accepts(headOf(run)) {
			found = append(found, foundRun{id: run.RunID, row: run})
		}
	}
	f.merge(found)
	return nil
}

// merge adds runs, newest first, to those that were found before.
func (f *runFinder) merge(found []foundRun) {
	byAge := func(a, b foundRun) int { return strings.Compare(b.id, a.id) }
	sorted := len(f.found) == 0 || len(found) == 0 || byAge(f.found[len(f.found)-1], found[0]) <= 0
	if f.found = append(f.found, found...); !sorted {
		slices.SortFunc(f.found, byAge)
	}
}

// rows decodes the rows of the found runs.
func (f *runFinder) rows() ([]*state.Run, error) {
	rows := make([]*state.Run, len(f.found))
	places := map[*runPart][]int{} // indexes into f.found, newest first
	for i, r := range f.found {
		if rows[i] = r.row; r.row == nil {
			places[r.in] = append(places[r.in], i)
		}
	}
	for p, found := range places {
		slices.Reverse(found) // now in the order of the rows in the file
		at := make([]int, len(found))
		for j, i := range found {
			at[j] = f.found[i].at
		}
		list, err := runsDeclaration.DecodePart(p.parts, p.part, rangesOf(at))
		if err != nil {
			return nil, unreadable(p.file, err)
		}
		decoded := list.([]*state.Run) //nolint:errcheck // the table has this row type
		for j, i := range found {
			rows[i] = decoded[j]
		}
	}
	return rows, nil
}

// heads returns the heads of the runs of a part.
func (h History) heads(p *runPart) ([]RunHead, error) {
	key := fmt.Sprintf("%s#%d", p.file.Key, p.part)
	if known, has := h.codec.heads.get(key); has {
		return known, nil
	}
	heads, err := decodeRows[RunHead](runHeadSchema, p.parts, p.part)
	if err != nil {
		return nil, unreadable(p.file, err)
	}
	h.codec.heads.put(key, heads, len(heads))
	return heads, nil
}
