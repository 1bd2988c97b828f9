package repair

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// place is the position of a group in the ledger and in the order of folding. A replay keeps a place for every group in
// memory, so a place must be small.
type place struct {
	entry    ulid.ULID
	ofGroup  ulid.ULID
	odd      string // the group's id if it is not a ULID, but a line number
	firstSeq int64
	revision int64
	events   int32
	late     bool
	folded   bool
	dead     bool     // the group is a dead letter
	ahead    *refusal // set if the group is a dead letter with the reason CLOCK_AHEAD
	refused  *refusal
}

// refusal is the recorded refusal of a whole entry, or of a group with a wrong time or an unknown type. Another build
// might accept the entry or group, so a replay repeats the recorded refusal.
type refusal struct {
	reason, detail string
	bytes          int64
}

func appendPlaces(places []place, rows []*state.Entry) []place {
	for _, row := range rows {
		p := place{
			firstSeq: row.FirstSeq, revision: row.Revision, events: row.Events, late: row.Outcome == state.Late,
			folded: row.Outcome == state.Folded, dead: row.Outcome == state.DeadLetter,
		}
		if row.Reason == event.ReasonClockAhead {
			p.ahead = &refusal{row.Reason, row.Detail, row.Bytes}
		}
		if row.Group == compactor.WholeEntry || row.Reason == event.ReasonUnsupported {
			p.refused = &refusal{row.Reason, row.Detail, row.Bytes}
		}
		p.entry, _ = ulid.ParseStrict(row.Entry) // cannot fail: entry names are ULIDs
		var err error
		if p.ofGroup, err = ulid.ParseStrict(row.Group); err != nil || p.ofGroup.String() != row.Group {
			p.odd = row.Group
		}
		places = append(places, p)
	}
	return places
}

// group returns the group at a place. If the record contains everything that the fold needs to refuse the group again,
// the entry is not read, because it may no longer exist.
func (p place) group(ctx context.Context, r *reader) (fold.Group, error) {
	if p.ahead != nil {
		return fold.Group{
			Entry: p.entryID(), ID: p.groupID(), Reason: p.ahead.reason, Detail: p.ahead.detail, Bytes: p.ahead.bytes,
			Events: make([]*event.Envelope, p.events),
		}, nil
	}
	if p.wholeEntry() {
		return compactor.Refused(p.entryID(), p.refused.reason, p.refused.detail, p.refused.bytes), nil
	}
	g, err := r.group(ctx, p.entryID(), p.groupID())
	if err == nil && p.refused != nil {
		// An older build refused the group at this place, because it did not know the type. This build may know the
		// type, but the replay must repeat the refusal. If a compactor has folded the group later, the record contains
		// the later place, and the group is folded there.
		g = fold.Group{Entry: g.Entry, ID: g.ID, Reason: p.refused.reason, Detail: p.refused.detail, Bytes: p.refused.bytes}
	}
	return g, err
}

// bare reports whether a bare rebuild has folded the group. A compactor records the revision in which it folded a
// group; a bare rebuild records 0.
func (p place) bare() bool { return p.revision == 0 }

// unread reports whether [place.group] does not read the entry of the group.
func (p place) unread() bool { return p.ahead != nil || p.wholeEntry() }

// wholeEntry reports whether the entry was refused as a whole.
func (p place) wholeEntry() bool { return p.refused != nil && p.odd == compactor.WholeEntry }

func (p place) entryID() string { return p.entry.String() }

func (p place) groupID() string {
	if p.odd != "" {
		return p.odd
	}
	return p.ofGroup.String()
}

func (p place) String() string { return fmt.Sprintf("entry %s, group %s", p.entryID(), p.groupID()) }

// inOrder sorts places in the order of folding, and returns descriptions of contradictions. The fold assigns a sequence
// number to each event of a group. If two groups have a number in common, concurrent writers have folded them, and the
// order is unknown.
func inOrder(order []place) (problems []string) {
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(a.entry.Compare(b.entry), a.ofGroup.Compare(b.ofGroup), strings.Compare(a.odd, b.odd))
	})
	for i, p := range order[min(1, len(order)):] {
		before := order[i]
		if p.entry == before.entry && p.ofGroup == before.ofGroup && p.odd == before.odd && p.firstSeq != before.firstSeq {
			problems = append(problems, fmt.Sprintf("ledger: %s was folded twice, at sequence %d and %d", p, before.firstSeq, p.firstSeq))
		}
	}
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.firstSeq, b.firstSeq), a.entry.Compare(b.entry), strings.Compare(a.groupID(), b.groupID()))
	})
	for i, p := range order[min(1, len(order)):] {
		before := order[i]
		if p.firstSeq < before.firstSeq+max(1, int64(before.events)) {
			problems = append(problems, fmt.Sprintf("ledger: %s and %s were folded at the same sequence number, %d", p, before, before.firstSeq))
		}
	}
	return problems
}
