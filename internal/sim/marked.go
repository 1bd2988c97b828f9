package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

var marks = []string{event.MarkStale, event.MarkFresh, event.MarkMissing}

// drawMarks inserts marks of outputs into the scripts of half of the worlds.
func (l *workload) drawMarks(span time.Duration) {
	r := random(l.w.cfg.Seed, "marks", 0)
	if r.IntN(2) == 0 {
		return
	}
	for range 1 + r.IntN(8) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		p := l.projects[r.IntN(len(l.projects))]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askMark, project: p, only: r.IntN(len(p.assets))}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// mark marks all outputs of an asset.
func (c *client) mark(ctx context.Context, e *clientEngine, a ask) error {
	current, err := e.CurrentDeployment(ctx)
	if err != nil {
		return err
	}
	r := engine.MarkRequest{
		Assets: a.project.coded(c.p.machine.w.load.version(e.domain, current.Release)), Asset: a.project.assets[a.only].Key, Mark: marks[c.rng.IntN(len(marks))], Reason: "because",
	}
	if a.project.assets[a.only].Partitions != nil {
		r.Partitions = []plan.Selection{{Everything: true}}
	}
	_, err = e.Mark(ctx, r)
	if invalid, changed := new(engine.InvalidError), engine.ErrChanged; errors.As(err, &invalid) || errors.Is(err, changed) {
		return nil
	}
	if err == nil {
		c.p.machine.w.fault("marked " + r.Mark)
	}
	return err
}

// markCommand is a PartitionsMarked event in the ledger.
type markCommand struct {
	entry, group string
	*event.PartitionsMarked
}

// noteMarks remembers an entry's commands that mark outputs.
func (f *followed) noteMarks(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.PartitionsMarked); ok {
				f.markCommands = append(f.markCommands, markCommand{entry, group.ID, p})
			}
		}
	}
}

// appliedMarks returns, for each output, the folded command that applies: the first command that marks the output as
// missing, or else the command with the greatest id. It also returns whether the commands may differ from those of the
// previous revision.
func (f *followed) appliedMarks() (said map[state.Key3]markCommand, differs bool) {
	var folded []markCommand
	for _, c := range f.markCommands {
		row := f.state.Entries.Get(state.Key2{A: c.entry, B: c.group})
		if row != nil && row.Outcome != state.DeadLetter && row.Outcome != state.Conflict {
			folded = append(folded, c)
		}
	}
	if f.rows != nil && slices.Equal(folded, f.marksFolded) {
		return f.marksSaid, false
	}
	said = map[state.Key3]markCommand{}
	f.marksFolded, f.marksSaid = folded, said
	for _, c := range folded {
		for _, p := range c.Partitions {
			key := state.Key3{A: c.Asset, B: p.Partition, C: p.MaterializationID}
			old, known := said[key]
			if !known || old.Mark != event.MarkMissing && (c.Mark == event.MarkMissing || c.CommandID > old.CommandID) {
				said[key] = c
			}
		}
	}
	return said, true
}

// checkMarks compares the marks of current outputs with the folded commands. Readers must not find outputs that are
// marked as missing, and every mark must come from a command.
func (o *oracle) checkMarks(f *followed) {
	if len(f.markCommands) == 0 {
		return
	}
	const invariant = "marks"
	said, differs := f.appliedMarks()
	seen := &snapshot.Snapshot{State: f.state}
	rows, marks := changed(f, f.state.Partitions), changed(f, f.state.Marks)
	if differs || len(deleted[state.Mark](f)) > 0 || slices.Collect(marks) != nil {
		rows, marks = f.state.Partitions.All, f.state.Marks.All
	}
	for row := range rows {
		key := state.Key3{A: row.AssetKey, B: row.PartitionKey, C: row.MaterializationID}
		want, is := said[key], f.state.Marks.Get(key)
		switch {
		case want.PartitionsMarked == nil && is == nil:
		case want.PartitionsMarked == nil || is == nil || is.Mark != want.Mark:
			o.violation(invariant, "output %s of %s%s has the mark %+v, but the folded commands say %+v", row.MaterializationID, row.AssetKey, row.PartitionKey, is, want)
		case want.Mark == event.MarkMissing:
			o.w.fault("output hidden")
			if found, err := seen.Partition(context.Background(), row.AssetKey, row.PartitionKey); found != nil || err != nil {
				o.violation(invariant, "readers find the hidden output %s of %s%s (%v)", row.MaterializationID, row.AssetKey, row.PartitionKey, err)
			}
		}
	}
	for m := range marks {
		if said[m.Key()].PartitionsMarked == nil {
			o.violation(invariant, "nobody has marked output %s of %s%s as %s", m.MaterializationID, m.AssetKey, m.PartitionKey, m.Mark)
		}
	}
}

// freshMark returns the fold sequence number up to which a mark declares a partition fresh, or 0 if the partition has
// no mark. The caller has found that the partition is fresh, so a mark as stale or missing is a violation.
func (o *oracle) freshMark(f *followed, row *state.Partition) int64 {
	m := f.state.MarkOf(row)
	if m == nil {
		return 0
	}
	if m.Mark != event.MarkFresh {
		o.violation("I-21 never fresh when stale", "%s of run %s is fresh, but marked as %s", row.TaskKey, row.RunID, m.Mark)
	}
	return m.InputsSeq
}

// deletable reports whether a person has hidden a visible output for so long that it may be deleted.
func (o *oracle) deletable(f *followed, row *state.Partition) bool {
	m := f.state.MarkOf(row)
	if m == nil || m.Mark != event.MarkMissing {
		return false
	}
	keep, ok := o.w.cfg.outputs(row.AssetKey)
	return ok && event.At(o.w.now()).Sub(m.MarkedAt) >= keep.WithDefaults().For
}
