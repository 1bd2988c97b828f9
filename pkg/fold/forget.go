package fold

import (
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkForgotten rejects a command if one of its assets may be in use. The command names the release to which its
// writer compared the assets, and this release must still be current.
//
// In a rebuild without the recorded order, proven is true, and every command is accepted. The state of such a rebuild
// may differ from the state into which the command was originally folded: for example, a run that a timer ended may be
// live again. A rebuild may thus accept a command that the original fold rejected. This is rare: the writer checked the
// same conditions before it appended the command, so the original fold rejected only commands that lost a race.
func (f *folder) checkForgotten(p *event.AssetsForgotten, proven bool) verdict {
	switch release := f.st.Release(); {
	case proven || f.forgottenBy(p):
		return verdict{}
	case release != p.Release:
		return verdict{outcome: state.Conflict, detail: fmt.Sprintf("release %.12s was deployed meanwhile: try again", release)}
	}
	if detail := InUse(f.st, p.Assets); detail != "" {
		return verdict{outcome: state.Conflict, detail: detail}
	}
	return verdict{}
}

// InUse returns the reason why an asset of a sorted list cannot be forgotten, or "".
func InUse(s *state.State, assets []string) string {
	for t := range s.Tasks.All {
		if run := s.Runs.Get(t.RunID); run == nil || run.State.Terminal() {
			continue
		}
		if _, found := slices.BinarySearch(assets, t.AssetKey); found {
			return fmt.Sprintf("the live run %s has tasks of %s: wait for it, or cancel it", t.RunID, t.AssetKey)
		}
	}
	for c := range s.Candidates.All {
		if _, found := slices.BinarySearch(assets, c.AssetKey); found && c.State == state.CandidatePending {
			return fmt.Sprintf("an output of %s waits in quarantine: approve or reject it first", c.AssetKey)
		}
	}
	return ""
}

// forgottenBy reports whether all assets of the command p are already forgotten, by p itself or by later commands.
func (f *folder) forgottenBy(p *event.AssetsForgotten) bool {
	return !slices.ContainsFunc(p.Assets, func(asset string) bool {
		row := f.st.Forgotten.Get(asset)
		return row == nil || row.CommandID < p.CommandID
	})
}

// assetsForgotten hides the outputs of assets, and deletes what the state records about their earlier attempts,
// checks and accepted codes. It keeps the rows of partitions, because they may be in history, which the fold does not
// read. The row in forgotten_assets hides these outputs.
func (f *folder) assetsForgotten(p *event.AssetsForgotten) verdict {
	if f.forgottenBy(p) {
		return noChange
	}
	for _, asset := range p.Assets {
		if row := f.st.Forgotten.Get(asset); row != nil && row.CommandID >= p.CommandID {
			continue
		}
		row := &state.ForgottenAsset{
			AssetKey: asset, CommandID: p.CommandID, ForgottenAt: f.at(), ForgottenBy: f.ev.Actor, Reason: p.Reason,
		}
		if f.bare {
			row.RunsBelow = p.CommandID
		}
		put(f, f.st.Forgotten, row)
		if row := f.st.Statistics.Get(asset); row != nil {
			dead := *row
			remove(f, f.st.Statistics, &dead)
		}
		removeOf(f, f.st.AssetChecks, state.Key2{A: asset}, func(r *state.AssetCheck) bool { return r.AssetKey == asset })
		removeOf(f, f.st.CheckHistory, state.Key3{A: asset}, func(r *state.CheckHistory) bool { return r.AssetKey == asset })
		removeOf(f, f.st.AcceptedCodes, state.Key2{A: asset}, func(r *state.AcceptedCode) bool { return r.AssetKey == asset })
	}
	return folded
}

// removeOf deletes the rows of an asset from a table. The keys of the table begin with the asset.
func removeOf[K, R comparable, P state.Row[K, R]](f *folder, t state.Table[K, R], from K, of func(P) bool) {
	var dead []R
	t.Ascend(from, func(row *R) bool {
		if !of(P(row)) {
			return false
		}
		dead = append(dead, *row)
		return true
	})
	for i := range dead {
		remove(f, t, P(&dead[i]))
	}
}
