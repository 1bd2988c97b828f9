package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestWatchPosition(t *testing.T) {
	for _, test := range []struct {
		name, query, last string
		want              engine.Position
		problem           string
	}{
		{name: "the newest revision"},
		{name: "parameters", query: "after_revision=7&timeline=T", want: engine.Position{Timeline: "T", Revision: 7}},
		{name: "the last event counts more", query: "after_revision=7&timeline=T", last: "U.9", want: engine.Position{Timeline: "U", Revision: 9}},
		{name: "no number", query: "after_revision=x", problem: `the revision is "x"`},
		{name: "negative", query: "after_revision=-1", problem: `the revision is "-1"`},
		{name: "no period", last: "9", problem: `Last-Event-ID is "9"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/watch?"+test.query, nil)
			if test.last != "" {
				r.Header.Set("Last-Event-ID", test.last)
			}
			got, err := watchPosition(r)
			if test.problem != "" {
				require.ErrorContains(t, err, test.problem)
				require.Equal(t, http.StatusBadRequest, statusOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestWatchFilter(t *testing.T) {
	filter := func(query url.Values) func(state.Record) bool {
		keep, err := watchFilter(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/watch?"+query.Encode(), nil))
		require.NoError(t, err)
		return keep
	}
	run, other := &state.Run{RunID: "A"}, &state.Run{RunID: "B"}
	task, group := &state.Task{RunID: "A"}, &state.Task{RunID: "A", Kind: event.KindGroup}
	moved := &state.Run{RunID: "A", Meta: state.Meta{Deleted: true}}
	all := filter(nil)
	require.True(t, all(run) && all(other) && all(task) && all(&state.Schedule{}) && all(&state.Mark{}))
	require.False(t, all(group) || all(moved) || all(&state.Timer{}))
	one := filter(url.Values{"run_ids": {"A"}, "tables": {"runs"}})
	require.True(t, one(run))
	require.False(t, one(other) || one(task) || one(&state.Backfill{}))

	for _, bad := range []string{"tables=nope", "run_ids=A" + strings.Repeat("&run_ids=A", 100)} {
		_, err := watchFilter(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/watch?"+bad, nil))
		require.Equal(t, http.StatusBadRequest, statusOf(err))
	}
}

func TestChangesEvent(t *testing.T) {
	position := engine.Position{Timeline: "T", Revision: 8}
	require.Equal(t, ": nothing has changed\n\n", string(changesEvent(&engine.Changes{Position: position, Alive: true})))
	require.Equal(t, "id: T.8\nevent: resync\ndata: {\"revision\":8,\"timeline\":\"T\"}\n\n", string(changesEvent(&engine.Changes{Position: position, Resync: true})))
	// A name cannot end the event: JSON has no line breaks.
	got := string(changesEvent(&engine.Changes{Position: position, Rows: []state.Record{
		&state.Partition{AssetKey: "a\n\nevent: x", PartitionKey: "p"}, &state.Mark{AssetKey: "a\n\nevent: x", PartitionKey: "p"}, &state.Schedule{ScheduleID: "s"},
	}}))
	require.Equal(t, "id: T.8\nevent: changes\ndata: {\"revision\":8,\"timeline\":\"T\","+
		"\"partitions\":[{\"asset_key\":\"a\\n\\nevent: x\",\"partition_key\":\"p\"}],\"schedules\":[\"s\"]}\n\n", got)
}
