package engine

import (
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ErrOutdated means that the caller has seen an old version of the schedule or the backfill: another command or a
// deployment has changed it since.
var ErrOutdated = errors.New("changed since you read it")

// Conditions are the conditions under which a command takes effect.
type Conditions struct {
	// Key makes the command take effect only once: a second command with the same Key and Fingerprint returns the result
	// of the first one. Fingerprint is a hash of the request. If Key is "", the command can be repeated.
	Key, Fingerprint string
	// Tag is the edit tag of the schedule or the backfill that the caller has seen. "": any.
	Tag string
}

// Under returns an engine whose next command takes effect only under the given conditions.
func (e *Engine) Under(c Conditions) *Engine {
	under := *e
	under.conditions = c
	return &under
}

// repeated returns the id of the command or the run that has already used the key of the conditions, or "".
func (e *Engine) repeated(snap *snapshot.Snapshot) (string, error) {
	owner := snap.State.RunKeys.Get(e.conditions.Key)
	switch {
	case e.conditions.Key == "" || owner == nil || owner.ExpiresAt <= event.At(e.cfg.Clock.Now()):
		return "", nil
	case owner.Fingerprint != e.conditions.Fingerprint:
		return "", fmt.Errorf("the key of the command: %w: another request has used it, and it is remembered until %s: use another key", ErrConflict, owner.ExpiresAt)
	}
	return owner.RunID, nil
}

// condition sets the conditions of a command.
func (e *Engine) condition(p *event.AutomationCommand) {
	p.IfTag, p.CommandKey, p.Fingerprint = e.conditions.Tag, e.conditions.Key, e.conditions.Fingerprint
}

// outdated returns an error if the caller of a command has seen a version with another edit tag.
func (e *Engine) outdated(tag string) error {
	if e.conditions.Tag == "" || e.conditions.Tag == tag {
		return nil
	}
	return fmt.Errorf("%w: its edit tag is %s, not %s: read it again", ErrOutdated, tag, e.conditions.Tag)
}

// unmet returns an error if a folded command had no effect because one of its conditions was not met. The parameter tag
// is the current edit tag of the schedule or the backfill, and command is the id of the last command that changed this
// object.
func (e *Engine) unmet(snap *snapshot.Snapshot, p *event.AutomationCommand, group state.Key2, command, tag string) error {
	if owner, err := e.repeated(snap); err != nil || owner != "" {
		return err
	}
	row := groupRow(snap, group)
	if p.IfTag == "" || row != nil && row.Outcome != state.Conflict || row == nil && command == p.CommandID {
		return nil
	}
	if err := e.outdated(tag); err != nil {
		return err
	}
	return fmt.Errorf("%w, and then changed back: read it again", ErrOutdated) // the tag has changed back to the expected one
}
