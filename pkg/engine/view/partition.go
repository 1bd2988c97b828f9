package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// PartitionExplanation is the reason why a partition is missing, fresh or stale.
type PartitionExplanation struct {
	// Partition is the partition in the form of a task key: asset[dimension=value].
	Partition string           `json:"partition"`
	Status    staleness.Status `json:"status"`
	// Headline is the reason as a sentence without its subject: "is stale: raw/events is newer".
	Headline string   `json:"headline"`
	Holds    *Holding `json:"holds,omitempty"`
	// Code is the current code fingerprint of the asset, or "" if it is unknown. CodeChanged means that other code
	// materialized the partition.
	Code        string `json:"code,omitempty"`
	CodeChanged bool   `json:"code_changed"`
	// CodeDetails describes how the current code differs from the code of the run: columns, files, variables. It is
	// empty if the differences are not known.
	CodeDetails []string `json:"code_details,omitempty"`
	// Early means that the run was requested before the partition's period had ended.
	Early bool `json:"early"`
	// KeySets are the key sets in which, since the partition was planned, a key was removed or a removed key was added
	// again.
	KeySets []string `json:"key_sets,omitempty"`
	// Mark is the mark that a person has set on the output.
	Mark *Marked `json:"mark,omitempty"`
	// Quarantine is the decision that published the output after a check had blocked it.
	Quarantine *Quarantined `json:"quarantine,omitempty"`
	// Newer are upstream assets with partitions that are newer than the versions that the partition has read.
	Newer []UpstreamPartition `json:"newer"`
	// Pending are upstream assets with partitions that are stale or missing themselves. They do not make the partition
	// stale by themselves: it may be fresh, and may read them only indirectly, through other fresh partitions.
	Pending []UpstreamPartition `json:"pending"`
	// declared describes the partitions that the asset declares. It is set only if the explained partition is not one of
	// them.
	declared string
	// windowed means that the code of a partition also depends on the declared start and end of an upstream asset.
	windowed bool
	// accepted means that a deployment has accepted the code of the output as current.
	accepted bool
	// indirect means that the partition reads those in Pending only through other partitions.
	indirect bool
	// unsearched means that too many partitions lie upstream to find all those that belong in Pending.
	unsearched bool
}

// Marked is a mark that a person has set on an output: stale, fresh or missing.
type Marked struct {
	Mark   string     `json:"mark"`
	By     string     `json:"by,omitempty"`
	At     event.Time `json:"at"`
	Reason string     `json:"reason"`
}

// String describes the mark: "ana marked it as stale at 2025-01-15T08:00:00Z: wrong prices".
func (m *Marked) String() string {
	return fmt.Sprintf("%s marked it as %s at %s: %s", cmp.Or(strings.TrimPrefix(m.By, "user:"), "somebody"), m.Mark, m.At.Time().Format(time.RFC3339), m.Reason)
}

// MarkOf converts a mark. It returns nil if m is nil.
func MarkOf(m *state.Mark) *Marked {
	if m == nil {
		return nil
	}
	return &Marked{m.Mark, m.MarkedBy, m.MarkedAt, m.Reason}
}

// Holding is the output that the state records for a partition.
type Holding struct {
	MaterializationID string     `json:"materialization_id"`
	RunID             string     `json:"run_id"`
	TaskKey           string     `json:"task_key"`
	At                event.Time `json:"at"`
	RowCount          int64      `json:"row_count"`
	ByteSize          int64      `json:"byte_size"`
	Code              string     `json:"code,omitempty"`
}

// UpstreamPartition is a partition of an upstream asset. More counts the other partitions of the asset to which the
// same reason applies.
type UpstreamPartition struct {
	Partition string           `json:"partition"`
	Status    staleness.Status `json:"status"`
	Holds     *Holding         `json:"holds,omitempty"`
	// Mark is the mark that hides the partition.
	Mark *Marked `json:"mark,omitempty"`
	More int     `json:"more"`
}

// ExplainPartition explains a partition of an asset. The parameter decision is the approval that published its output
// after a check had blocked it, or nil.
func ExplainPartition(e *staleness.Evaluation, asset ids.AssetKey, key string, decision *Quarantined) (*PartitionExplanation, error) {
	found, err := e.Explain(asset, key)
	if err != nil {
		return nil, err
	}
	x := &PartitionExplanation{
		Partition: partitionName(asset, key), Status: found.Status, Holds: holding(found.Row), Code: found.Current, CodeChanged: found.Changed, Early: found.Early,
		KeySets: found.Sets, Mark: MarkOf(found.Mark), Quarantine: decision,
		Newer: upstreamPartitions(found.Newer), Pending: upstreamPartitions(found.Via),
	}
	x.declared, x.windowed, x.accepted = found.Declared, found.Windowed, found.Accepted
	x.indirect, x.unsearched = found.Indirect, found.Unsearched
	x.Headline = x.headline()
	return x, nil
}

func upstreamPartitions(sources []staleness.Source) []UpstreamPartition {
	all := []UpstreamPartition{}
	for _, s := range sources {
		all = append(all, UpstreamPartition{partitionName(s.Asset, s.Key), s.Status, holding(s.Row), MarkOf(s.Mark), s.Count - 1})
	}
	return all
}

func holding(row *state.Partition) *Holding {
	if row == nil {
		return nil
	}
	return &Holding{
		MaterializationID: row.MaterializationID, RunID: row.RunID, TaskKey: row.TaskKey, At: row.MaterializedAt,
		RowCount: row.RowCount, ByteSize: row.ByteSize, Code: row.Code,
	}
}

// partitionName returns the name of a partition, in the form of a task key.
func partitionName(asset ids.AssetKey, key string) string {
	partition, err := ids.ParsePartition(key)
	if err != nil {
		return asset.String() + " " + key
	}
	return ids.TaskKey(asset, partition)
}

func (x *PartitionExplanation) headline() string {
	var reasons []string
	switch {
	case x.CodeChanged && x.Holds != nil && x.Holds.Code == state.ChangedCode:
		reasons = append(reasons, "files of its code were written while its task ran")
	case x.CodeChanged && x.windowed:
		reasons = append(reasons, "its code has changed, or an asset that it reads through a window has another declared start or end")
	case x.CodeChanged:
		reasons = append(reasons, "its code has changed")
	}
	if x.Early {
		reasons = append(reasons, "it was made before its period had ended")
	}
	for _, set := range x.KeySets {
		reasons = append(reasons, "a key of "+set+" was removed or added again")
	}
	if x.Mark != nil && x.Mark.Mark == event.MarkStale {
		reasons = append(reasons, x.Mark.String())
	}
	for _, up := range x.Newer {
		if up.Mark != nil {
			reasons = append(reasons, up.Name()+" was marked as missing")
			continue
		}
		reasons = append(reasons, up.Name()+" is newer")
	}
	switch {
	case x.Status == staleness.Unexpected:
		if x.declared != "" {
			return "is not declared: the asset has " + x.declared
		}
		return "is not expected yet: its period has not ended"
	case x.Status == staleness.Stale:
		return "is stale: " + strings.Join(reasons, "; ")
	case x.indirect:
		return fmt.Sprintf("is fresh, but %s, which it reads indirectly, is %s", x.Pending[0].Name(), x.Pending[0].Status)
	case len(x.Pending) > 0 && x.Status == staleness.Fresh:
		return fmt.Sprintf("is fresh; it becomes stale when %s, which is %s, is materialized", x.Pending[0].Name(), x.Pending[0].Status)
	case x.Status == staleness.Missing && x.Mark != nil:
		return "is missing: " + x.Mark.String()
	case x.Mark != nil && x.Mark.Mark == event.MarkFresh:
		return "is fresh: " + x.Mark.String()
	case x.Status == staleness.Missing:
		return "is missing: it has never been materialized"
	}
	return "is fresh: " + x.whyFresh()
}

// whyFresh returns the reason why a partition without pending upstream partitions is fresh.
func (x *PartitionExplanation) whyFresh() string {
	reason := "its code is current, and nothing that it read is newer"
	switch {
	case x.Quarantine.Approved():
		reason = "its output is " + x.Quarantine.String()
	case x.accepted:
		reason = fmt.Sprintf("its code %s is accepted as current (`servo deploy --accept`), and nothing that it read is newer", x.Holds.Code)
	}
	if x.unsearched {
		reason += "; too many partitions lie upstream to say whether all of them are fresh"
	}
	return reason
}

// Name returns the name of the partition and, if More is not 0, the number of the others.
func (u UpstreamPartition) Name() string {
	if u.More > 0 {
		return fmt.Sprintf("%s (and %d more)", ids.ReadableKey(u.Partition), u.More)
	}
	return ids.ReadableKey(u.Partition)
}
