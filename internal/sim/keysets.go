package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// drawKeys inserts changes of key sets into the scripts of half of the worlds.
func (l *workload) drawKeys(span time.Duration) {
	r := random(l.w.cfg.Seed, "keys", 0)
	if r.IntN(2) == 0 {
		return
	}
	for range 2 + r.IntN(8) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askKeys, project: l.projects[r.IntN(len(l.projects))]}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// changeKeys adds a few keys to a key set, or removes some.
func (c *client) changeKeys(ctx context.Context, e *engine.Engine) error {
	set := fmt.Sprintf("set%d", c.rng.IntN(2))
	var keys []string
	for range 1 + c.rng.IntN(4) {
		keys = append(keys, fmt.Sprintf("key%d", c.rng.IntN(6)))
	}
	change := e.AddKeys
	if c.rng.IntN(5) < 2 {
		change = e.RemoveKeys
		c.p.machine.w.fault("keys removed")
	}
	_, err := change(ctx, set, keys)
	if errors.Is(err, engine.ErrChanged) {
		return nil
	}
	return err
}

// keyCommand is a PartitionsChanged event in the ledger.
type keyCommand struct {
	entry, group, id string
	// at is the position of the event in its group.
	at int64
	*event.PartitionsChanged
}

// noteKeys remembers an entry's commands that change key sets.
func (f *followed) noteKeys(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for i, e := range group.Events {
			if p, ok := e.Payload.(*event.PartitionsChanged); ok {
				f.keyCommands = append(f.keyCommands, keyCommand{entry, group.ID, e.ID, int64(i), p})
			}
		}
	}
}

// modelKey is a key of a set in the oracle's model.
type modelKey struct {
	has     bool
	version string // id of the last change; "": unchanged since the key was first added
	seq     int64
}

// change applies a command to a key.
func (k *modelKey) change(known, add bool, id string, seq int64) {
	switch {
	case !known && add:
		k.has = true
	case !known:
		k.version = id
	case k.has == add || k.version > id:
	default:
		if !add || k.seq > 0 {
			k.seq = seq
		}
		k.has, k.version = add, id
	}
}

// checkKeySets applies the folded key commands in the order of folding, and compares the result with the rows of the
// key sets.
func (o *oracle) checkKeySets(f *followed) {
	seqs := map[int64]keyCommand{}
	var order []int64
	for _, c := range f.keyCommands {
		row := f.state.Entries.Get(state.Key2{A: c.entry, B: c.group})
		if row != nil && row.Outcome != state.DeadLetter && row.Outcome != state.Conflict {
			seqs[row.FirstSeq+c.at] = c
			order = append(order, row.FirstSeq+c.at)
		}
	}
	slices.Sort(order)
	model := map[state.Key2]*modelKey{}
	for _, seq := range order {
		c := seqs[seq]
		for i, key := range slices.Concat(c.Add, c.Remove) {
			at := state.Key2{A: c.KeySet, B: key}
			k, known := model[at]
			if !known {
				k = &modelKey{}
				model[at] = k
			}
			k.change(known, i < len(c.Add), c.id, seq)
		}
	}
	last := state.Key2{}
	for block := range f.state.KeySets.All {
		for is := range block.All() {
			at := state.Key2{A: block.Set, B: is.Key}
			want := model[at]
			delete(model, at)
			ordered := at.A > last.A || at.A == last.A && at.B > last.B
			if last = at; want == nil || !ordered || is.Key < block.First || *want != (modelKey{!is.Removed, is.Version, is.ChangedSeq}) {
				o.violation("key sets", "key %s of set %s of %s is %+v, but the folded commands left %+v", is.Key, block.Set, f.domain, is, want)
			}
		}
	}
	for at := range model {
		o.violation("key sets", "key %s of set %s of %s is missing", at.B, at.A, f.domain)
	}
}
