package event

import (
	"bytes"
	"strconv"
)

// Line is one line of a ledger entry, decoded or refused.
type Line struct {
	// Number counts lines from 1, blank ones too.
	Number   int
	Envelope *Envelope    // nil when Err is not
	Err      *DecodeError // nil when the line is an event
	// Bytes are the line without its line ending. They share the entry's memory.
	Bytes []byte
}

// group is the id of the group that the line belongs to. What cannot be told is
// a group of its own.
func (l *Line) group() string {
	switch {
	case l.Envelope != nil:
		return l.Envelope.GroupID()
	case l.Err.Group != "":
		return l.Err.Group
	case l.Err.EventID != "":
		return l.Err.EventID
	}
	return "line-" + strconv.Itoa(l.Number)
}

// DecodeEntry splits a ledger entry into its lines. It never fails as a whole.
// Blank lines are passed over; CR LF and a missing last newline are fine.
//
// It stops after [MaxEntryEvents]+1 lines: an entry with more than the limit is too
// large, and the caller refuses it as a whole.
func DecodeEntry(data []byte) []Line {
	var lines []Line
	number := 0
	for raw := range bytes.SplitSeq(data, []byte("\n")) {
		number++
		raw = bytes.TrimSuffix(raw, []byte("\r"))
		if len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		l := Line{Number: number, Bytes: raw}
		l.Envelope, l.Err = decodeLine(raw)
		if lines = append(lines, l); len(lines) > MaxEntryEvents {
			break
		}
	}
	return lines
}

// Group is the atomic unit of the ledger: its events are folded all or none.
type Group struct {
	// ID is the group's id; an event's own id when it is alone; "line-N" for a
	// line of which not even that can be told.
	ID string
	// Events are the group's events in the order of their lines.
	Events []*Envelope
	Lines  int   // how many lines the group has, duplicates left out
	Bytes  int64 // how many bytes those lines have
	// Err is why the group as a whole is not folded.
	Err *DecodeError
}

func (g *Group) refuse(reason, eventID, format string, args ...any) {
	if g.Err == nil {
		g.Err = refusal(reason, format, args...)
		g.Err.EventID, g.Err.Group = eventID, g.ID
	}
}

// Groups gathers an entry's lines into groups, in the order of their first
// lines. A group with a refused line is refused with that line's reason; one
// that is not all there is TORN_GROUP. A line that an entry has twice counts
// once; two events of one id that differ are both INVALID.
func Groups(lines []Line) []Group {
	index := map[string]int{}
	first := map[string]*Line{} // by event id
	var groups []Group
	for i := range lines {
		l := &lines[i]
		id := l.group()
		at, ok := index[id]
		if !ok {
			at = len(groups)
			index[id] = at
			groups = append(groups, Group{ID: id})
		}
		if l.Envelope != nil {
			if twin, seen := first[l.Envelope.ID]; seen {
				if bytes.Equal(twin.Bytes, l.Bytes) {
					continue
				}
				refuseTwins(&groups[index[twin.group()]], &groups[at], twin, l)
			} else {
				first[l.Envelope.ID] = l
			}
		}
		groups[at].add(l)
	}
	for i := range groups {
		groups[i].judge()
	}
	return groups
}

func refuseTwins(g, h *Group, twin, l *Line) {
	for _, group := range []*Group{g, h} {
		group.refuse(ReasonInvalid, l.Envelope.ID, "event_id: lines %d and %d have the same and differ", twin.Number, l.Number)
	}
}

func (g *Group) add(l *Line) {
	g.Lines++
	g.Bytes += int64(len(l.Bytes))
	if l.Envelope != nil {
		g.Events = append(g.Events, l.Envelope)
		return
	}
	g.refuse(l.Err.Reason, l.Err.EventID, "line %d: %s", l.Number, l.Err.Detail)
}

// judge refuses a group that is not whole, or too large.
func (g *Group) judge() {
	switch {
	case g.Err != nil:
		return
	case g.Lines > MaxGroupEvents:
		g.refuse(ReasonTooLarge, "", "the group has %d events; at most %d are allowed", g.Lines, MaxGroupEvents)
	case g.Bytes > MaxGroupBytes:
		g.refuse(ReasonTooLarge, "", "the group has %d bytes; at most %d are allowed", g.Bytes, MaxGroupBytes)
	}
	for _, e := range g.Events {
		if size := max(e.GroupSize, 1); size != g.Lines {
			g.refuse(ReasonTorn, e.ID, "group_size: %d events are announced, and %d are here", size, g.Lines)
		}
	}
}

// ValidateGroup reports what is wrong with valid events as one group, whose
// lines have so many bytes together, as a [*DecodeError]: what [Groups] would
// refuse.
func ValidateGroup(events []*Envelope, size int) error {
	g := Group{Events: events, Lines: len(events), Bytes: int64(size)}
	if len(events) > 0 {
		g.ID = events[0].GroupID()
	}
	seen := make(map[string]bool, len(events))
	for _, e := range events {
		if e.GroupID() != g.ID {
			g.refuse(ReasonTorn, e.ID, "group: %q is not that of the first event, %q", e.GroupID(), g.ID)
		}
		if seen[e.ID] {
			g.refuse(ReasonInvalid, e.ID, "event_id: two events have the same")
		}
		seen[e.ID] = true
	}
	if g.judge(); g.Err != nil {
		return g.Err
	}
	return nil
}
