package compactor

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// RefuseAsOlderBuild records the groups of an entry like an older build that does not know the types of their events.
func (c *Compactor) RefuseAsOlderBuild(e Entry) {
	for _, g := range Decode(e.ID, e.Data) {
		fold.Apply(c.state, fold.Group{Entry: g.Entry, ID: g.ID, Reason: event.ReasonUnsupported, Detail: "event_type: not known"})
	}
}

// Reload loads the newest published state, as a step does after a conflict.
func (c *Compactor) Reload(ctx context.Context) error {
	_, err := c.reload(ctx)
	return err
}
