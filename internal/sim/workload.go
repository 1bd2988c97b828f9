package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// workload describes the requests of clients and the behaviour of their tasks.
type workload struct {
	w        *world
	projects []*project
	// For each client, scripts holds the requests, next is the index of the next request, and asking is the process
	// that is making a request.
	scripts map[string][]ask
	next    map[string]int
	asking  map[string]*process
	busy    *busy
	// schedules holds the releases of domains in worlds with schedules.
	schedules map[ids.Domain]*schedules
	// partitioned holds the partitioned assets of large worlds.
	partitioned map[string]bool
	// policies caches the retry policies of assets. It is nil until a policy is first needed.
	policies map[string]plan.Retries
	// channels receive alerts.
	channels channelLog
}

// project is a DAG of assets.
type project struct {
	domain ids.Domain
	assets []plan.Asset
	// days are the first and the last day of the partitioned assets of a large project.
	days [2]string
}

// behaviour determines how the attempts of an asset's tasks end.
type behaviour struct {
	// failures is how many attempts fail before one succeeds. The task fails if it has at most this many attempts.
	failures int32
	takes    time.Duration
	// hangs makes the first attempt run until it times out.
	hangs bool
}

// ask is one request of a client.
type ask struct {
	after   time.Duration // delay after the previous request
	verb    verb
	project *project
	only    int  // index of the selected asset; -1: all assets
	alone   bool // select the asset without its upstreams
	runKey  string
	slots   int32 // parallelism of the run, or a limit
	pool    string
	seconds int32 // timeout of the run
	force   bool
	name    string // name of a schedule
}

type verb int

const (
	askRun verb = iota
	askCancel
	askRetry
	askLimit
	askGhost
	askAhead
	askDeploy
	askResolve
	askKeys
	askMark
	askPin
	askForget
	askSchedule
	askBackfill
	askCommandBackfill
)

var pools = []string{"", "", "", "warehouse", "api"}

func newWorkload(w *world) *workload {
	r := random(w.cfg.Seed, "workload", 0)
	l := &workload{
		channels: channelLog{tried: map[string]int{}, sent: map[string]int{}},
		w:        w, scripts: map[string][]ask{}, next: map[string]int{}, asking: map[string]*process{},
		schedules: map[ids.Domain]*schedules{}, partitioned: map[string]bool{}, busy: &busy{from: w.start.Add(w.horizon()), seen: map[string]bool{}},
	}
	for i, d := range w.domains {
		for j := range 1 + r.IntN(2) {
			p := l.drawProject(r, d, fmt.Sprintf("p%d%d", i, j))
			l.addChain(p, fmt.Sprintf("p%d%d", i, j))
			l.projects = append(l.projects, p)
			if last := &p.assets[len(p.assets)-1]; l.w.cfg.Large == 0 && l.isChain(last.Key.String()) {
				l.addChecks(last)
			}
		}
	}
	for _, d := range w.domains {
		if w.cfg.isAutomated() {
			l.schedules[d] = l.drawSchedules(d)
		}
	}
	span := w.cfg.horizon() / time.Duration(w.cfg.Requests+1)
	if w.cfg.Spread {
		span *= time.Duration(2 * w.cfg.Clients) // all clients wait concurrently, each between its own requests
	}
	for i := range w.cfg.Requests {
		client := fmt.Sprintf("client%d", i%w.cfg.Clients)
		a := ask{
			after: time.Duration(r.Int64N(int64(span) + 1)), project: l.projects[r.IntN(len(l.projects))], only: -1,
		}
		switch n := r.IntN(11); {
		case i == 0 || n < 6:
			a.verb = askRun
			if r.IntN(4) == 0 {
				a.only = r.IntN(len(a.project.assets))
			}
			if r.IntN(4) == 0 {
				a.runKey = fmt.Sprintf("key%d", r.IntN(2))
			}
			if r.IntN(3) == 0 {
				a.slots = l.w.cfg.manySlots(int32(2 + r.IntN(6))) //nolint:gosec // small
			}
			if r.IntN(8) == 0 {
				a.seconds = int32(30 + r.IntN(300)) //nolint:gosec // small
			}
		case n < 7:
			a.verb, a.force = askCancel, r.IntN(2) == 0
		case n < 8:
			a.verb = askRetry
		case n < 9:
			a.verb = askGhost
		default:
			a.verb, a.slots, a.pool = askLimit, int32(3+r.IntN(12)), pools[2+r.IntN(3)] //nolint:gosec // small
		}
		l.scripts[client] = append(l.scripts[client], a)
	}
	l.drawAlone()
	l.drawDeployments(w.cfg.horizon() / 4)
	l.drawDecisions(w.cfg.horizon() / 6)
	l.drawKeys(w.cfg.horizon() / 8)
	l.drawMarks(w.cfg.horizon() / 6)
	l.drawPins(w.cfg.horizon() / 6)
	l.drawForgetting(w.cfg.horizon() / 6)
	l.drawAhead(w.cfg.horizon() / time.Duration(w.cfg.Ahead+1))
	l.drawCommands()
	l.drawBackfills()
	l.drawLargeRuns()
	l.drawMergedReads(w.cfg.horizon() / 10)
	return l
}

// drawAlone removes the upstreams from some requests: their runs read outputs of earlier runs.
func (l *workload) drawAlone() {
	r := random(l.w.cfg.Seed, "alone", 0)
	for _, client := range slices.Sorted(maps.Keys(l.scripts)) {
		script := l.scripts[client]
		for i := range script {
			if script[i].verb == askRun && r.IntN(1000) < l.w.cfg.Alone {
				script[i].alone, script[i].only = true, r.IntN(len(script[i].project.assets))
			}
		}
	}
}

// drawAhead inserts requests that write entries whose names, ids or timestamps are far ahead.
func (l *workload) drawAhead(span time.Duration) {
	r := random(l.w.cfg.Seed, "ahead", 1)
	for range l.w.cfg.Ahead {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askAhead, project: l.projects[r.IntN(len(l.projects))]}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// pauses returns the longest total time for which any client pauses before its requests.
func (l *workload) pauses() (longest time.Duration) {
	for _, script := range l.scripts {
		total := time.Duration(0)
		for _, a := range script {
			total += a.after
		}
		longest = max(longest, total)
	}
	return longest
}

// drawProject draws a DAG: a chain, a fan, diamonds, layers, random edges, or no edges.
func (l *workload) drawProject(r *rand.Rand, d ids.Domain, name string) *project {
	if l.w.cfg.Large > 0 {
		return l.drawLargeProject(r, d, name)
	}
	p := &project{domain: d}
	n := 1 + r.IntN(l.w.cfg.Tasks)
	shape := r.IntN(6)
	layer := 1 + r.IntN(8)
	for i := range n {
		key := ids.AssetKey{Namespace: name, Name: fmt.Sprintf("t%03d", i)}
		a := plan.Asset{Key: key, Work: plan.Work{Command: []string{"work"}}, Pool: pools[r.IntN(len(pools))], WorkerQueue: "default"}
		p.drawDeps(r, &a, i, n, shape, layer)
		l.drawPolicies(r, &a)
		p.assets = append(p.assets, a)
	}
	return p
}

// drawDeps draws the upstreams of the i-th of n assets.
func (p *project) drawDeps(r *rand.Rand, a *plan.Asset, i, n, shape, layer int) {
	dep := func(j int) {
		if j >= 0 && j < i {
			a.Deps = append(a.Deps, p.assets[j].Key)
		}
	}
	switch shape {
	case 0: // a chain
		dep(i - 1)
	case 1: // a fan-out and a fan-in
		if i == n-1 {
			for j := range i {
				dep(j)
			}
		} else if i > 0 {
			dep(0)
		}
	case 2: // diamonds
		switch i % 4 {
		case 0:
			dep(i - 1)
		case 1:
			dep(i - 1)
		case 2:
			dep(i - 2)
		case 3:
			dep(i - 2)
			dep(i - 1)
		}
	case 3: // layers
		if l := i / layer; l > 0 {
			for j := (l - 1) * layer; j < l*layer; j++ {
				if r.IntN(2) == 0 {
					dep(j)
				}
			}
		}
	case 4: // random edges
		for j := range i {
			if r.IntN(i+1) < 2 {
				dep(j)
			}
		}
	case 5: // no edges
	}
}

// drawPolicies draws the priority, retries, timeouts, checks and trigger rule of an asset, and whether its tasks have
// outputs.
func (l *workload) drawPolicies(r *rand.Rand, a *plan.Asset) {
	key := a.Key
	a.Priority = int32(r.IntN(3)) //nolint:gosec // small
	a.Retries = plan.Retries{
		MaxAttempts: int32(1 + r.IntN(4)), InitialDelayMS: int64(100 + r.IntN(20_000)), MaxDelayMS: 60_000, //nolint:gosec // small
		MultiplierPermille: 2000, JitterPermille: int32(r.IntN(500)), //nolint:gosec // small
		UserErrors: l.retriesUserErrors(key.String()),
	}
	a.HeartbeatTimeoutSec = l.w.cfg.beatTimeout(int32(20 + r.IntN(100))) //nolint:gosec // small
	if r.IntN(3) == 0 {
		a.TimeoutSec = int32(20 + r.IntN(300)) //nolint:gosec // small
	}
	if l.behave(key.String()).hangs {
		a.TimeoutSec = int32(20 + r.IntN(40)) //nolint:gosec // small
	}
	if l.bare(key.String()) {
		a.Work.Output = plan.OutputNone
	}
	l.addChecks(a)
	switch r.IntN(12) {
	case 0:
		a.TriggerRule = "all_done"
	case 1:
		a.TriggerRule = "none_failed"
	}
}

// bare reports whether an asset has no output.
func (l *workload) bare(asset string) bool {
	return random(l.w.cfg.Seed, "bare "+asset, 0).IntN(1000) < l.w.cfg.Bare && !l.isChain(asset)
}

// retriesUserErrors reports whether an asset's policy retries errors of the task's own code.
func (l *workload) retriesUserErrors(asset string) bool {
	return random(l.w.cfg.Seed, "user errors "+asset, 0).IntN(4) > 0
}

// policyOf returns the retry policy of an asset.
func (l *workload) policyOf(asset string) plan.Retries {
	if l.policies == nil { // the cache stays valid: no asset is added after the first task has ended
		l.policies = map[string]plan.Retries{}
		for _, p := range l.projects {
			for i := range p.assets {
				l.policies[p.assets[i].Key.String()] = p.assets[i].Retries
			}
		}
	}
	return l.policies[asset]
}

// behave returns how an asset's tasks behave. They behave the same in every run.
func (l *workload) behave(asset string) behaviour {
	r := rand.New(rand.NewPCG(l.w.cfg.Seed, hashOf("behave "+asset))) //nolint:gosec // reproducible, not secret
	b := behaviour{takes: time.Duration(1+r.IntN(1500)) * time.Millisecond}
	switch r.IntN(12) {
	case 0:
		b.failures = int32(1 + r.IntN(5)) //nolint:gosec // small
	case 1:
		b.takes = time.Duration(5+r.IntN(40)) * time.Second
	case 2:
		b.hangs = r.IntN(3) == 0
	}
	if r := random(l.w.cfg.Seed, "lingers "+asset, 0); l.w.cfg.Collectors > 0 && r.IntN(l.w.cfg.oneLingers()) == 0 {
		b.takes = time.Duration(2+r.IntN(15)) * time.Minute // long enough for other runs to supersede the inputs of the task
	}
	return b
}

// failed returns the error of a task. Half of the messages are long, and Servo truncates most of these. The long
// messages contain white space and characters of several bytes, such as the box-drawing characters that some programs
// print.
func (l *workload) failed(e *worker.Execution) error {
	r := random(l.w.cfg.Seed, "error "+e.RunID+e.TaskKey, int(e.Attempt))
	if r.IntN(2) == 0 {
		return errors.New("it went wrong")
	}
	return errors.New("it went" + strings.Repeat(" ", r.IntN(3000)) + "wrong" + strings.Repeat("│", r.IntN(3000)))
}

// execute does the work of a task.
func (l *workload) execute(ctx context.Context, p *process, e worker.Execution) error {
	b := l.behaveTask(e.TaskKey)
	takes := b.takes + l.slow(e.RunID, e.TaskKey)
	if b.hangs && e.Attempt == 1 {
		takes = 30 * time.Minute
	}
	if r := random(l.w.cfg.Seed, "overtaken "+e.RunID+e.TaskKey, 0); r.IntN(1000) < l.w.cfg.Overtaken {
		takes = time.Duration(40+r.IntN(60)) * time.Minute
	}
	if err := p.machine.w.auditInputs(p, e); err != nil {
		return err
	}
	if err := p.machine.w.readInputs(p, e); err != nil {
		return err
	}
	if err := p.machine.w.readRows(p, e); err != nil {
		return err
	}
	end := l.busy.begin(fmt.Sprintf("%s %s %d", e.RunID, e.TaskKey, e.Attempt), l.w.now)
	err := (machineClock{p}).Sleep(ctx, takes)
	end()
	if err != nil {
		return err
	}
	if e.Attempt <= b.failures {
		return l.failed(&e)
	}
	if l.bare(assetOf(e.TaskKey)) {
		return nil
	}
	output, err := e.Output()
	if err != nil {
		return err
	}
	content := fmt.Sprintf("%s %s attempt %d from %v", e.RunID, e.TaskKey, e.Attempt, e.Inputs)
	if len(e.Partitions) > 0 {
		return p.machine.w.writeBatch(output, &e, content)
	}
	if l.w.cfg.Merging > 0 && l.isChain(assetOf(e.TaskKey)) {
		return errors.Join(l.w.writeRows(output, content), write(output, content))
	}
	if err := writeParquet(output, e.RunID, e.TaskKey); err != nil {
		return err
	}
	return write(output, content)
}

// done reports whether all clients have made all their requests.
func (l *workload) done() bool {
	for client, script := range l.scripts {
		if p := l.asking[client]; l.next[client] < len(script) || p != nil && !p.isDead() {
			return false
		}
	}
	return true
}

// clientEngine is the engine of a client of a domain. With the appender, the client appends events that no engine
// would append.
type clientEngine struct {
	*engine.Engine

	domain   ids.Domain
	appender *ledger.Appender
}

// client is a program that makes requests.
type client struct {
	p       *process
	rng     *rand.Rand
	engines map[ids.Domain]*clientEngine
	// closed holds runs that were closed, including runs that the state no longer keeps.
	closed map[ids.Domain][]*state.Run
}

// handle opens a domain on this process's store and clock.
func (p *process) handle(d ids.Domain) *domain.Handle {
	return domain.Open(domain.Handle{
		Domain: d, Store: store{p}, Codec: p.machine.w.codec, IDs: ids.NewSource(p.now, p.entropy), Clock: machineClock{p},
	})
}

func runClient(ctx context.Context, p *process) {
	w := p.machine.w
	c := &client{
		p: p, rng: random(w.cfg.Seed, p.id, 0), engines: map[ids.Domain]*clientEngine{},
		closed: map[ids.Domain][]*state.Run{},
	}
	for _, d := range w.domains {
		h := p.handle(d)
		appender := h.Appender(ledger.Config{})
		c.engines[d] = &clientEngine{domain: d, appender: appender, Engine: engine.New(engine.Config{
			Handle:    h,
			Snapshots: h.Reader(),
			Compactor: &remote.Client{Domain: d, URL: "http://compactor", HTTP: network{p}.Client()},
			Appender:  appender,
		}).As(engine.User(p.id))}
	}
	for {
		a, ok := c.take(ctx)
		if !ok {
			<-ctx.Done()
			return
		}
		if (machineClock{p}).Sleep(ctx, a.after) != nil {
			return
		}
		for try := 1; c.ask(ctx, a) != nil && try < 3; try++ {
			if (machineClock{p}).Sleep(ctx, time.Duration(1+c.rng.IntN(20))*time.Second) != nil {
				return
			}
		}
	}
}

// take returns the client's next request. If the client dies while it makes the request, the request is never repeated.
func (c *client) take(ctx context.Context) (a ask, ok bool) {
	l, name := c.p.machine.w.load, c.p.machine.name
	k := &call{proc: c.p, label: "take"}
	k.begin = func() {
		delete(l.asking, name)
		if n := l.next[name]; n < len(l.scripts[name]) {
			a, ok = l.scripts[name][n], true
			l.next[name]++
			l.asking[name] = c.p
		}
		close(k.done)
	}
	if c.p.machine.w.park(ctx, k) != nil {
		return a, false
	}
	return a, ok
}

// clientTimeout bounds how long a client waits for an answer.
const clientTimeout = 3 * time.Minute

func (c *client) ask(ctx context.Context, a ask) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	e := c.engines[a.project.domain]
	switch a.verb {
	case askRun:
		return c.run(ctx, e, a)
	case askDeploy:
		return c.deploy(ctx, e)
	case askResolve:
		return c.resolve(ctx, e.Engine, a.force)
	case askKeys:
		return c.changeKeys(ctx, e.Engine)
	case askMark, askForget:
		return c.hide(ctx, e, a)
	case askPin:
		return c.pin(ctx, e.Engine, a.force)
	case askSchedule:
		return c.commandSchedule(ctx, e, a)
	case askBackfill:
		return c.createBackfill(ctx, e, a)
	case askCommandBackfill:
		return c.commandBackfill(ctx, e)
	case askLimit:
		return c.limit(ctx, e.Engine, a)
	case askGhost:
		return c.appendGhosts(ctx, e)
	case askAhead:
		return c.rush(ctx, e)
	case askCancel, askRetry:
	}
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	runs := snap.State.Runs.Rows()
	if len(runs) == 0 {
		return nil
	}
	run := runs[c.rng.IntN(len(runs))]
	if a.verb == askCancel {
		if err := e.Cancel(ctx, run.RunID, "changed my mind", a.force); !errors.Is(err, engine.ErrEnded) {
			return err
		}
		return nil
	}
	if !run.State.Terminal() {
		return nil
	}
	if run.TasksSucceeded == run.TasksTotal {
		return nil // nothing to retry
	}
	_, err = e.Retry(ctx, run.RunID)
	if errors.Is(err, engine.ErrMissingInput) {
		c.p.machine.w.fault("retry refused: an input is hidden or deleted")
		return nil
	}
	if errors.Is(err, engine.ErrLiveRetry) {
		return nil
	}
	return err
}

// run triggers a run of the current release.
func (c *client) run(ctx context.Context, e *clientEngine, a ask) error {
	current, err := e.CurrentDeployment(ctx)
	if err != nil {
		return err
	}
	r := engine.RunRequest{
		Release: current.Release,
		Plan:    plan.Request{Assets: a.project.coded(c.p.machine.w.load.version(e.domain, current.Release)), All: a.only < 0, Upstream: a.only >= 0 && !a.alone},
		RunKey:  a.runKey, Trigger: event.Trigger{Type: "manual"}, MaxParallelism: a.slots, TimeoutSec: a.seconds, CancelGraceSec: 20,
	}
	if r.Plan.Partitions = a.project.selection(a.only, int(a.after/time.Millisecond)); r.Plan.Partitions != nil {
		r.Plan.AllowIncomplete = a.after%2 == 0
	}
	if a.only >= 0 {
		r.Plan.Select = []ids.AssetKey{a.project.assets[a.only].Key}
	}
	_, err = e.Run(ctx, r)
	if errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}
