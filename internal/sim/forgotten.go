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

// hide marks the outputs of an asset, or forgets the asset.
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

// noteForgotten records the commands in an entry that forget assets.
func (f *followed) noteForgotten(entry string, data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.AssetsForgotten); ok {
				f.forgetCommands = append(f.forgetCommands, forgetCommand{entry, group.ID, p})
			}
		}
	}
}

// forgotten compares the forgotten assets with the folded commands: the greatest command counts, and readers find no
// output of a run that was triggered before it.
func (o *oracle) forgotten(f *followed) {
	if len(f.forgetCommands) == 0 {
		return
	}
	const invariant = "forgotten assets"
	greatest, known := map[string]string{}, map[string]bool{}
	for _, c := range f.forgetCommands {
		known[c.CommandID] = true
		row := f.state.Entries.Get(state.Key2{A: c.entry, B: c.group})
		if row == nil || row.Outcome != state.Folded {
			continue
		}
		for _, asset := range c.Assets {
			greatest[asset] = max(greatest[asset], c.CommandID)
		}
	}
	for asset, command := range greatest {
		if row := f.state.Forgotten.Get(asset); row == nil || row.CommandID < command {
			o.violation(invariant, "the folded command %s has forgotten %s, but the state says %+v", command, asset, row)
		}
	}
	for row := range f.state.Forgotten.All {
		if !known[row.CommandID] {
			o.violation(invariant, "nobody has forgotten %s with %s", row.AssetKey, row.CommandID)
		}
	}
	seen := &snapshot.Snapshot{State: f.state}
	for row := range f.state.Partitions.All {
		command := greatest[row.AssetKey]
		if command == "" {
			continue
		}
		found, err := seen.Partition(context.Background(), row.AssetKey, row.PartitionKey)
		hidden := f.state.Hidden(row)
		switch {
		case err != nil:
			o.violation(invariant, "%v", err)
		case row.RunID < command && found != nil:
			o.violation(invariant, "readers find the output of run %s of %s%s, which was forgotten with %s", row.RunID, row.AssetKey, row.PartitionKey, command)
		case row.RunID > command && found == nil && !hidden:
			o.violation(invariant, "readers do not find the output of run %s of %s%s, which is newer than %s", row.RunID, row.AssetKey, row.PartitionKey, command)
		case row.RunID < command:
			o.w.fault("forgotten output hidden")
		}
	}
}
