package sim

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// scheduleUpgrades makes all compactors begin with an older build, and draws when each compactor is upgraded. All
// upgrades happen before faults stop.
func (w *world) scheduleUpgrades() {
	if w.cfg.Faults.Older == 0 {
		return
	}
	r := random(w.cfg.Seed, "upgrades", 0)
	newer := []event.Payload{&event.LimitSet{}, &event.RunCancelRequested{}, &event.TaskHeartbeat{}}
	unknown := newer[r.IntN(len(newer))].Type()
	for _, m := range w.machines {
		if m.kind != "compactor" {
			continue
		}
		m.unknown = unknown
		at := time.Duration(r.Int64N(int64(min(time.Duration(w.cfg.Faults.Older)*time.Minute, w.cfg.horizon())))) + 1
		w.callAfter(at, nil, func() {
			w.fault("upgraded")
			m.unknown = ""
			if m.alive != nil {
				m.alive.kill("to be upgraded")
			}
		})
	}
}

// decode returns the function with which the build of a process decodes entries. It returns nil if the build knows
// all event types.
func (p *process) decode() func(string, []byte) []fold.Group {
	unknown := p.machine.unknown
	if unknown == "" {
		return nil
	}
	return func(entry string, data []byte) []fold.Group {
		groups := compactor.Decode(entry, data)
		for i, g := range groups {
			for _, e := range g.Events {
				if e.Payload.Type() == unknown {
					groups[i] = fold.Group{Entry: g.Entry, ID: g.ID, Bytes: g.Bytes, Reason: event.ReasonUnsupported, Detail: "event_type: " + unknown}
				}
			}
		}
		return groups
	}
}
