package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing/fstest" //nolint:depguard // a project's files in memory
	"time"

	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
)

// schedules holds the releases of a domain, with the schedules that they declare.
type schedules struct {
	releases []string
	// versions holds the numbers of the releases, from 1.
	versions map[string]int
	// defined holds all definitions, by name and version.
	defined map[string]map[string]event.Schedule
}

// changesOfClocks are times a few minutes before clocks change in some zone, in the year 2000.
var changesOfClocks = []time.Time{
	time.Date(2000, 3, 26, 0, 56, 0, 0, time.UTC),
	time.Date(2000, 4, 2, 6, 56, 0, 0, time.UTC),
	time.Date(2000, 3, 25, 15, 56, 0, 0, time.UTC),
	time.Date(2000, 3, 25, 14, 56, 0, 0, time.UTC),
}

// epoch is when a bubble of testing/synctest begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// drawSchedules draws schedules in a third of the worlds. A third of these begin a few minutes before clocks change.
func (c *World) drawSchedules() {
	defer c.drawDense()
	defer c.drawBackfills()
	defer c.drawAlerts()
	r := random(c.Seed, "schedules", 0)
	if r.IntN(3) > 0 || c.Overtaken > 0 {
		return
	}
	c.Schedules = 1 + r.IntN(5)
	c.Idle = random(c.Seed, "idle", 0).IntN(2) == 0
	c.Tasks = min(c.Tasks, 12)
	if r.IntN(3) == 0 {
		change := changesOfClocks[r.IntN(len(changesOfClocks))]
		c.Begin = int(change.Sub(epoch).Minutes()) - r.IntN(5)
	}
	c.drawDays()
}

// drawDays lets a fifth of the worlds with schedules and faults begin a few minutes before clocks change, with two
// automators and an outage of one to three days.
func (c *World) drawDays() {
	r := random(c.Seed, "days", 0)
	if c.Faults == (Faults{}) || r.IntN(5) > 0 {
		return
	}
	c.Dispatchers = 2
	c.Begin = int(changesOfClocks[r.IntN(len(changesOfClocks))].Sub(epoch).Minutes()) - r.IntN(5)
	c.Faults.Absence = 24*60 + r.IntN(2*24*60)
}

// drawDense adds tasks to half of the worlds with schedules or backfills. As a result, steps that happen only because
// time passes, such as sweeps and ticks without work, are a smaller share of the world's steps. Worlds whose listings
// have small pages are excluded: with faults, a long listing hardly ever completes there.
func (c *World) drawDense() {
	r := random(c.Seed, "dense", 0)
	if c.Schedules+c.Backfills == 0 || c.PageSize < 1000 || r.IntN(2) == 0 {
		return
	}
	c.Tasks = max(c.Tasks, 12+r.IntN(36))
	c.Requests = max(c.Requests, min(c.Requests*(2+r.IntN(3)), 24))
	c.Wide = 1 + r.IntN(6)
}

// begin returns the earliest time at which the world begins. [Run] waits until this time, unless it has already passed.
func (c World) begin() time.Time { return epoch.Add(time.Duration(c.Begin) * time.Minute) }

// drawSchedules draws the schedules of a domain, and stores releases that declare them.
func (l *workload) drawSchedules(d ids.Domain) *schedules {
	s := &schedules{versions: map[string]int{}, defined: map[string]map[string]event.Schedule{}}
	for version := 1; version <= len(releases); version++ {
		rules := l.alertsOf(d)
		r := &release.Release{SchemaVersion: release.SchemaVersion, Settings: release.Settings{
			Project: "simulated", Channels: channelsOf(rules), Alerts: rules, Watched: l.watchedOf(d),
		}}
		code := &release.Code{SchemaVersion: release.SchemaVersion}
		var assets []string
		for _, p := range l.projects {
			if p.domain == d {
				code.Assets = append(code.Assets, p.coded(version)...)
			}
		}
		for i := range code.Assets {
			assets = append(assets, code.Assets[i].Key.String())
		}
		if l.w.cfg.Idle {
			far := event.Schedule{Name: farSchedule, Cron: yearly, Run: event.RunSpec{Assets: assets[:1]}}
			r.Schedules = append(r.Schedules, far)
			s.defined[far.Name] = map[string]event.Schedule{far.DefinitionVersion(): far}
		}
		for n := range l.w.cfg.Schedules {
			x, ok := l.drawSchedule(d, n, version, assets)
			if !ok {
				continue
			}
			if err := x.Validate(); err != nil {
				panic(fmt.Sprintf("sim: %v", err))
			}
			r.Schedules = append(r.Schedules, x)
			if s.defined[x.Name] == nil {
				s.defined[x.Name] = map[string]event.Schedule{}
			}
			s.defined[x.Name][x.DefinitionVersion()] = x
		}
		sha := l.save(d, r, code)
		s.releases = append(s.releases, sha)
		s.versions[sha] = version
	}
	return s
}

// save stores a release and returns its hash. It uses the store without injected faults.
func (l *workload) save(d ids.Domain, r *release.Release, code *release.Code) string {
	archive, err := source.Build(fstest.MapFS{"servo.yaml": &fstest.MapFile{Data: []byte("project: simulated\n")}}, nil)
	if err == nil {
		var encoded, data []byte
		if encoded, err = json.Marshal(code); err == nil {
			r.Code, r.Source = release.Hash(encoded), archive.SHA
			data, err = json.Marshal(r)
		}
		if err == nil {
			e := engine.New(engine.Config{Handle: domain.Open(domain.Handle{Domain: d, Store: l.w.blobs, Codec: l.w.codec, Clock: l.w.clock})})
			err = e.SaveRelease(context.Background(), &release.Compiled{Release: r, SHA: release.Hash(data), Data: data, Code: code, Encoded: encoded}, archive)
			if err == nil {
				return release.Hash(data)
			}
		}
	}
	panic(fmt.Sprintf("sim: store a release: %v", err))
}

// drawSchedule draws a schedule of a version of the project. Its overlap policy is the same in all versions.
// drawSchedule returns false if this version of the project does not have the schedule.
func (l *workload) drawSchedule(d ids.Domain, n, version int, assets []string) (event.Schedule, bool) {
	cfg := l.w.cfg
	name := fmt.Sprintf("s%d", n)
	of := name + " of " + d.Tenant
	differs := random(cfg.Seed, "version of schedule "+of, version)
	draw := random(cfg.Seed, "schedule "+of, 0)
	s := event.Schedule{Name: name, Overlap: event.Overlaps()[draw.IntN(len(event.Overlaps()))]}
	if differs.IntN(8) == 0 {
		return s, false
	}
	if differs.IntN(3) == 0 {
		draw = random(cfg.Seed, "schedule "+of, version)
	}
	c := cadences[draw.IntN(len(cadences))]
	if s.Cron, s.EverySec = c.cron, c.every; c.cron != "" {
		s.Timezone = zonesOf[draw.IntN(len(zonesOf))].name
		s.Gap = []string{"", event.GapShift, event.GapSkip}[draw.IntN(3)]
		s.Repeated = []string{"", event.RepeatedFirst, event.RepeatedLast, event.RepeatedBoth}[draw.IntN(4)]
	}
	s.JitterSec = []int64{0, 0, 20, 50, 90, 600}[draw.IntN(6)]
	s.CatchUp = []string{"", event.CatchUpNone, event.CatchUpLatest, event.CatchUpAll}[draw.IntN(4)]
	if s.CatchUp == event.CatchUpAll && s.Overlap != event.OverlapBufferAll && s.Overlap != event.OverlapAllowAll {
		s.CatchUp = event.CatchUpLatest
	}
	switch s.CatchUp {
	case event.CatchUpAll:
		s.WindowSec = 120 + draw.Int64N(900) // a short window, because each of these ticks starts a run
	case event.CatchUpLatest:
		s.WindowSec = draw.Int64N(2) * (60 + draw.Int64N(900))
	}
	from := l.w.start.Truncate(time.Minute)
	if draw.IntN(3) == 0 {
		s.Start = event.At(from.Add(time.Duration(draw.IntN(4)) * time.Minute))
	}
	const least = 12 * time.Minute // long enough for schedules of most cadences to tick
	s.End = event.At(from.Add(max(l.w.horizon(), least)))
	if firstAfter(&s, event.At(from)) == 0 {
		s.Cron, s.Timezone, s.Gap, s.Repeated, s.EverySec = "", "", "", "", cadences[0].every
	}
	if draw.IntN(4) == 0 {
		s.PauseAfterFailures = 1 + draw.Int32N(3)
	}
	s.Paused = draw.IntN(10) == 0
	s.Run.Assets = []string{assets[draw.IntN(len(assets))]}
	if draw.IntN(12) == 0 {
		s.Run.Assets[0] += "missing" // no such asset: the planner refuses the request
	}
	l.widen(&s, of, assets)
	s.Run.Upstream = draw.IntN(3) > 0
	s.Run.AllowIncomplete = draw.IntN(2) == 0
	if l.isChain(s.Run.Assets[0]) {
		s.Run.Partitions = l.scheduledPartitions(draw, s.Run.Assets[0])
	}
	if draw.IntN(8) == 0 && len(s.Run.Partitions) == 0 {
		s.Run.Only = []string{event.OnlyStale, event.OnlyMissing, event.OnlyFailed}[draw.IntN(3)]
	}
	return s, true
}

// widen adds assets to the selection of a schedule, but no assets that require a selection of partitions.
func (l *workload) widen(s *event.Schedule, name string, assets []string) {
	if l.w.cfg.Wide == 0 || l.isChain(s.Run.Assets[0]) {
		return
	}
	draw := random(l.w.cfg.Seed, "width of schedule "+name, 0)
	for range draw.IntN(l.w.cfg.Wide) {
		if a := assets[draw.IntN(len(assets))]; !slices.Contains(s.Run.Assets, a) && !l.isChain(a) {
			s.Run.Assets = append(s.Run.Assets, a)
		}
	}
}

// drawCommands inserts the first deployments of schedules, and commands about schedules, into
// scripts.
func (l *workload) drawCommands() {
	if l.w.cfg.Schedules == 0 {
		return
	}
	r := random(l.w.cfg.Seed, "commands of schedules", 0)
	for range (4 + r.IntN(4)) * l.w.cfg.Schedules {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{
			after: time.Duration(r.Int64N(int64(l.w.cfg.horizon() / 8))), project: l.projects[r.IntN(len(l.projects))],
			verb: askSchedule, only: -1, name: fmt.Sprintf("s%d", r.IntN(l.w.cfg.Schedules)),
		}
		if r.IntN(8) == 0 {
			a.verb = askDeploy
		}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
	for _, p := range l.projects {
		a := ask{after: time.Duration(r.IntN(20)) * time.Second, verb: askDeploy, project: p}
		l.scripts["client0"] = slices.Insert(l.scripts["client0"], 0, a)
	}
}

// commandSchedule issues a random command about a schedule or a request.
func (c *client) commandSchedule(ctx context.Context, e *clientEngine, a ask) error {
	w := c.p.machine.w
	p := &event.AutomationCommand{Name: a.name, Reason: "because"}
	var err error
	switch n := c.rng.IntN(20); {
	case w.cfg.Alerts > 0 && c.rng.IntN(6) == 0:
		err = c.commandAlerts(ctx, e)
	case n < 4:
		p.Verb = event.VerbPause
	case n < 11:
		p.Verb, p.CatchUp = event.VerbResume, c.rng.IntN(2) == 0
	case n < 15:
		p.Verb = event.VerbTrigger
		if policy := w.load.policyOfSchedule(e.domain, a.name); policy != "" && c.rng.IntN(3) == 0 {
			p.Overlap = event.Overlaps()[c.rng.IntN(len(event.Overlaps())-1)] // any policy except the last, allow_all
		}
	case n < 16:
		now := w.now()
		_, err = e.BackfillSchedule(ctx, a.name, now.Add(-time.Duration(1+c.rng.IntN(10))*time.Minute), now)
		w.fault("schedule backfill")
	case n < 18:
		_, err = e.RequestRun(ctx, c.p.now().Add(time.Duration(c.rng.IntN(300))*time.Second), event.RunSpec{
			Assets: []string{a.project.assets[c.rng.IntN(len(a.project.assets))].Key.String()}, Upstream: true,
		})
		w.fault("run requested")
	default:
		err = c.cancelRequest(ctx, e)
	}
	if p.Verb != "" {
		w.fault("schedule " + p.Verb)
		_, err = e.Under(c.conditions(p)).CommandSchedule(ctx, p)
	}
	unavailable := errors.Is(err, errUnavailable) || errors.Is(err, errLost)
	if err != nil && !unavailable {
		w.fault("schedule command without effect")
		return nil
	}
	return err
}

// cancelRequest cancels a request that has not ended.
func (c *client) cancelRequest(ctx context.Context, e *clientEngine) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	var live []string
	for row := range snap.State.Requests.All {
		if !row.State.Ended() {
			live = append(live, row.RequestID)
		}
	}
	if len(live) == 0 {
		return nil
	}
	c.p.machine.w.fault("request cancelled")
	return e.CancelRequest(ctx, live[c.rng.IntN(len(live))], "because")
}

// policyOfSchedule returns the overlap policy of a schedule, or "" if no release has it.
func (l *workload) policyOfSchedule(d ids.Domain, name string) string {
	for _, s := range l.definitions(d, name) {
		return s.Overlap
	}
	return ""
}

// version returns the number of a release.
func (l *workload) version(d ids.Domain, sha string) int {
	if s := l.schedules[d]; s != nil {
		return s.versions[sha]
	}
	return slices.Index(releases, sha) + 1
}

// releasesOf returns the releases of a domain.
func (l *workload) releasesOf(d ids.Domain) []string {
	if s := l.schedules[d]; s != nil {
		return s.releases
	}
	return releases
}

// schedulesOf reads a release and returns its schedules, which a deployment of the release contains.
func (l *workload) schedulesOf(ctx context.Context, e *clientEngine, sha string) ([]event.Schedule, error) {
	if l.w.cfg.Schedules == 0 {
		return nil, nil
	}
	r, _, err := e.ReadRelease(ctx, sha)
	if err != nil {
		return nil, err
	}
	return r.Schedules, nil
}

// slow returns the additional duration of a task in a world with schedules. This makes runs of a schedule overlap.
func (l *workload) slow(runID, taskKey string) time.Duration {
	r := random(l.w.cfg.Seed, "slow "+runID+taskKey, 0)
	if l.w.cfg.Schedules == 0 || r.IntN(3) > 0 || l.w.cfg.Large > 0 && r.IntN(slowOfLarge) > 0 {
		return 0
	}
	return time.Duration(20+r.IntN(140)) * time.Second
}

// definitions returns the definitions of a schedule, by version.
func (l *workload) definitions(d ids.Domain, name string) map[string]event.Schedule {
	if s := l.schedules[d]; s != nil {
		return s.defined[name]
	}
	return nil
}
