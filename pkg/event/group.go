package event

import (
	"bytes"
	"strconv"
)

// Line is one line of a ledger entry, decoded or rejected.
type Line struct {
	// Number is the line's number, counted from 1 and including blank lines.
	Number   int
	Envelope *Envelope    // nil if Err is set
	Err      *DecodeError // nil if the line is an event
	// Bytes are the line without its line ending. They share the entry's memory.
	Bytes []byte
}

// group returns the id of the line's group. A line whose group is unreadable is a group of
// its own.
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

// DecodeEntry splits a ledger entry into its lines, and decodes or rejects each line. It skips blank lines and accepts
// CR LF and a missing last newline.
//
// DecodeEntry stops after [MaxEntryEvents]+1 lines: the caller rejects an entry beyond the limit as a whole.
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

// Group is the atomic unit of the ledger: either all of its events are folded, or none.
type Group struct {
	// ID is the group's id. For an event without a group, it is the event's id. For a line whose id is unreadable, it is
	// "line-N".
	ID string
	// Events are the group's events in the order of their lines.
	Events []*Envelope
	Lines  int   // number of lines, without duplicates
	Bytes  int64 // size of these lines
	// Err is the reason why the group is rejected, or nil.
	Err *DecodeError
}

func (g *Group) refuse(reason, eventID, format string, args ...any) {
	if g.Err == nil {
		g.Err = refusal(reason, format, args...)
		g.Err.EventID, g.Err.Group = eventID, g.ID
	}
}

// Groups collects an entry's lines into groups, in the order of their first lines. A group with a rejected line is
// rejected with that line's reason. An incomplete group is rejected with TORN_GROUP. Identical lines count once. If two
// different events have the same id, the groups of both are rejected with INVALID.
func Groups(lines []Line) []Group {
	index := map[string]int{}
	first := map[string]*Line{} // the first line with each event id
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
		group.refuse(ReasonInvalid, l.Envelope.ID, "event_id: lines %d and %d are different events with the same id", twin.Number, l.Number)
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

// judge rejects a group that is incomplete or too large.
func (g *Group) judge() {
	switch {
	case g.Err != nil:
		return
	case g.Lines > MaxGroupEvents:
		g.refuse(ReasonTooLarge, "", "the group has %d events: at most %d are allowed", g.Lines, MaxGroupEvents)
	case g.Bytes > MaxGroupBytes:
		g.refuse(ReasonTooLarge, "", "the group has %d bytes: at most %d are allowed", g.Bytes, MaxGroupBytes)
	}
	for _, e := range g.Events {
		if size := max(e.GroupSize, 1); size != g.Lines {
			g.refuse(ReasonTorn, e.ID, "group_size: is %d, but the entry has %d events of the group", size, g.Lines)
		}
	}
}

// ValidateGroup checks whether valid events may form one group. It returns the [*DecodeError] with which [Groups] would
// reject the group, or nil. The parameter size is the total length of their lines in bytes.
func ValidateGroup(events []*Envelope, size int) error {
	g := Group{Events: events, Lines: len(events), Bytes: int64(size)}
	if len(events) > 0 {
		g.ID = events[0].GroupID()
	}
	seen := make(map[string]bool, len(events))
	for _, e := range events {
		if e.GroupID() != g.ID {
			g.refuse(ReasonTorn, e.ID, "group: %q differs from the first event's group %q", e.GroupID(), g.ID)
		}
		if seen[e.ID] {
			g.refuse(ReasonInvalid, e.ID, "event_id: two events have the same id")
		}
		seen[e.ID] = true
	}
	if g.judge(); g.Err != nil {
		return g.Err
	}
	return nil
}
