package release_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/release"
)

func TestDiffSchedulesIgnoresPaused(t *testing.T) {
	before := []event.Schedule{{Name: "a", Cron: "@daily"}, {Name: "b", Cron: "@daily"}, {Name: "c", Cron: "@daily"}}
	after := []event.Schedule{{Name: "b", Cron: "@hourly"}, {Name: "c", Cron: "@daily", Paused: true}, {Name: "d", Cron: "@daily"}}
	require.Equal(t, []release.ScheduleChange{{Schedule: "a", Kind: release.Removed}, {Schedule: "b", Kind: "changed"}, {Schedule: "d", Kind: release.Added}},
		release.DiffSchedules(before, after))
	require.Empty(t, release.DiffSchedules(after, after))
}

// A release contains the schedules of the project, so a project with another schedule is another release.
func TestCompileKeepsSchedules(t *testing.T) {
	in := release.Input{Settings: release.Settings{Project: "p", Schedules: []event.Schedule{{Name: "a", Cron: "@daily", Run: event.RunSpec{All: true}}}}}
	c, err := release.Compile(in, nil, nil)
	require.NoError(t, err)
	read, err := release.Decode(c.Data, c.SHA)
	require.NoError(t, err)
	require.Equal(t, in.Schedules, read.Schedules)
	in.Schedules = nil
	without, err := release.Compile(in, nil, nil)
	require.NoError(t, err)
	require.NotEqual(t, c.SHA, without.SHA)
}
