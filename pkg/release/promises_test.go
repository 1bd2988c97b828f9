package release_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/release"
)

func TestDiffAlertsListsWhatPeopleAreTold(t *testing.T) {
	before := &release.Settings{
		Alerts:   []event.AlertRule{{Name: "a", On: []string{"task_failed"}, To: []string{"log"}, Assets: []string{"x/y"}}, {Name: "b"}},
		Channels: []release.Channel{{Name: "log", File: &release.FileChannel{Path: "a.jsonl"}}},
		Watched:  []event.WatchedAsset{{Asset: "x/y", Deadline: &event.Deadline{By: "09:00"}, TaskSec: 60}, {Asset: "x/z", MaxLagSec: 60}},
	}
	after := &release.Settings{
		Alerts:   []event.AlertRule{{Name: "a", On: []string{"task_failed"}, To: []string{"log"}, Assets: []string{"x/y", "x/z"}}, {Name: "c"}},
		Channels: []release.Channel{{Name: "log", File: &release.FileChannel{Path: "b.jsonl"}}},
		Watched:  []event.WatchedAsset{{Asset: "x/y", Deadline: &event.Deadline{By: "10:00"}, TaskSec: 60}, {Asset: "x/z", MaxLagSec: 60, RunSec: 5}},
	}
	require.Equal(t, []release.AlertChange{
		{What: "alert rule", Name: "b", Kind: release.Removed},
		{What: "alert rule", Name: "c", Kind: release.Added},
		{What: "channel", Name: "log", Kind: "changed"},
		{What: "deadline", Name: "x/y", Kind: "changed"},
		{What: "sla", Name: "x/z", Kind: release.Added},
	}, release.DiffAlerts(before, after))
	require.Empty(t, release.DiffAlerts(after, after))
	require.Len(t, release.DiffAlerts(nil, after), 7)
}
