package fold

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// CommandKeyTTL is how long the state keeps the key of a command.
const CommandKeyTTL = 3 * 24 * time.Hour

// command folds a person's command. It rejects the command if a command with the same key has already taken effect,
// or if the person saw an old version of the object that the command changes. It compares the key first. So a
// repeated command never conflicts with the change that its first delivery has made.
func (f *folder) command(p *event.AutomationCommand) verdict {
	if v := f.repeated(p.CommandKey, p.CommandID, p.Fingerprint); v.outcome != "" {
		return v
	}
	if tag := f.editTag(p); p.IfTag != "" && p.IfTag != tag {
		return verdict{outcome: state.Conflict, detail: "the command was made for another version: the edit tag is " + orDefault(tag, "none") + ", expected " + p.IfTag}
	}
	v := f.automationCommand(p)
	if v == folded {
		f.remember(p.CommandKey, p.CommandID, p.Fingerprint)
	}
	return v
}

// applyOnce calls apply, unless another command with the same key has already taken effect. The parameter id is the id
// of the command. A command that changes nothing also uses up its key: a later repetition must not undo changes that
// others have made since.
func (f *folder) applyOnce(key, id, fingerprint string, apply func() verdict) verdict {
	if v := f.repeated(key, id, fingerprint); v.outcome != "" {
		return v
	}
	v := apply()
	if owner := f.st.RunKeys.Get(key); (v == folded || v == noChange) && (owner == nil || owner.RunID != id) {
		f.remember(key, id, fingerprint)
	}
	return v
}

// editTag returns the edit tag of the object that a command changes, or "" if the object has none.
func (f *folder) editTag(p *event.AutomationCommand) string {
	switch p.Target {
	case event.TargetSchedule:
		if row := f.st.Schedules.Get(p.Name); row != nil {
			return row.EditTag()
		}
	case event.TargetBackfill:
		if row := f.st.Backfills.Get(p.Name); row != nil {
			return row.EditTag()
		}
	}
	return ""
}

// repeated returns the verdict about a command whose key an earlier command has used.
func (f *folder) repeated(key, id, fingerprint string) verdict {
	owner := f.st.RunKeys.Get(key)
	switch {
	case key == "" || owner == nil || owner.ExpiresAt <= f.st.FoldTime || owner.RunID == id:
		return verdict{}
	case owner.Fingerprint == fingerprint:
		return verdict{outcome: state.NoChange, detail: "command " + owner.RunID + " already has the key"}
	}
	return verdict{outcome: state.Conflict, detail: "the key " + key + " is used by command " + owner.RunID + ", whose request differs"}
}

// remember records the key of a command that took effect.
func (f *folder) remember(key, id, fingerprint string) {
	if key == "" {
		return
	}
	f.expireRunKeys()
	put(f, f.st.RunKeys, &state.RunKey{RunKey: key, RunID: id, Fingerprint: fingerprint, ExpiresAt: f.st.FoldTime.Add(CommandKeyTTL)})
}
