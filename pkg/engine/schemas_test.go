package engine_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// stored is a state, and a store with the commit markers of its partitions.
type stored struct {
	t     *testing.T
	store blob.Store
	state *state.State
	made  int
}

// partition adds a partition with a schema. Its run is later than the runs of all earlier partitions. Without
// columns, its commit marker has the form that an older build wrote.
func (s *stored) partition(run, task, hash string, columns ...contract.CommitMarkerColumn) {
	s.made++
	id := "01KAJ2T0000000000000000" + strconv.Itoa(100+s.made)
	uri := "assets/x/" + id + "/" + id + "-n/"
	data, err := json.Marshal(&contract.CommitMarker{
		MaterializationID: id, AttemptID: id, Nonce: "n", URI: uri, SchemaHash: hash, Columns: columns, CommittedAt: 1, StartedAt: 1,
	})
	require.NoError(s.t, err)
	_, err = s.store.Put(s.t.Context(), contract.CommitMarkerKeyOf(uri), data)
	require.NoError(s.t, err)
	s.state.Partitions.Put(&state.Partition{
		AssetKey: "a/x", PartitionKey: task, TaskKey: task, RunID: run, OutputURI: uri, SchemaHash: hash, MaterializedAt: event.Time(s.made),
	})
}

func column(name, kind string) contract.CommitMarkerColumn {
	return contract.CommitMarkerColumn{Name: name, Type: kind}
}

func TestSchemaChangesAreDescribed(t *testing.T) {
	declared := func(row *state.Partition) bool { return row.PartitionKey != "removed" }
	for name, c := range map[string]struct {
		make func(s *stored)
		want []string
	}{
		"one schema": {func(s *stored) {
			s.partition("old", "p1", "A", column("n", "BIGINT"))
			s.partition("new", "p2", "A", column("n", "BIGINT"))
		}, nil},
		"an unknown schema is no difference": {func(s *stored) {
			s.partition("old", "p1", "")
			s.partition("new", "p2", "A", column("n", "BIGINT"))
		}, nil},
		"columns": {func(s *stored) {
			s.partition("old", "p1", "A", column("gone", "DATE"), column("n", "BIGINT"))
			s.partition("old", "p2", "A", column("gone", "DATE"), column("n", "BIGINT"))
			s.partition("new", "p3", "B", column("n", "DOUBLE"), column("a\nb", "X\x1b"))
			s.partition("new", "p4", "B", column("n", "DOUBLE"), column("a\nb", "X\x1b"))
		}, []string{`the schema of p4 (and 1 partition like it) differs from that of p2: "n" changed from BIGINT to DOUBLE, ` +
			`added "a\nb" X\x1b, removed "gone" DATE`}},
		"a marker of an older build": {func(s *stored) {
			s.partition("old", "p1", "A")
			s.partition("new", "p2", "B", column("n", "BIGINT"))
		}, []string{"the schema of p2 differs from that of p1: the columns are not recorded"}},
		"the order": {func(s *stored) {
			s.partition("old", "p1", "A", column("m", "DATE"), column("n", "DATE"))
			s.partition("new", "p2", "B", column("n", "DATE"), column("m", "DATE"))
		}, []string{"the schema of p2 differs from that of p1: the same columns, in another order or stored in another form"}},
		"two schemas of one run are compared once": {func(s *stored) {
			s.partition("new", "p1", "A", column("n", "DATE"))
			s.partition("new", "p2", "B", column("n", "DATE"), column("m", "DATE"))
		}, []string{`the schema of p2 differs from that of p1: added "m" DATE`}},
		"a partition that the project no longer declares": {func(s *stored) {
			s.partition("old", "removed", "A", column("n", "DATE"))
			s.partition("new", "p2", "B", column("n", "BIGINT"))
		}, nil},
		"a difference between other runs' partitions": {func(s *stored) {
			s.partition("old", "p1", "A")
			s.partition("old", "p2", "B")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stored{t: t, store: memblob.New(memblob.Options{}), state: state.New(ids.Domain{Tenant: "t", Workspace: "w"})}
			c.make(s)
			found, err := engine.SchemaChanges(t.Context(), s.store, &snapshot.Snapshot{State: s.state}, &state.Run{RunID: "new"}, declared)
			require.NoError(t, err)
			require.Equal(t, c.want, found)
		})
	}
}

func TestSchemaChangesAreBounded(t *testing.T) {
	s := &stored{t: t, store: memblob.New(memblob.Options{}), state: state.New(ids.Domain{Tenant: "t", Workspace: "w"})}
	for i := range 30 {
		s.partition("new", "p"+strconv.Itoa(i), "schema "+strconv.Itoa(i), column("n"+strconv.Itoa(i), "DATE"))
	}
	found, err := engine.SchemaChanges(t.Context(), s.store, &snapshot.Snapshot{State: s.state}, &state.Run{RunID: "new"}, nil)
	require.NoError(t, err)
	require.Len(t, found, 21)
	require.Equal(t, `the schema of p29 differs from that of p28: added "n29" DATE, removed "n28" DATE`, found[0])
	require.Equal(t, "and 9 more differences between schemas", found[20])
}
