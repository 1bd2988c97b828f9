package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// world is a simulated system.
type world struct {
	*driver
	bubble  Bubble
	cfg     World
	domains []ids.Domain
	keys    contract.Keyring
	codec   *snapshot.Codec
	blobs   *memblob.Store
	queue   *cloudQueue
	faults  *dice
	oracle  *oracle
	load    *workload

	listings     *listings
	machines     []*machine
	visitors     []*machine // machines that run a single process and do not restart it
	alive        sync.WaitGroup
	requests     int
	calls        int                  // number of calls of all processes so far
	mutated      map[string]time.Time // when each key was last written
	firstCreate  map[string]origin    // the process that first tried to create each key
	sealed       map[string]time.Time // until when each object cannot be read
	delayedUntil time.Time            // an unreadable object or a stalled queue delays timers until this time
	skipped      map[string]bool      // entries that an operator has skipped
	made         map[string][]byte    // files of outputs as they were written, in worlds that damage outputs
	damaged      map[string]bool      // files of outputs that were damaged; some were restored
	failed       sync.Map             // checksums of ledger entries whose create has failed
	rushed       sync.Map             // ledger entries that [client.rush] wrote
	counts       map[string]int
	scratch      string

	outageUntil time.Time // no process runs until this time
	cloudPauses bool      // the cloud pauses deliveries in an outage; false: it retries them, and drops some

	// appendedAt is when a ledger entry was last written. Timers may fire even in a world at rest, so the world ends
	// only when the entries of timers have had time to be folded.
	appendedAt time.Time

	idle   idle
	over   bool // set when all processes are being stopped
	gaveUp bool // [Bubble.GiveUp] stopped the world
	swept  bool // set when all domains have been swept after the world came to rest and the last entry was written
	trace  hash.Hash
	tail   []string
}

func newWorld(b Bubble, cfg World) *world {
	w := &world{
		driver: newDriver(b.Wait), bubble: b, cfg: cfg, mutated: map[string]time.Time{}, firstCreate: map[string]origin{}, counts: map[string]int{},
		sealed: map[string]time.Time{}, skipped: map[string]bool{}, made: map[string][]byte{}, damaged: map[string]bool{}, trace: sha256.New(), codec: snapshot.NewMemoryCodec(),
		scratch: filepath.Join(b.Scratch, fmt.Sprintf("world-%d-%p", cfg.Seed, &cfg)), listings: newListings(),
	}
	if cfg.Parquet {
		w.codec = snapshot.NewCodec()
	}
	var err error
	if w.keys, err = service.ReadKeys(b.Keys); err != nil {
		panic(err) // cannot happen: the caller created the file
	}
	for i := range cfg.Domains {
		w.domains = append(w.domains, ids.Domain{Tenant: fmt.Sprintf("tenant%d", i), Workspace: "main"})
	}
	w.onCall = func(c *call) {
		w.hash(c.proc.id, c.label)
		w.idle.count(w, c)
		if w.calls++; w.calls == cfg.KillAt {
			c.proc.kill("before its call " + c.label)
		}
	}
	w.blobs = memblob.New(memblob.Options{Now: w.now})
	w.queue = &cloudQueue{w: w, used: map[string]bool{}, waiting: map[string]*queued{}}
	w.faults = &dice{Faults: cfg.Faults, w: w, rng: random(cfg.Seed, "faults", 0)}
	w.oracle = newOracle(w)
	w.load = newWorkload(w)
	w.populate()
	return w
}

// populate creates the machines.
func (w *world) populate() {
	add := func(kind string, n int, main func(context.Context, *process)) {
		for i := range n {
			m := &machine{w: w, kind: kind, name: fmt.Sprintf("%s%d", kind, i), main: main}
			if w.cfg.Faults.MaxSkew > 0 {
				m.skew = w.faults.skew()
			}
			w.machines = append(w.machines, m)
		}
	}
	add("compactor", w.cfg.Compactors, runCompactor)
	add("dispatcher", w.cfg.Dispatchers, runDispatcher)
	add("sweeper", w.cfg.sweepers(), runSweeper)
	add("worker", w.cfg.Workers, runWorker)
	add("reader", w.cfg.Readers, runReader)
	add("client", w.cfg.Clients, runClient)
	add("gc", w.cfg.Collectors, runCollector)
	add("merger", w.cfg.Mergers, runMerger)
}

// restTimeout is the longest time that a world may take to come to rest after faults have stopped and clients have
// made their last requests. Time in which tasks execute does not count, because a chain of long tasks takes hours.
// restFor is how long the world must be at rest.
const (
	restTimeout = 3 * time.Hour
	restFor     = 4 * time.Minute
	// foldedWithin is the minimum age of the last written entry at the end of a world.
	foldedWithin = 2 * time.Minute
)

// drive runs the world until it has come to rest.
func (w *world) drive() {
	w.scheduleUpgrades()
	for _, m := range w.machines {
		m.start()
	}
	w.callEvery(time.Minute, w.faults.minute)
	w.callEvery(time.Minute, w.oracle.checkBounds)
	w.scheduleRestarts()
	w.scheduleWipes()
	w.scheduleOnline()
	w.scheduleOutage()
	var restSince time.Time
	for w.step(w.deadline()) && len(w.oracle.violations) == 0 {
		if w.steps%64 != 0 {
			continue
		}
		if w.steps%(1<<12) == 0 && w.bubble.GiveUp != nil && w.bubble.GiveUp() {
			w.gaveUp = true
			w.stop()
			return
		}
		switch {
		case w.elapsed() < w.horizon() || !w.load.done() || !w.oracle.atRest():
			restSince = time.Time{}
		case restSince.IsZero():
			restSince = w.now()
		case w.now().Sub(restSince) < restFor || w.now().Sub(w.appendedAt) < foldedWithin:
		case !w.swept:
			// All due work has ended. But idle domains may contain unannounced entries, which only a full sweep finds.
			restSince = w.now().Add(restTimeout)
			w.sweepFully(func() { w.swept, restSince = true, time.Time{} })
		case !w.idle.ended(w):
		default:
			w.stop()
			w.oracle.final()
			return
		}
	}
	if len(w.oracle.violations) == 0 {
		w.oracle.stuck()
	}
	w.stop()
}

// deadline returns when the world must have come to rest.
func (w *world) deadline() time.Time {
	at := w.start.Add(max(w.cfg.horizon(), w.load.pauses()) + w.cfg.Faults.outage() + restTimeout + w.load.busy.timeUntil(w.now()))
	if !w.idle.begun.IsZero() {
		at = at.Add(restTimeout)
	}
	return at
}

// sweepFully requests a sweep of all domains. It repeats the request until the sweep succeeds, and then calls the
// function "then".
func (w *world) sweepFully(then func()) {
	w.push("http://sweeper/v1/sweep?full=true", http.Header{}, nil, func(a answer) {
		if a.err == nil && a.status == http.StatusOK {
			then()
			return
		}
		w.callAfter(10*time.Second, nil, func() { w.sweepFully(then) })
	})
}

// callEvery calls the function "do" at regular intervals.
func (w *world) callEvery(d time.Duration, do func()) {
	w.callAfter(d, nil, func() {
		do()
		w.callEvery(d, do)
	})
}

// pausedFor returns how much longer the cloud will deliver nothing, because of an outage.
func (w *world) pausedFor() time.Duration {
	wait := w.outageUntil.Sub(w.now())
	if !w.cloudPauses || wait <= 0 {
		return 0
	}
	return wait + w.faults.between(0, time.Minute)
}

// scheduleRestarts calls restart at regular intervals.
func (w *world) scheduleRestarts() {
	w.callAfter(max(time.Second, w.outageUntil.Sub(w.now())), nil, func() {
		w.restart()
		w.scheduleRestarts()
	})
}

// restart starts some of the machines that are down.
func (w *world) restart() {
	for _, m := range w.machines {
		if m.alive == nil && (w.faults.over() || w.faults.rng.IntN(10) == 0) && !w.down(m) {
			m.start()
		}
	}
}

func (w *world) down(m *machine) bool {
	return w.idle.mustStayDown(m) || w.now().Before(w.outageUntil) || w.counts["under repair"] > 0 && m.kind != "worker"
}

// horizon returns when faults stop.
func (w *world) horizon() time.Duration { return w.cfg.horizon() + w.cfg.Faults.outage() }

// scheduleOutage schedules an outage. During the outage, the cloud either pauses its deliveries, or retries them and
// drops some.
func (w *world) scheduleOutage() {
	long := w.cfg.Faults.outage()
	if long == 0 {
		return
	}
	r := random(w.cfg.Seed, "absence", 1)
	at := time.Duration(r.Int64N(int64(w.cfg.horizon())))
	w.cloudPauses = r.IntN(2) == 0
	w.callAfter(at, nil, func() {
		w.fault("outage")
		w.note("nothing runs for %s", long)
		w.outageUntil = w.now().Add(long)
		for _, m := range w.machines {
			if m.alive != nil {
				m.alive.kill("outage")
			}
		}
	})
}

// freeze stops a process for a while. Afterwards the process continues.
func (w *world) freeze(m *machine, d time.Duration) {
	m.frozenUntil = w.now().Add(d)
	w.note("freeze %s for %s", m.name, d)
}

// ended is called when a process has returned by itself.
func (w *world) ended(p *process) {
	if p.isDead() {
		return
	}
	k := &call{proc: p, label: "zzz ended"}
	k.begin = func() {
		p.kill("it ended by itself")
		close(k.done)
	}
	_ = w.park(context.Background(), k)
}

// stop kills all processes.
func (w *world) stop() {
	w.over = true
	for _, m := range slices.Concat(w.machines, w.visitors) {
		if m.alive != nil {
			m.alive.kill("the end")
		}
	}
}

// end waits for all goroutines.
func (w *world) end() {
	w.stop()
	w.alive.Wait()
	_ = os.RemoveAll(w.scratch) // ignore the error: the folder is temporary
}

func (w *world) elapsed() time.Duration { return w.now().Sub(w.start) }

// maxTail is how many of the last lines of a trace are kept.
const maxTail = 4000

// note adds a line to the trace. Only the driver may call it.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%12.6f ", w.elapsed().Seconds()) + fmt.Sprintf(format, args...)
	w.hash(line)
	if len(w.tail) >= 2*maxTail {
		w.tail = append(w.tail[:0], w.tail[maxTail:]...)
	}
	w.tail = append(w.tail, line)
}

// hash adds text to the hash of the trace, but not to the trace itself.
func (w *world) hash(parts ...string) {
	for _, part := range parts {
		_, _ = w.trace.Write([]byte(part)) // writes to a hash do not fail
		_, _ = w.trace.Write([]byte{0})
	}
}

func (w *world) fault(name string) { w.counts[name]++ }

func (w *world) result() *Result {
	r := &Result{
		Steps: w.steps, Calls: w.calls, Virtual: w.elapsed(), Faults: w.counts, Hash: hex.EncodeToString(w.trace.Sum(nil)),
		Violations: w.oracle.violations, Tail: w.tail, GaveUp: w.gaveUp,
	}
	w.oracle.count(r)
	return r
}

// wrote is called after each write to the store.
func (w *world) wrote(verb, key string) {
	if verb != "create" && verb != "replace" && verb != "put" {
		return
	}
	if sealable(key) {
		w.seal(key)
	}
	switch {
	case strings.HasPrefix(key, "ledger/"):
		w.oracle.noteEntry(key)
		w.appendedAt, w.swept = w.now(), false
		w.notify("http://compactor/v1/notifications", key, w.faults.notice())
	case strings.HasPrefix(key, "archive/"):
		w.oracle.checkArchive(key)
	case strings.HasPrefix(key, "assets/"):
		w.outputWritten(key)
	case strings.HasPrefix(key, "manifests/"):
		w.oracle.notePublished(key)
		w.notify("http://dispatcher/v1/notifications", key, w.faults.notice())
	}
}

// maxNotices is how many times a notification is delivered before it is dropped.
const maxNotices = 20

// notify delivers a notification about an object, as Pub/Sub does.
func (w *world) notify(to, key string, f deliveryFault) {
	body, err := json.Marshal(map[string]any{"message": map[string]any{"attributes": map[string]string{"objectId": key}}})
	if err != nil {
		panic(fmt.Sprintf("sim: encode notification: %v", err))
	}
	var deliver func(try int)
	deliver = func(try int) {
		if wait := w.pausedFor(); wait > 0 {
			w.callAfter(wait, nil, func() { deliver(try) })
			return
		}
		w.push(to, http.Header{}, body, func(a answer) {
			if (a.err != nil || a.status >= 300) && try < maxNotices {
				w.callAfter(backoff(try, time.Second, time.Minute), nil, func() { deliver(try + 1) })
			}
		})
	}
	if !f.lost {
		w.callAfter(f.delay, nil, func() { deliver(0) })
	}
	if f.again > 0 {
		w.callAfter(f.delay+f.again, nil, func() { deliver(maxNotices) })
	}
}
