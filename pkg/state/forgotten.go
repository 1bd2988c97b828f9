package state

import "github.com/servo-orchestration/servo/pkg/event"

// ForgottenAsset is a row of forgotten_assets: an asset that has left the project, and whose outputs a person has
// declared to be garbage. Outputs of later runs stay visible, because the asset may come back.
type ForgottenAsset struct {
	AssetKey string `col:"asset_key,key"`
	// CommandID is the greatest id of a command that has forgotten the asset. Outputs that became visible before the
	// command was folded are hidden. The order of folding decides, and not the order of ids, because ids come from
	// clocks that may be wrong.
	CommandID string `col:"command_id"`
	// RunsBelow is the command's id if a rebuild without the recorded order folded the command; otherwise, it is "".
	// Outputs of runs with smaller ids are hidden, too, because such a rebuild may fold the reports of these runs after
	// the command.
	RunsBelow   string     `col:"runs_below,null"`
	ForgottenAt event.Time `col:"forgotten_at"`
	ForgottenBy string     `col:"forgotten_by,null,dict"`
	Reason      string     `col:"reason,null"`
	Meta
}

// Key returns the primary key.
func (r *ForgottenAsset) Key() string { return r.AssetKey }

func (*ForgottenAsset) newTable() store {
	return new(rowTable[string, ForgottenAsset, *ForgottenAsset])
}

// ForgottenBy returns the row of a forgotten asset if this row hides an output that the given run has made, and nil
// otherwise. The parameter seq is the fold sequence number at which the output became visible.
func (s *State) ForgottenBy(asset, run string, seq int64) *ForgottenAsset {
	if row := s.Forgotten.Get(asset); row != nil && (seq < row.Seq || run < row.RunsBelow) {
		return row
	}
	return nil
}

// mark returns the mark that hides an output of the forgotten asset.
func (r *ForgottenAsset) mark(row *Partition) *Mark {
	return &Mark{
		AssetKey: row.AssetKey, PartitionKey: row.PartitionKey, MaterializationID: row.MaterializationID, Mark: event.MarkMissing,
		CommandID: r.CommandID, MarkedSeq: r.Seq, MarkedAt: r.ForgottenAt, MarkedBy: r.ForgottenBy, Reason: r.Reason, Meta: r.Meta,
	}
}
