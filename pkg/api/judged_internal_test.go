package api

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/tiers"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// Every asset has the fingerprint newCode now, and had the fingerprint oldCode earlier.
const newCode, oldCode = "00000000000000a1", "00000000000000a0"

// changing is a server with a project, and makes random changes.
type changing struct {
	*server

	t      *testing.T
	stack  *embedded.Stack
	random *rand.Rand
	now    time.Time // the time at which partitions are judged
	flag   string    // a file; while it exists, tasks of test/hours fail
	runs   int       // the number of runs that have ended
}

func newChanging(t *testing.T, seed uint64) *changing {
	t.Helper()
	c := &changing{t: t, now: time.Date(2025, 1, 1, 0, 50, 0, 0, time.UTC), random: rand.New(rand.NewPCG(seed, 1)), flag: filepath.Join(t.TempDir(), "flag")} //nolint:gosec // repeatable
	asset := func(name string, dimension *space.Dimension, deps ...string) plan.Asset {
		a := plan.Asset{Key: ids.AssetKey{Namespace: "test", Name: name}, Work: plan.Work{Command: []string{"true"}}, Code: newCode}
		if dimension != nil {
			a.Partitions = &space.Space{Dimensions: []space.Dimension{*dimension}}
		}
		for _, dep := range deps {
			a.Deps = append(a.Deps, ids.AssetKey{Namespace: "test", Name: dep})
		}
		return a
	}
	hour := &space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01", End: "2025-01-01", ReadyAfterSec: 600}
	region := &space.Dimension{Name: "region", Kind: space.Dynamic, Set: "regions"}
	project := &Project{Name: "test", Root: t.TempDir(), Assets: []plan.Asset{
		asset("hours", hour), asset("same", hour, "hours"), asset("sum", nil, "same"), asset("regions", region), asset("total", nil, "regions"), asset("alone", nil),
	}}
	project.Assets[0].Work.Command = []string{"sh", "-c", "! test -e " + c.flag}
	stack, err := embedded.Start(t.Context(), embedded.Options{
		Dir: t.TempDir(), Domain: ids.Domain{Tenant: "acme", Workspace: "prod"}, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler),
		Environ: os.Environ(), Concurrency: 4, Actor: "user:test", Compactor: compactor.Options{Tiers: tiers.Options{MaxSegment: 4}},
		Routes: func(_ *http.ServeMux, e *engine.Engine, _ *worker.Worker) {
			c.server = NewLocal(Config{Engine: e, Project: func() (*Project, error) { return project, nil }}).server
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = stack.Close() })
	c.stack = stack
	return c
}

// change makes a random change, and returns a description of it.
func (c *changing) change() string {
	project, _ := c.Project()
	asset := &project.Assets[c.random.IntN(len(project.Assets))]
	partitions, region := c.partitionsOf(asset), fmt.Sprintf("r%d", c.random.IntN(3))
	switch c.random.IntN(14) {
	case 0:
		if os.Remove(c.flag) != nil {
			require.NoError(c.t, os.WriteFile(c.flag, nil, 0o600))
		}
		hours := &project.Assets[0]
		return "let test/hours fail, or no longer: " + c.run(project, hours, c.partitionsOf(hours))
	case 1:
		mark := []string{event.MarkStale, event.MarkFresh, event.MarkMissing}[c.random.IntN(3)]
		_, err := c.stack.Mark(c.t.Context(), engine.MarkRequest{Assets: project.Assets, Asset: asset.Key, Partitions: partitions, Mark: mark, Reason: "test"})
		return fmt.Sprintf("mark %s as %s: %v", asset.Key, mark, err)
	case 2: //nolint:mnd // one of the changes
		_, err := c.stack.ChangeKeys(c.t.Context(), "regions", []string{region}, nil)
		return fmt.Sprintf("add %s: %v", region, err)
	case 3: //nolint:mnd // as above
		_, err := c.stack.ChangeKeys(c.t.Context(), "regions", nil, []string{region})
		return fmt.Sprintf("remove %s: %v", region, err)
	case 4: //nolint:mnd // as above
		_, err := c.stack.Deploy(c.t.Context(), engine.DeployRequest{
			Release: fmt.Sprintf("%064x", c.random.Uint64()), Force: true, Kind: event.DeployRelease,
			Accept: []engine.Accept{{Asset: asset.Key, Code: newCode, Previous: oldCode}},
		})
		return fmt.Sprintf("accept the old code of %s: %v", asset.Key, err)
	case 5: //nolint:mnd // as above
		release, _, err := c.stack.Deployed(c.t.Context())
		if err == nil {
			_, err = c.stack.Forget(c.t.Context(), engine.ForgetRequest{Assets: []ids.AssetKey{asset.Key}, Release: release, Reason: "test"})
		}
		return fmt.Sprintf("forget %s: %v", asset.Key, err)
	case 6, 7: //nolint:mnd // as above
		c.now = c.now.Add(time.Duration(c.random.IntN(40)) * time.Minute)
		return "set the time to " + c.now.String()
	default:
		return c.run(project, asset, partitions)
	}
}

// run runs an asset, with its current code or an earlier one.
func (c *changing) run(project *Project, asset *plan.Asset, partitions []plan.Selection) string {
	assets := slices.Clone(project.Assets)
	if c.random.IntN(2) == 0 {
		for i := range assets {
			assets[i].Code = oldCode
		}
	}
	handle, err := c.stack.Run(c.t.Context(), engine.RunRequest{
		Plan:    plan.Request{Assets: assets, Select: []ids.AssetKey{asset.Key}, Partitions: partitions, AllowIncomplete: true, Root: project.Root},
		Trigger: event.Trigger{Type: "manual"},
	})
	if err != nil {
		return fmt.Sprintf("run %s: %v", asset.Key, err)
	}
	snap, err := c.stack.Current(c.t.Context())
	for ; err == nil; snap, err = c.stack.Await(c.t.Context(), snap.Revision) {
		if run := snap.State.Runs.Get(handle.RunID); run != nil && run.State.Terminal() {
			c.runs++
			return fmt.Sprintf("run %s: %s", asset.Key, run.State)
		}
	}
	require.NoError(c.t, err)
	return ""
}

// partitionsOf selects a partition of an asset.
func (c *changing) partitionsOf(asset *plan.Asset) []plan.Selection {
	if asset.Partitions == nil {
		return nil
	}
	d := asset.Partitions.Dimensions[0]
	key := fmt.Sprintf("2025-01-01T0%d:00Z", c.random.IntN(3))
	if d.Kind == space.Dynamic {
		key = fmt.Sprintf("r%d", c.random.IntN(3))
	}
	one, err := plan.ParseSelection(d.Name + "=" + key)
	require.NoError(c.t, err)
	return []plan.Selection{one}
}

// show returns the assets and the summaries of their partitions, as a server shows them.
func (c *changing) show(s *server) (assets []*servov1.Asset, summaries []*servov1.PartitionSummary) {
	project, _ := c.Project()
	snap, err := c.stack.Current(c.t.Context())
	require.NoError(c.t, err)
	at := &page{snap: snap, now: c.now}
	shown := make([]*plan.Asset, len(project.Assets))
	for i := range project.Assets {
		shown[i] = &project.Assets[i]
		summary, err := s.summary(c.t.Context(), at, project, shown[i], &servov1.GetPartitionSummaryRequest{Name: shown[i].Key.Name})
		require.NoError(c.t, err)
		summaries = append(summaries, summary)
	}
	assets, err = s.memo.assetsAt(momentOf(snap, project, c.now)).list(c.t.Context(), at, project, shown)
	require.NoError(c.t, err)
	return assets, summaries
}

// Results of an earlier moment are reused if their inputs are the same. This test fails if a server shows other
// results than a newly started server, and also if nothing is reused.
func TestReusedResultsEqualComputedOnes(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := newChanging(t, seed)
			reused := 0
			var before []*servov1.Asset
			for range 80 {
				what := c.change()
				wantAssets, wantSummaries := c.show(NewLocal(c.Config).server)
				assets, summaries := c.show(c.server)
				for i := range assets {
					requireEqual(t, wantAssets[i], assets[i], what)
					requireEqual(t, wantSummaries[i], summaries[i], what)
					if before != nil && before[i] == assets[i] {
						reused++
					}
				}
				before = assets
			}
			require.Positive(t, reused)
			require.Greater(t, c.runs, 10)
			t.Logf("%d of %d results were reused", reused, 80*len(before))
		})
	}
}

func requireEqual(t *testing.T, want, got proto.Message, what string) {
	t.Helper()
	if !proto.Equal(want, got) {
		require.Equal(t, fmt.Sprint(want), fmt.Sprint(got), what)
	}
}
