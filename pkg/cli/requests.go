package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// timeForms are the forms of --at, in addition to +DURATION and times without a date. Times without an offset are
// local.
var timeForms = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"}

// momentOf reads the time of --at. A time without a date means its next occurrence.
func momentOf(text string, now time.Time) (time.Time, error) {
	if after, ok := strings.CutPrefix(text, "+"); ok {
		d, err := time.ParseDuration(after)
		if err != nil || d <= 0 {
			return time.Time{}, usagef("--at %q is not a duration: write +90m or +24h", text)
		}
		return now.Add(d), nil
	}
	if clock, err := time.ParseInLocation("15:04", text, now.Location()); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), 0, 0, now.Location())
		if !at.After(now) {
			at = time.Date(now.Year(), now.Month(), now.Day()+1, clock.Hour(), clock.Minute(), 0, 0, now.Location())
		}
		return at, nil
	}
	for _, form := range timeForms {
		at, err := time.ParseInLocation(form, text, now.Location())
		switch {
		case err != nil:
		case !at.After(now):
			return time.Time{}, usagef("--at %s is in the past: the time is now %s", text, now.Format(time.RFC3339))
		default:
			return at, nil
		}
	}
	return time.Time{}, usagef("--at %q is not a time: write 22:30, 2025-01-31T22:30, 2025-01-31T22:30:00Z or +90m", text)
}

// spec returns the specification of the run that the flags and selections request.
func (f *runFlags) spec(args []string, r *engine.RunRequest) event.RunSpec {
	s := event.RunSpec{
		Assets: args, Exclude: f.assets.exclude, All: f.assets.all, Upstream: f.assets.upstream, Downstream: f.assets.downstream,
		Partitions: f.partitions, Only: string(r.Need), AllowIncomplete: f.allowIncomplete, Labels: r.Labels,
		MaxParallelism: f.parallelism, TimeoutSec: r.TimeoutSec,
	}
	return s
}

// requestRun asks for a run at a later time.
func (a *app) requestRun(ctx context.Context, f runFlags, args []string, r *engine.RunRequest, choice assetChoice) error {
	at, err := momentOf(f.at, a.Clock.Now())
	if err != nil {
		return err
	}
	p, err := a.definedProject(ctx, choice.names())
	if err != nil {
		return err
	}
	chosen, err := choice.resolve(p.Assets)
	if err != nil {
		return err
	}
	r.Plan.Assets, r.Plan.Select, r.Plan.Matched = p.Assets, chosen.Named, chosen.Matched
	spec := f.spec(args, r)
	return a.do(ctx, p, func(ctx context.Context, s *session) error {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		if err := engine.CheckRequest(snap, r, at); err != nil {
			return err
		}
		if !explicit(p) {
			if _, _, err := a.deployLocal(ctx, s, p, func(*snapshot.Snapshot) error { return nil }); err != nil {
				return err
			}
		}
		request, err := s.RequestRun(ctx, at, spec)
		if err != nil {
			return err
		}
		a.note("request %s: its run starts at %s", a.style.bold(request.ID), stamp(request.NextAt))
		if s.stack != nil {
			a.note("no other process owns the state folder: keep `servo dev` running. A request that is overdue starts with the next process")
		}
		return list(a, requestColumns(), []engine.Request{request})
	})
}

func (a *app) requestsCommand() *cobra.Command {
	var ended bool
	cmd := &cobra.Command{
		Use:         "requests",
		Annotations: writesRows,
		Short:       "List the runs that are requested and have not started",
		Long: "List the requested runs that have not started, each with the reason. `servo run --at` and schedules\n" +
			"request runs. Cancel a request with `servo cancel REQUEST`.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(v published) error {
				found, err := a.calls(v).ListRequests(cmd.Context(), &servov1.ListRequestsRequest{Ended: ended})
				if err != nil {
					return err
				}
				return list(a, requestColumns(), api.ReadAll[engine.Request](found.GetRequests()))
			})
		},
	}
	cmd.Flags().BoolVar(&ended, "ended", false, "also list the requests that ended within the last hour")
	return cmd
}

func requestColumns() []column[engine.Request] {
	return []column[engine.Request]{
		{Name: "request_id", Value: func(r engine.Request) any { return r.ID }},
		{Name: "state", Value: func(r engine.Request) any { return string(r.State) }},
		{Name: "schedule", Value: func(r engine.Request) any { return orNil(r.ScheduleID) }},
		{
			Name: "assets", Value: func(r engine.Request) any { return cells(specAssets(r.Run)) },
			Text: func(r engine.Request) any { return strings.Join(specAssets(r.Run), " ") },
		},
		{Name: "partitions", Machine: true, Value: func(r engine.Request) any { return cells(r.Run.Partitions) }},
		{
			Name: "next_at", Value: func(r engine.Request) any { return moment(r.NextAt) },
			Text: func(r engine.Request) any { return stamp(r.NextAt) },
		},
		{Name: "run_id", Value: func(r engine.Request) any { return orNil(r.RunID) }},
		{Name: "tries", Machine: true, Value: func(r engine.Request) any { return r.Tries }},
		{Name: "error", Value: func(r engine.Request) any { return orNil(view.Problem(r.ErrorCode, r.Error)) }},
	}
}

// specAssets returns the selections of a request, as a user writes them.
func specAssets(s event.RunSpec) []string {
	if s.All {
		return []string{"--all"}
	}
	return s.Assets
}

// isRequest reports whether an argument names a request, not a run.
func isRequest(id string) bool { return strings.Contains(id, ":") }

// names returns a function that is given the assets of a project. The function returns an error if the project lacks
// a chosen asset, and otherwise the assets that the user has named.
func (c assetChoice) names() func([]plan.Asset) ([]ids.AssetKey, error) {
	return func(assets []plan.Asset) ([]ids.AssetKey, error) {
		if len(assets) == 0 {
			return nil, errors.New("the project declares no assets: add .sql or .yaml files to " + project.AssetsDir)
		}
		chosen, err := c.resolve(assets)
		return chosen.Named, err
	}
}

func (a *app) cancelRequest(ctx context.Context, s *session, id, reason string) error {
	if err := s.CancelRequest(ctx, id, reason); err != nil {
		return err
	}
	a.note("request %s cancelled", id)
	return nil
}
