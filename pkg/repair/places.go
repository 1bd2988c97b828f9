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

// place is where a group stands in the ledger, and in the order of folding. There is one
// of each group that was ever folded, and so it is no larger than it must be.
type place struct {
	entry    ulid.ULID
	ofGroup  ulid.ULID
	odd      string // the group where it is named by no ULID: by the number of its line
	firstSeq int64
	revision int64
	events   int32
	late     bool
	ahead    *refusal // of a group that is a dead letter, CLOCK_AHEAD
	refused  *refusal
}

// refusal is why an entry was refused as a whole, or a group that is far ahead or of a type
// that its build did not know. The entry need not show it to every build, so a replay
// repeats it as it was recorded.
type refusal struct {
	reason, detail string
	bytes          int64
}

func appendPlaces(places []place, rows []*state.Entry) []place {
	for _, row := range rows {
		p := place{
			firstSeq: row.FirstSeq, revision: row.Revision, events: row.Events, late: row.Outcome == state.Late,
		}
		if row.Reason == event.ReasonClockAhead {
			p.ahead = &refusal{row.Reason, row.Detail, row.Bytes}
		}
		if row.Group == compactor.WholeEntry || row.Reason == event.ReasonUnsupported {
			p.refused = &refusal{row.Reason, row.Detail, row.Bytes}
		}
		p.entry, _ = ulid.ParseStrict(row.Entry) // the fold took it from the name of an object, which is one
		var err error
		if p.ofGroup, err = ulid.ParseStrict(row.Group); err != nil || p.ofGroup.String() != row.Group {
			p.odd = row.Group
		}
		places = append(places, p)
	}
	return places
}

// group returns the group at a place. It is read unless it was refused in a way that the
// record describes completely: such a group changes nothing, and its entry may be gone.
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
		// An older build refused the group. This build may know its type, but the group is
		// folded where a compactor tries it again, and not where it was refused.
		g = fold.Group{Entry: g.Entry, ID: g.ID, Reason: p.refused.reason, Detail: p.refused.detail, Bytes: p.refused.bytes}
	}
	return g, err
}

// unread reports whether the group at a place is not read from its entry.
func (p place) unread() bool { return p.ahead != nil || p.wholeEntry() }

// wholeEntry reports whether the place is that of an entry which was refused as a whole.
func (p place) wholeEntry() bool { return p.refused != nil && p.odd == compactor.WholeEntry }

func (p place) entryID() string { return p.entry.String() }

func (p place) groupID() string {
	if p.odd != "" {
		return p.odd
	}
	return p.ofGroup.String()
}

func (p place) String() string { return fmt.Sprintf("entry %s, group %s", p.entryID(), p.groupID()) }

// inOrder sorts groups as they were folded: each of them once. Each took the numbers of its
// events. Where two took the same ones, writers folded that did not know of each
// other, and there is no such order.
func inOrder(order []place) (problems []string) {
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(a.entry.Compare(b.entry), a.ofGroup.Compare(b.ofGroup), strings.Compare(a.odd, b.odd))
	})
	for i, p := range order[min(1, len(order)):] {
		before := order[i]
		if p.entry == before.entry && p.ofGroup == before.ofGroup && p.odd == before.odd && p.firstSeq != before.firstSeq {
			problems = append(problems, fmt.Sprintf("ledger: %s was folded twice, at %d and %d", p, before.firstSeq, p.firstSeq))
		}
	}
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.firstSeq, b.firstSeq), a.entry.Compare(b.entry), strings.Compare(a.groupID(), b.groupID()))
	})
	for i, p := range order[min(1, len(order)):] {
		before := order[i]
		if p.firstSeq < before.firstSeq+max(1, int64(before.events)) {
			problems = append(problems, fmt.Sprintf("ledger: %s was folded at the place of %s, which is %d", p, before, before.firstSeq))
		}
	}
	return problems
}
