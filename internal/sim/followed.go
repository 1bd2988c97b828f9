package sim

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// followed is what the oracle knows about a domain, mainly from the domain's published revisions.
type followed struct {
	domain    ids.Domain
	manifests *manifest.Store
	manifest  *manifest.Manifest // the newest committed manifest
	decoder   *manifest.Decoder  // a decoder of its own, so that the oracle shares no cache with the processes
	// state is the state that the manifest describes, including history.
	state *state.State
	// rows are the rows that the newest revision has changed, including tombstones; nil: any row may differ.
	rows *state.Rows
	// index finds rows of state without reading all of them.
	index *index
	// past contains the states of recent revisions. They are compared with the states that readers
	// load.
	past map[int64]*revision
	// compared is the last comparison of each reader, by process. The compared states never change, so no
	// comparison is repeated.
	compared map[string]comparison
	// cancelled contains runs that somebody has asked to cancel, or that timed out.
	cancelled map[string]bool
	entries   int
	waiting   []waiting
	broken    bool // the projections are damaged, and an operator has not yet rebuilt them
	// unreadable contains files that only a damaged index names.
	unreadable map[string]bool
	unordered  bool // the state was rebuilt after the folding order of the ledger was lost
	// dropped contains entries that appeared after a bare rebuild had listed the ledger. They are folded after the next
	// full listing.
	dropped map[string]bool
	// forgotten contains the tasks whose success is in an entry that an operator has skipped.
	forgotten map[state.Key2]bool
	// abandoned contains entries that may have appeared after a listing had passed their names. The value is true if the
	// writer's clock was the cause, and false if the writer was slow.
	abandoned map[string]bool
	named     map[string]span // for each state file, the revisions that name it
	// durable contains the checksums of the appended entries, and archived the checksums of the
	// archived entries. cut is the highest history cutoff of any revision: nothing above it may be
	// archived.
	durable, archived map[string]uint32
	cut               string
	// ahead contains the entries that are far ahead of the store's clock. The value is true if the fold must refuse the
	// whole entry, and false if it may refuse a part of the entry.
	ahead map[string]bool
	// settings holds the commands that set or remove limits, by limit.
	settings map[state.Key2][]setting
	// keyCommands holds the commands that change key sets.
	keyCommands []keyCommand
	// markCommands holds the commands that mark outputs.
	markCommands []markCommand
	// marksFolded holds the folded mark commands. marksSaid holds, for each output, the mark command that applies to it.
	marksFolded []markCommand
	marksSaid   map[state.Key3]markCommand
	// forgetCommands holds the commands that forget assets.
	forgetCommands []forgetCommand
	// pinnedRevisions holds the revisions that people have pinned.
	pinnedRevisions map[int64]heldRevision
	// recreated contains collected revisions whose manifests a delayed writer has created again.
	recreated map[int64]bool
	// noted is the record of notifications; nil: no revision with alert rules has been published.
	noted     *noted
	lines     []lineCount
	floors    []floorAt
	pinned    map[string]floorAt // when each file was last seen in a pinned revision
	rebuiltAt time.Time
	// waitsSince is the time since which the domain has had a wakeup. due contains the times at which recent wakeups
	// were due. Sweeps have had enough time to react to all entries that were appended up to followedUpTo.
	waitsSince, followedUpTo time.Time
	due                      []time.Time
	unlisted                 time.Duration // for how long all listings of the ledger have failed
	// ended reports that a bare rebuild has raised the boundary above every revision, and has not yet
	// published the first revision of the new timeline. endedAt is when it raised the boundary.
	ended    bool
	endedAt  time.Time
	seenAt   map[string]time.Time              // when runs were first published
	deployed map[string]*event.ProjectDeployed // deployments in the ledger, by id
	approved map[string]bool                   // materializations that commands approve
	shown    map[string]string                 // outputs that a partition has shown: URIs by materialization
	ticks    map[instant]string                // the id of the tick of each instant
	runsOf   map[string]string                 // runs by tick
	triggers map[string][]state.Key2           // ledger entries and groups that trigger a run for a request
}

// revision holds the state of one revision, including history, and its history cutoff.
type revision struct {
	whole *state.State
	cut   state.Cutoff
	kept  *state.State // see live
}

// live returns the state without history.
func (r *revision) live() *state.State {
	if r.kept == nil {
		r.kept = r.whole.Copy()
		r.kept.Evict(r.cut)
	}
	return r.kept
}

// comparison is a state that a reader has read, and the revision that it was compared with.
type comparison struct {
	read      *state.State
	published *revision
}

// span is a range of successive revisions.
type span struct {
	timeline    string
	first, last int64
}
