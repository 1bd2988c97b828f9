package ids_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
)

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

const run = "01JHK4W2ZS4T9M3Q6V8X0YB1CD"

// Stores contain these golden values: they must never change.
func TestDerivedIDsNeverChange(t *testing.T) {
	for want, got := range map[string]string{
		"01JHK4W2ZS4SC92V1SVV2A6F7C":                      ids.AttemptID(domain, run, "raw/events", 1),
		"01JHK4W2ZSRP8YQ5NDHXBC5GE7":                      ids.AttemptID(domain, run, "raw/events", 2),
		"01JHK4W2ZS23ANZD6PTKGVNJS1":                      ids.AttemptID(domain, run, "raw/events[date=2025-01-15]", 1),
		"01JHK4W2ZS0KTHY84RMV47W6RR":                      ids.MaterializationID(domain, run, "raw/events"),
		"01JHK4W2ZS4JDB6Z87QJAKVQGE":                      ids.TaskID(domain, run, "raw/events"),
		"d_4y7ybypne24j3on2lg6t5dv57t":                    ids.QueueTaskID(ids.KindDispatch, domain, ids.DispatchID(run, "raw/events", 1), 0),
		"d_s5gt6psbz5vcrkbww7rskubusi":                    ids.QueueTaskID(ids.KindDispatch, domain, ids.DispatchID(run, "raw/events", 1), 1),
		"t_s5mdhqiep2xe3m7xepliijdarm":                    ids.QueueTaskID(ids.KindTimer, domain, ids.TimerID("RETRY", run, "raw/events", 1, 1_736_937_000), 0),
		"dispatch:" + run + ":raw/events:1":               ids.DispatchID(run, "raw/events", 1),
		"timer:retry:" + run + ":raw/events:1:1736937000": ids.TimerID("RETRY", run, "raw/events", 1, 1_736_937_000),
	} {
		require.Equal(t, want, got)
	}
}

func TestDerivedIDsHaveTimeOfRun(t *testing.T) {
	for _, id := range []string{
		ids.AttemptID(domain, run, "a", 1), ids.MaterializationID(domain, run, "a"), ids.TaskID(domain, run, "a"),
	} {
		require.True(t, ids.Valid(id))
		require.Equal(t, ids.Time(run), ids.Time(id))
	}
}

func TestDerivedIDsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range []ids.Domain{domain, {Tenant: "acme", Workspace: "dev"}, {Tenant: "acme2", Workspace: "prod"}} {
		for _, task := range []string{"a", "a|1", "a|task", "b"} {
			for _, id := range []string{
				ids.AttemptID(d, run, task, 1), ids.AttemptID(d, run, task, 2), ids.AttemptID(d, run, task, 11),
				ids.MaterializationID(d, run, task), ids.TaskID(d, run, task),
			} {
				require.False(t, seen[id], "%s occurs twice", id)
				seen[id] = true
			}
		}
	}
}

func TestQueueTaskIDHasAllowedCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := ids.QueueTaskID(ids.KindTimer, domain, rapid.String().Draw(t, "id"), rapid.Int32().Draw(t, "generation"))
		require.Regexp(t, `^t_[a-z2-7]{26}$`, name)
	})
}

func TestDomainFormatsAndValidates(t *testing.T) {
	require.Equal(t, "acme/prod", domain.String())
	require.Equal(t, "tenant=acme/workspace=prod", domain.Path())
	require.Equal(t, "servo/acme/prod", domain.Source())
	require.NoError(t, domain.Validate())
	for _, bad := range []string{"", "Acme", "a_b", "a/b", "é", strings.Repeat("a", 64)} {
		require.ErrorContains(t, ids.Domain{Tenant: bad, Workspace: "prod"}.Validate(), "tenant")
		require.ErrorContains(t, ids.Domain{Tenant: "acme", Workspace: bad}.Validate(), "workspace")
	}
}

func TestValidAcceptsOnlyCanonicalULIDs(t *testing.T) {
	for id, want := range map[string]bool{
		run:                               true,
		"00000000000000000000000000":      true,
		"76EZ91ZPZZZZZZZZZZZZZZZZZZ":      true,  // last of the year 9999
		"76EZ91ZQ000000000000000000":      false, // first of the year 10000
		"7ZZZZZZZZZZZZZZZZZZZZZZZZZ":      false,
		"80000000000000000000000000":      false,
		"":                                false,
		strings.ToLower(run):              false,
		run[:25]:                          false,
		run + "0":                         false,
		strings.Replace(run, "0", "O", 1): false,
		strings.Replace(run, "0", "U", 1): false,
	} {
		require.Equal(t, want, ids.Valid(id), id)
	}
}

func TestAtTimeIsSmallestULID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 253402300799999).Draw(t, "ms")).UTC()
		bound := ids.AtTime(at)
		require.True(t, ids.Valid(bound))
		require.Equal(t, at, ids.Time(bound))
		require.Equal(t, strings.Repeat("0", 16), bound[10:])
	})
	require.Equal(t, strings.Repeat("0", 26), ids.AtTime(time.Time{}), "before 1970")
	require.True(t, ids.Time("nonsense").IsZero())
}
