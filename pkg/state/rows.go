package state

import (
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Meta contains the columns that every row has.
type Meta = table.Meta

// Deployment is a row of deployments. The row without SupersededAt is the current deployment; it has
// the greatest id.
type Deployment struct {
	DeployID     string     `col:"deploy_id,key"`
	Release      string     `col:"release"`
	Kind         string     `col:"kind,dict"`
	Environment  string     `col:"environment,null,dict"`
	Actor        string     `col:"actor,null,dict"`
	Git          string     `col:"git,null"` // JSON
	Message      string     `col:"message,null"`
	Changes      string     `col:"changes"` // JSON
	DeployedAt   event.Time `col:"deployed_at"`
	SupersededAt event.Time `col:"superseded_at,null"`
	SupersededBy string     `col:"superseded_by,null"`
	// Schedules identifies the schedules of the release; "": it has none. SchedulesPending means that the rows of
	// schedules may still differ from the release, because no automator has compared them yet.
	Schedules        string `col:"schedules,null"`
	SchedulesPending bool   `col:"schedules_pending"`
	Meta
}

// Key returns the primary key.
func (r *Deployment) Key() string { return r.DeployID }

func (*Deployment) newTable() store { return new(rowTable[string, Deployment, *Deployment]) }

// AcceptedCode is a row of accepted_codes. While the current code fingerprint of the asset is Code, an output whose
// fingerprint is in Accepts counts as an output of the current code.
type AcceptedCode struct {
	AssetKey string `col:"asset_key,key,dict"`
	Code     string `col:"code,key"`
	Accepts  string `col:"accepts"` // JSON
	Meta
}

// Key returns the primary key.
func (r *AcceptedCode) Key() Key2 { return Key2{r.AssetKey, r.Code} }

func (*AcceptedCode) newTable() store { return new(rowTable[Key2, AcceptedCode, *AcceptedCode]) }

// EntryOutcome is the result of folding a group of an entry.
type EntryOutcome string

// Entry outcomes.
const (
	Folded     EntryOutcome = "FOLDED"
	NoChange   EntryOutcome = "NO_CHANGE"
	Stale      EntryOutcome = "STALE"    // the group is about an attempt, timer or dispatch that was replaced or has ended
	Late       EntryOutcome = "LATE"     // the group is about a closed run
	Conflict   EntryOutcome = "CONFLICT" // rejected because of another run or deployment
	DeadLetter EntryOutcome = "DEAD_LETTER"
)

// Entry is a row of ledger_entries: a processed group of an entry. A malformed line is a group of its own, whose id
// is the number of the line.
type Entry struct {
	Entry    string       `col:"entry,key"`
	Group    string       `col:"group_id,key"`
	Revision int64        `col:"revision"` // the revision that published this row
	FirstSeq int64        `col:"first_seq"`
	Events   int32        `col:"events"`
	Bytes    int64        `col:"bytes"`
	Outcome  EntryOutcome `col:"outcome,dict"`
	Reason   string       `col:"reason,null,dict"`
	Detail   string       `col:"detail,null"`
	RunID    string       `col:"run_id,null"` // the run that a dead letter waits for
	FoldedAt event.Time   `col:"folded_at"`
	Timer    bool         `col:"timer"` // a timer fired in the group
	Meta
}

// Key returns the primary key.
func (r *Entry) Key() Key2 { return Key2{r.Entry, r.Group} }

func (*Entry) newTable() store { return new(rowTable[Key2, Entry, *Entry]) }
