package table_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestColumnsAreKeyFirstAndMetaLast(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, d := range state.Declarations() {
		require.False(t, names[d.Name], d.Name)
		names[d.Name] = true
		keys := d.Keys()
		require.NotEmpty(t, keys)
		for i, c := range d.Columns {
			require.Regexp(t, `^[a-z][a-z_]*$`, c.Name)
			require.Equal(t, i < len(keys), c.Key, "%s.%s", d.Name, c.Name)
			require.False(t, c.Key && c.Nullable, "%s.%s", d.Name, c.Name)
		}
		last := d.Columns[len(d.Columns)-5:]
		require.Equal(t, "tenant_id workspace_id row_version row_seq deleted",
			last[0].Name+" "+last[1].Name+" "+last[2].Name+" "+last[3].Name+" "+last[4].Name)
	}
}

func TestCanonicalHasEveryColumn(t *testing.T) {
	t.Parallel()
	row := &state.Dep{
		RunID: "r", Upstream: "a", Downstream: "b\n", SatisfiedAt: 0,
		Meta: state.Meta{Tenant: "acme", Workspace: "prod", Version: "v", Seq: 3},
	}
	require.Equal(t, `{"run_id":"r","upstream_task_key":"a","downstream_task_key":"b\n","satisfied":false,"resolution":null,`+
		`"satisfied_at":null,"satisfying_attempt":0,"tenant_id":"acme","workspace_id":"prod","row_version":"v","row_seq":3,"deleted":false}`,
		table.Of[state.Dep]("dep_satisfaction").Canonical(row))
}

func TestDiffNamesRowsAndColumns(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.RunKey]("run_keys")
	want := []*state.RunKey{{RunKey: "b", RunID: "1"}, {RunKey: "a"}, {RunKey: "c", RunID: "3"}}
	got := []*state.RunKey{{RunKey: "b", RunID: "2", ExpiresAt: 1_000_000}, {RunKey: "c", RunID: "3"}, {RunKey: "d"}}
	lines := slices.Collect(tab.Diff(want, got))
	require.Len(t, lines, 3)
	require.Contains(t, lines[0], "run_keys run_key=a: missing, want {")
	require.Equal(t, `run_keys run_key=b: run_id is "2", want "1"; expires_at is "1970-01-01T00:00:01.000000Z", want ""`, lines[1])
	require.Contains(t, lines[2], "run_keys run_key=d: unexpected, got {")
}
