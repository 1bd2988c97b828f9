package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// drawForgetting inserts commands that forget assets into the scripts of a third of the worlds.
func (l *workload) drawForgetting(span time.Duration) {
	r := random(l.w.cfg.Seed, "forgetting", 0)
	if r.IntN(3) > 0 {
		return
	}
	for range 1 + r.IntN(4) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		p := l.projects[r.IntN(len(l.projects))]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askForget, project: p, only: r.IntN(len(p.assets))}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// hide marks the outputs of an asset as stale, fresh or missing, or forgets the asset.
func (c *client) hide(ctx context.Context, e *clientEngine, a ask) error {
	if a.verb == askForget {
		return c.forget(ctx, e, a)
	}
	return c.mark(ctx, e, a)
}

// forget forgets an asset. The next run may bring the asset back, because simulated releases have no list of assets.
func (c *client) forget(ctx context.Context, e *clientEngine, a ask) error {
	current, err := e.CurrentDeployment(ctx)
	if err != nil {
		return err
	}
	_, err = e.Forget(ctx, engine.ForgetRequest{
		Assets: []ids.AssetKey{a.project.assets[a.only].Key}, Release: current.Release, Reason: "because", DryRun: c.rng.IntN(8) == 0,
	})
	if invalid := new(engine.InvalidError); errors.As(err, &invalid) || errors.Is(err, engine.ErrChanged) || errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		c.p.machine.w.fault("asset forgotten")
	}
	return err
}

// forgetCommand is an AssetsForgotten event in the ledger.
type forgetCommand struct {
	entry, group string
	*event.AssetsForgotten
}

// noteForgotten remembers an entry's commands that forget assets.
func (f *followed) noteForgotten(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.AssetsForgotten); ok {
				f.forgetCommands = append(f.forgetCommands, forgetCommand{entry, group.ID, p})
			}
		}
	}
}

// checkForgotten compares the forgotten assets with the folded commands. For each asset, the command with the greatest
// id applies: readers must find exactly the outputs that became visible after this command was folded.
func (o *oracle) checkForgotten(f *followed) {
	if len(f.forgetCommands) == 0 {
		return
	}
	const invariant = "forgotten assets"
	greatest, known := map[string]string{}, map[string]bool{}
	folded := map[string]int64{} // the fold sequence number of the command with the greatest id, by asset
	for _, c := range f.forgetCommands {
		known[c.CommandID] = true
		row := f.state.Entries.Get(state.Key2{A: c.entry, B: c.group})
		if row == nil || row.Outcome != state.Folded {
			continue
		}
		for _, asset := range c.Assets {
			if c.CommandID > greatest[asset] {
				greatest[asset], folded[asset] = c.CommandID, row.FirstSeq
			}
		}
	}
	for asset, command := range greatest {
		if row := f.state.Forgotten.Get(asset); row == nil || row.CommandID < command {
			o.violation(invariant, "the folded command %s has forgotten %s, but the state says %+v", command, asset, row)
		}
	}
	for row := range f.state.Forgotten.All {
		if !known[row.CommandID] || row.RunsBelow != "" && row.RunsBelow != row.CommandID {
			o.violation(invariant, "the state says that %s was forgotten by command %s for runs below %q, but the ledger has no such command", row.AssetKey, row.CommandID, row.RunsBelow)
		}
	}
	for row := range f.state.Partitions.All {
		if forgotten := f.state.Forgotten.Get(row.AssetKey); forgotten != nil && forgotten.CommandID == greatest[row.AssetKey] {
			o.checkForgottenOutput(f, row, folded[row.AssetKey], forgotten.RunsBelow)
		}
	}
}

// checkForgottenOutput checks whether readers find an output of an asset that was forgotten at the fold sequence number
// "seq". Readers must find an output if it became visible later, and no earlier output. If "below" is not empty, the
// state comes from a rebuild without the recorded order. Then the outputs of runs whose ids are lower than "below" must
// be hidden, too.
func (o *oracle) checkForgottenOutput(f *followed, row *state.Partition, seq int64, below string) {
	const invariant = "forgotten assets"
	found, err := (&snapshot.Snapshot{State: f.state}).Partition(context.Background(), row.AssetKey, row.PartitionKey)
	forgotten := row.VersionSeq < seq || row.RunID < below
	mark := f.state.Marks.Get(state.Key3{A: row.AssetKey, B: row.PartitionKey, C: row.MaterializationID})
	marked := mark != nil && mark.Mark == event.MarkMissing
	switch {
	case err != nil:
		o.violation(invariant, "%v", err)
	case forgotten && found != nil:
		o.violation(invariant, "readers find the output of run %s of %s%s with the fold sequence number %d, although the asset was forgotten at %d", row.RunID, row.AssetKey, row.PartitionKey, row.VersionSeq, seq)
	case !forgotten && found == nil && !marked:
		o.violation(invariant, "readers do not find the output of run %s of %s%s with the fold sequence number %d, although the asset was forgotten earlier, at %d", row.RunID, row.AssetKey, row.PartitionKey, row.VersionSeq, seq)
	case forgotten:
		o.w.fault("forgotten output hidden")
	case row.RunID < f.state.Forgotten.Get(row.AssetKey).CommandID:
		o.w.fault("output of smaller run visible after forgetting")
	}
}
