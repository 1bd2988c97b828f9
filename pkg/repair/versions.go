package repair

import (
	"slices"
	"sort"

	"github.com/oklog/ulid/v2"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// versions is for a rebuild that folds groups in another order than the original fold. A version is a fact that changed
// what plans read: a success of a task, a change of a key set, or marks. A plan recorded the sequence number of the
// state on which it was made, the observed state. This number is useless here, because the original fold assigned other
// numbers. versions translates the observed state into the sequence number of a version that this fold has created: the
// observed state contained this version and every version with a lesser number.
//
// A plan describes which ledger entries were in the observed state. Marks, retries, and plans of older builds do not
// describe these entries. For them, versions returns the greatest version that was created no later than the time of
// the observed state. This version may be too great if clocks disagree, or if a report was folded late.
type versions struct {
	// byTime contains versions in ascending order of both their sequence numbers and their times. It omits a version if
	// a greater version is as old or older.
	byTime []version
	// byEntry contains all versions in the order of folding. The field entry of an element is the greatest of the entries
	// of this version and of all versions before it.
	byEntry []madeIn
	// entries are the folded entries, sorted by id.
	entries []ulid.ULID
	// lowered contains, by run of a plan, the result of plannedSeq, if this result is less than that of createdUntil. It
	// also limits the results for retries of the run, because a retry is assumed to observe at most what its root run
	// observed.
	lowered map[string]int64
}

type version struct {
	at  event.Time
	seq int64
}

type madeIn struct {
	entry ulid.ULID
	seq   int64
}

// note adds the entry of a folded group, and the versions that the group may have created.
func (v *versions) note(g fold.Group, r fold.Result) {
	if r.Known || r.Row.Waits() {
		return
	}
	entry, err := ulid.ParseStrict(g.Entry)
	if err != nil {
		return // cannot happen: the names of entries are ULIDs
	}
	if !r.Row.Timer {
		v.noteEntry(entry)
	}
	if r.Row.Outcome != state.Folded {
		return
	}
	for i, e := range g.Events {
		task, ended := e.Payload.(*event.TaskFinished)
		_, changed := e.Payload.(*event.PartitionsChanged)
		_, marked := e.Payload.(*event.PartitionsMarked)
		if changed || marked || ended && task.Outcome == event.Succeeded {
			v.add(version{e.Time, r.Row.FirstSeq + int64(i)}, entry)
		}
	}
}

func (v *versions) noteEntry(entry ulid.ULID) {
	at, known := slices.BinarySearchFunc(v.entries, entry, ulid.ULID.Compare) // nearly always the end
	if !known {
		v.entries = slices.Insert(v.entries, at, entry)
	}
}

func (v *versions) add(next version, entry ulid.ULID) {
	keep := len(v.byTime)
	for keep > 0 && v.byTime[keep-1].at >= next.at {
		keep--
	}
	v.byTime = append(v.byTime[:keep], next)
	if n := len(v.byEntry); n > 0 && v.byEntry[n-1].entry.Compare(entry) > 0 {
		entry = v.byEntry[n-1].entry
	}
	v.byEntry = append(v.byEntry, madeIn{entry, next.seq})
}

// observedSeqs returns, for each plan and each mark in a group, the sequence number of the state that the writer of the
// plan or mark observed. The keys are the runs of the plans and the commands of the marks. It returns nil if the group
// has neither plans nor marks.
func (v *versions) observedSeqs(g fold.Group) map[string]int64 {
	if g.Reason != "" {
		return nil // the group becomes a dead letter, and its events may be incomplete
	}
	var observed map[string]int64
	note := func(id string, seq int64) {
		if observed == nil {
			observed = map[string]int64{}
		}
		observed[id] = seq
	}
	roots := map[string]string{}
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.RunTriggered); ok {
			roots[p.RunID] = p.RootRun
		}
		if p, ok := e.Payload.(*event.PlanCreated); ok {
			note(p.RunID, v.plannedSeq(p, roots[p.RunID]))
		}
		if p, ok := e.Payload.(*event.PartitionsMarked); ok {
			note(p.CommandID, v.createdUntil(p.ObservedTime))
		}
	}
	return observed
}

// plannedSeq returns the sequence number of the state that a plan observed. The parameter root is the root run if the
// plan's run is a retry, or "".
func (v *versions) plannedSeq(p *event.PlanCreated, root string) int64 {
	seq := v.createdUntil(p.ObservedTime)
	if root != "" {
		if lowered, ok := v.lowered[root]; ok {
			seq = min(seq, lowered)
		}
		return seq
	}
	if p.ObservedLast == "" {
		return seq
	}
	if by := v.inEntries(p); by < seq {
		if v.lowered == nil {
			v.lowered = map[string]int64{}
		}
		v.lowered[p.RunID], seq = by, by
	}
	return seq
}

// inEntries returns the greatest version up to which a plan observed all versions: the observed state contained the
// entry of this version, and the entries of all lesser versions. Normally, the observed state contained all entries
// up to ObservedLast. If the hash shows that an entry was missing, inEntries relies only on the entries below
// ObservedThrough.
func (v *versions) inEntries(p *event.PlanCreated) int64 {
	through, _ := ulid.ParseStrict(p.ObservedThrough) // "" and invalid ids become 0
	last, err := ulid.ParseStrict(p.ObservedLast)
	if err != nil {
		return 0
	}
	var hash state.EntryHash
	from, _ := slices.BinarySearchFunc(v.entries, through, ulid.ULID.Compare)
	for _, entry := range v.entries[from:] {
		if entry.Compare(last) > 0 {
			break
		}
		hash.Add(entry.String())
	}
	all := hash.String() == p.ObservedEntries
	n := sort.Search(len(v.byEntry), func(i int) bool {
		if all {
			return v.byEntry[i].entry.Compare(last) > 0
		}
		return v.byEntry[i].entry.Compare(through) >= 0
	})
	if n == 0 {
		return 0
	}
	return v.byEntry[n-1].seq
}

// createdUntil returns the greatest version that was created no later than a time, or 0.
func (v *versions) createdUntil(at event.Time) int64 {
	n := sort.Search(len(v.byTime), func(i int) bool { return v.byTime[i].at > at })
	if n == 0 {
		return 0
	}
	return v.byTime[n-1].seq
}
