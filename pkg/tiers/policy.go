package tiers

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// rowBytes is the approximate size of a row as JSON, in bytes.
	rowBytes = 400
	// taskBytes is the approximate memory of all rows of an ended task, in bytes. baseDue uses it to convert MinBase to
	// a number of tasks.
	taskBytes = 3000
	// inlineSlack limits the inline rows of a manifest while a merge writes them to files. If these rows and the rows of
	// a new delta together exceed inlineSlack times MaxInline bytes, the new delta is stored in files.
	inlineSlack = 4
	// smallShare decides whether the newest delta stays inline: it stays inline if it has at most 1/smallShare of the
	// bytes of all inline rows.
	smallShare = 8
	// fanIn is the minimum number of successive L1 deltas that a merge adds at once. If a manifest has more than maxL1
	// L1 deltas, the merge includes all of them.
	fanIn, maxL1 = 4, 64
	// manyDeltas is the number of deltas above which a new base is written. It is far more than
	// usual, and far less than a manifest may contain.
	manyDeltas = 1024
)

// job describes a merge of deltas, or of the whole state for a base.
type job struct {
	tier  string           // the tier of the result
	parts []manifest.Delta // the deltas that the result replaces, oldest first; empty for a base
}

func contains(jobs []job, tier string) bool {
	return slices.ContainsFunc(jobs, func(j job) bool { return j.tier == tier })
}

// due returns the merges that a manifest needs in addition to the running ones. inMemory is the number of tasks in
// memory. unmergeable means that deltas cannot be merged. In that case, a base is due: because it is written from
// memory, damaged files of deltas do not prevent it.
func (o *Options) due(m *manifest.Manifest, running []job, inMemory int, unmergeable bool) (due []job) {
	if !contains(running, manifest.TierL1) && !contains(running, manifest.TierBase) {
		switch _, files := manifest.SplitInline(m.L0); {
		case unmergeable || o.baseDue(m, inMemory):
			due = append(due, job{tier: manifest.TierBase})
		case len(files) >= o.MaxDeltas && !contains(running, manifest.TierL0):
			last := files[len(files)-1].ID // the merge includes the inline deltas between these files
			due = append(due, job{manifest.TierL1, intoL1(m.L1, upTo(m.L0, last))})
		}
	}
	free := m.L0 // the L0 deltas that no merge to L1 includes
	for _, j := range slices.Concat(running, due) {
		if j.tier == manifest.TierL1 {
			free = free[len(upTo(free, j.parts[len(j.parts)-1].ID)):]
		}
	}
	if inlineBytes(free) > max(o.MaxInline, 0) && !contains(running, manifest.TierL0) {
		due = append(due, job{manifest.TierL0, firstInline(free)})
	}
	return due
}

// upTo returns the deltas up to and including the delta with the given id. If no delta has this id, it returns no
// deltas.
func upTo(deltas []manifest.Delta, id string) []manifest.Delta {
	return deltas[:slices.IndexFunc(deltas, func(d manifest.Delta) bool { return d.ID == id })+1]
}

// baseDue reports whether a new base is due: the deltas together are larger than half of the base, there are too many
// deltas, or most tasks in memory may be closed by now.
func (o *Options) baseDue(m *manifest.Manifest, inMemory int) bool {
	if len(m.L1)+len(m.L0) > manyDeltas {
		return true
	}
	var base, deltas, tasks int64
	for _, f := range m.BaseSnapshot.Files {
		base += f.Size
		if f.Table == "tasks" {
			tasks = f.Rows
		}
	}
	if int64(inMemory) > 2*tasks+o.MinBase/taskBytes {
		return true
	}
	for _, list := range [][]manifest.Delta{m.L1, m.L0} {
		for _, d := range list {
			for _, f := range d.Files {
				deltas += f.Size
			}
		}
	}
	return deltas > max(base/2, o.MinBase)
}

func inlineBytes(deltas []manifest.Delta) int64 {
	size := int64(0)
	for _, d := range deltas {
		if d.IsInline() {
			size += d.Bytes
		}
	}
	return size
}

// firstInline returns the first sequence of adjacent inline deltas. A merge must not skip a delta between its parts,
// because its result takes one position in the list, and newer rows must stay newer.
//
// The newest delta of a manifest stays inline if it is small. Some rows, such as the row of a run, change with each
// publish. Such a row is only in the newest delta (see [Tiers.dropOverwritten]). A merge would write this row to a
// file, although the next publish overwrites the row.
func firstInline(l0 []manifest.Delta) []manifest.Delta {
	l0 = l0[slices.IndexFunc(l0, manifest.Delta.IsInline):]
	if end := slices.IndexFunc(l0, func(d manifest.Delta) bool { return !d.IsInline() }); end >= 0 {
		return l0[:end]
	}
	if newest := len(l0) - 1; inlineBytes(l0) >= smallShare*l0[newest].Bytes {
		return l0[:newest]
	}
	return l0
}

// intoL1 returns the deltas to merge into one L1 delta: all deltas in l0, and some of the last deltas in l1. It adds a
// sequence of at least fanIn deltas of l1 if each of them is at most as large as all deltas after the sequence
// together. It then looks for another such sequence before the first one. If l1 has more than maxL1 deltas, it adds all
// of them.
func intoL1(l1, l0 []manifest.Delta) []manifest.Delta {
	size := int64(0)
	for _, d := range l0 {
		size += d.Bytes
	}
	from := len(l1)
	if from > maxL1 {
		from = 0
	}
	for {
		similar, sum := from, int64(0)
		for similar > 0 && l1[similar-1].Bytes <= size {
			similar--
			sum += l1[similar].Bytes
		}
		if from-similar < fanIn {
			return slices.Concat(l1[from:], l0)
		}
		from, size = similar, size+sum
	}
}

// cutoff returns the history cutoff for a new base of a manifest's state. Rows never return from history to the live
// state. So the cutoff must not be less than the previous one, and every entry below it must be so old that no
// listing looks for it any more.
func (o *Options) cutoff(m *manifest.Manifest) state.Cutoff {
	before := snapshot.CutoffOf(m)
	if m.FoldTime == 0 {
		return before
	}
	entries := min(ids.AtTime(m.FoldTime.Add(-o.KeepEntries).Time()), m.Watermarks.CompleteThrough)
	// Events that are not folded yet are newer than CompleteThrough, and a clock that is far ahead does not raise
	// CompleteThrough. So every run below the cutoff is really older than KeepRuns.
	runs := ids.AtTime(min(m.FoldTime, event.At(ids.Time(m.Watermarks.CompleteThrough))).Add(-o.KeepRuns).Time())
	return state.Cutoff{
		Seq: m.FoldSeq, Time: m.FoldTime, Entries: max(before.Entries, entries), Runs: max(before.Runs, runs), Partitions: before.Partitions,
	}
}
