package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestFindScheduleNamesPendingSchedules(t *testing.T) {
	for name, c := range map[string]struct {
		deployment state.Deployment
		want       string
	}{
		"pending": {state.Deployment{Schedules: "h", SchedulesPending: true}, "the schedules of the deployed release are not active yet"},
		"none":    {state.Deployment{SchedulesPending: true}, "the deployed release has no schedules"},
	} {
		t.Run(name, func(t *testing.T) {
			s := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
			c.deployment.DeployID = "d"
			s.Deployments.Put(&c.deployment)
			_, err := engine.FindSchedule(s, "nightly")
			require.ErrorIs(t, err, engine.ErrNotFound)
			require.ErrorContains(t, err, c.want)
		})
	}
}
