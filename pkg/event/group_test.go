package event_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
)

// member returns the line of the n-th event of an entry, in a group.
func member(t *testing.T, n int, group string, size int) string {
	t.Helper()
	e := wrap(finished())
	e.ID = fmt.Sprintf("%s%02d", eventID[:24], n)
	e.Group, e.GroupSize = group, size
	return string(encode(t, e))
}

func groupsOf(entry string) []event.Group { return event.Groups(event.DecodeEntry([]byte(entry))) }

const (
	groupA = "01JHK4W30000000000000000AA"
	groupB = "01JHK4W30000000000000000BB"
)

func TestDecodeEntryCountsLinesOfAnyEnding(t *testing.T) {
	entry := "\r\n" + strings.TrimSuffix(member(t, 1, "", 0), "\n") + "\r\n\n  \n" + strings.TrimSuffix(member(t, 2, "", 0), "\n")
	lines := event.DecodeEntry([]byte(entry))
	require.Len(t, lines, 2)
	require.Equal(t, 2, lines[0].Number)
	require.Equal(t, 5, lines[1].Number)
	for _, l := range lines {
		require.Nil(t, l.Err)
		require.False(t, bytes.ContainsAny(l.Bytes, "\r\n"))
	}
	require.Empty(t, event.DecodeEntry(nil))
}

func TestGroupsNeedNotBeContiguous(t *testing.T) {
	groups := groupsOf(member(t, 1, groupA, 2) + member(t, 2, "", 0) + member(t, 3, groupA, 2))
	require.Len(t, groups, 2)
	require.Equal(t, groupA, groups[0].ID)
	require.Len(t, groups[0].Events, 2)
	require.Nil(t, groups[0].Err)
	require.Equal(t, groups[1].Events[0].ID, groups[1].ID)
	require.Nil(t, groups[1].Err)
}

func TestGroupsAreRejectedSeparately(t *testing.T) {
	broken := strings.Replace(member(t, 4, groupB, 2), `"succeeded"`, `"won"`, 1)
	groups := groupsOf(member(t, 1, groupA, 2) + "{torn\n" + member(t, 2, "", 0) + member(t, 3, groupB, 2) + broken)
	require.Len(t, groups, 4)

	require.Equal(t, event.ReasonTorn, groups[0].Err.Reason)
	require.Equal(t, "line-2", groups[1].ID)
	require.Equal(t, event.ReasonMalformed, groups[1].Err.Reason)
	require.Nil(t, groups[2].Err)
	require.Equal(t, groupB, groups[3].ID)
	require.Equal(t, event.ReasonInvalid, groups[3].Err.Reason, "the reason of the invalid member")
	require.Contains(t, groups[3].Err.Detail, "payload.outcome")
	require.Equal(t, 2, groups[3].Lines)
	require.Len(t, groups[3].Events, 1)
}

func TestGroupsNameRejectedLineByEventID(t *testing.T) {
	groups := groupsOf(strings.Replace(member(t, 1, "", 0), `"succeeded"`, `"won"`, 1))
	require.Len(t, groups, 1)
	require.Equal(t, eventID[:24]+"01", groups[0].ID)
}

func TestGroupsCountDuplicateLineOnce(t *testing.T) {
	one, two := member(t, 1, groupA, 2), member(t, 2, groupA, 2)
	groups := groupsOf(one + two + one + two)
	require.Len(t, groups, 1)
	require.Nil(t, groups[0].Err)
	require.Len(t, groups[0].Events, 2)
}

func TestGroupsRejectDifferentEventsOfOneID(t *testing.T) {
	groups := groupsOf(member(t, 1, groupA, 2) + member(t, 2, groupA, 2) + member(t, 1, "", 0))
	require.Len(t, groups, 2)
	for _, g := range groups {
		require.Equal(t, event.ReasonInvalid, g.Err.Reason)
		require.Contains(t, g.Err.Detail, "event_id")
	}
}

func TestGroupsRejectLargeGroup(t *testing.T) {
	e := wrap(finished())
	e.Group, e.GroupSize = groupA, 40
	p := finished()
	p.Error = &event.Error{Message: strings.Repeat("m", event.MaxMessage)}
	e.Payload = p
	var entry []byte
	for n := range e.GroupSize {
		e.ID = fmt.Sprintf("%s%02d", eventID[:24], n)
		var err error
		entry, err = event.Encode(entry, e)
		require.NoError(t, err)
	}
	groups := event.Groups(event.DecodeEntry(entry))
	require.Len(t, groups, 1)
	require.Equal(t, event.ReasonTooLarge, groups[0].Err.Reason)
}

func FuzzDecodeEntry(f *testing.F) {
	line, err := event.Encode(nil, wrap(finished()))
	require.NoError(f, err)
	grouped := wrap(finished())
	grouped.Group, grouped.GroupSize = groupA, 2
	member, err := event.Encode(nil, grouped)
	require.NoError(f, err)
	for _, seed := range [][]byte{
		nil, line, append(bytes.Clone(line), line...), append(bytes.Clone(line), member...),
		[]byte("\r\n{}\r\n[]\nnull\n\"\""), []byte(`{"event_type":"TaskFinished","event_version":9}`),
		bytes.ReplaceAll(line, []byte(`"attempt":1`), []byte(`"attempt":{"a":[1e9]}`)),
		[]byte(`{"event_type":"PlanCreated","event_version":1,"payload":{"tasks":[{"task_key":"a","depends_on":["a"]}]}}`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := event.DecodeEntry(data)
		total := 0
		for _, l := range lines {
			require.True(t, (l.Envelope == nil) != (l.Err == nil), "a line is an event or rejected")
			if l.Envelope == nil {
				continue
			}
			require.NoError(t, event.Validate(l.Envelope))
			out, err := event.Encode(nil, l.Envelope)
			require.NoError(t, err)
			again, err := event.DecodeLine(out)
			require.NoError(t, err)
			twice, err := event.Encode(nil, again)
			require.NoError(t, err)
			require.Equal(t, string(out), string(twice))
		}
		for _, g := range event.Groups(lines) {
			require.NotEmpty(t, g.ID)
			require.True(t, g.Err != nil || len(g.Events) == g.Lines)
			total += g.Lines
		}
		require.LessOrEqual(t, total, len(lines))
	})
}
