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

	"github.com/servo-orchestration/servo/pkg/blob/memblob"
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

	machines     []*machine
	visitors     []*machine // run once
	alive        sync.WaitGroup
	requests     int
	mutated      map[string]time.Time // when names were last written
	firstAsked   map[string]asked     // to create a name
	sealed       map[string]time.Time // until when objects cannot be read
	delayedUntil time.Time            // until when timers wait: an object cannot be read, or the queue is stalled
	skipped      map[string]bool      // entries that an operator has skipped
	made         map[string][]byte    // files of outputs as they were written, where outputs are damaged
	damaged      map[string]bool      // files of outputs that were damaged; some were restored
	failed       sync.Map             // the checksums of ledger entries that a create has failed for
	rushed       sync.Map             // ledger entries that were written far ahead on purpose
	counts       map[string]int
	scratch      string

	absentUntil time.Time // nothing runs before
	kept        bool      // the cloud keeps until then what it is to deliver, and else gives up as ever

	over  bool // all processes are being ended
	swept bool // all domains were, after the world had come to rest
	trace hash.Hash
	tail  []string
}

func newWorld(b Bubble, cfg World) *world {
	w := &world{
		driver: newDriver(b.Wait), bubble: b, cfg: cfg, mutated: map[string]time.Time{}, firstAsked: map[string]asked{}, counts: map[string]int{},
		sealed: map[string]time.Time{}, skipped: map[string]bool{}, made: map[string][]byte{}, damaged: map[string]bool{}, trace: sha256.New(), codec: snapshot.NewMemoryCodec(),
		scratch: filepath.Join(b.Scratch, fmt.Sprintf("world-%d-%p", cfg.Seed, &cfg)),
	}
	if cfg.Parquet {
		w.codec = snapshot.NewCodec()
	}
	var err error
	if w.keys, err = service.ReadKeys(b.Keys); err != nil {
		panic(err) // the caller's, and it is made for this
	}
	for i := range cfg.Domains {
		w.domains = append(w.domains, ids.Domain{Tenant: fmt.Sprintf("tenant%d", i), Workspace: "main"})
	}
	w.asked = func(c *call) { w.hash(c.proc.id, c.label) }
	w.blobs = memblob.New(memblob.Options{Now: w.now})
	w.queue = &cloudQueue{w: w, used: map[string]bool{}, waiting: map[string]*queued{}}
	w.faults = &dice{Faults: cfg.Faults, w: w, rng: random(cfg.Seed, "faults", 0)}
	w.oracle = newOracle(w)
	w.load = newWorkload(w)
	w.populate()
	return w
}

// populate sets up the machines.
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
}

// patience is how long a world may take to come to rest once faults have
// stopped, and calm how long it must have been at rest.
const (
	patience = 3 * time.Hour
	calm     = 4 * time.Minute
)

// drive runs the world until it has come to rest.
func (w *world) drive() {
	w.upgrades()
	for _, m := range w.machines {
		m.start()
	}
	w.every(time.Minute, w.faults.minute)
	w.every(time.Minute, w.oracle.minute)
	w.restarts()
	w.scheduleWipes()
	w.scheduleOnline()
	w.scheduleAbsence()
	deadline := w.start.Add(w.horizon() + patience)
	var restSince time.Time
	for w.step(deadline) && len(w.oracle.violations) == 0 {
		if w.steps%64 != 0 {
			continue
		}
		switch {
		case w.elapsed() < w.horizon() || !w.load.done() || !w.oracle.atRest():
			restSince = time.Time{}
		case restSince.IsZero():
			restSince = w.now()
		case w.now().Sub(restSince) < calm:
		case !w.swept:
			// All that is due has ended. What nobody was told of, in domains that were idle,
			// only a full sweep finds.
			restSince = w.now().Add(patience)
			w.sweepFully(func() { w.swept, restSince = true, time.Time{} })
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

// sweepFully has all domains swept, as a schedule does that is insisted on.
func (w *world) sweepFully(then func()) {
	w.push("http://sweeper/v1/sweep?full=true", http.Header{}, nil, func(a answer) {
		if a.err == nil && a.status == http.StatusOK {
			then()
			return
		}
		w.after(10*time.Second, nil, func() { w.sweepFully(then) })
	})
}

// every has something happen again and again.
func (w *world) every(d time.Duration, do func()) {
	w.after(d, nil, func() {
		do()
		w.every(d, do)
	})
}

// keeping is for how long the cloud delivers nothing, because there is nobody.
func (w *world) keeping() time.Duration {
	wait := w.absentUntil.Sub(w.now())
	if !w.kept || wait <= 0 {
		return 0
	}
	return wait + w.faults.between(0, time.Minute)
}

// restarts restarts again and again.
func (w *world) restarts() {
	w.after(max(time.Second, w.absentUntil.Sub(w.now())), nil, func() {
		w.restart()
		w.restarts()
	})
}

// restart starts what is down, sooner or later.
func (w *world) restart() {
	for _, m := range w.machines {
		if m.alive == nil && (w.faults.over() || w.faults.rng.IntN(10) == 0) && !w.down(m) {
			m.start()
		}
	}
}

func (w *world) down(m *machine) bool {
	return w.now().Before(w.absentUntil) || w.counts["under repair"] > 0 && m.kind != "worker"
}

// horizon is when faults stop.
func (w *world) horizon() time.Duration { return w.cfg.horizon() + w.cfg.Faults.absence() }

// scheduleAbsence has nothing run for a while: what the queue and notifications have, and
// what listings would find, waits, or is given up meanwhile.
func (w *world) scheduleAbsence() {
	long := w.cfg.Faults.absence()
	if long == 0 {
		return
	}
	r := random(w.cfg.Seed, "absence", 1)
	at := time.Duration(r.Int64N(int64(w.cfg.horizon())))
	w.kept = r.IntN(2) == 0
	w.after(at, nil, func() {
		w.fault("absence")
		w.note("nothing runs for %s", long)
		w.absentUntil = w.now().Add(long)
		for _, m := range w.machines {
			if m.alive != nil {
				m.alive.kill("absence")
			}
		}
	})
}

// freeze stops a process for a while: it does nothing, and then goes on.
func (w *world) freeze(m *machine, d time.Duration) {
	m.frozenUntil = w.now().Add(d)
	w.note("freeze %s for %s", m.name, d)
}

// ended is told by a process that has come to its end.
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

// stop ends all processes.
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
	_ = os.RemoveAll(w.scratch) // what stays is in a temporary folder
}

func (w *world) elapsed() time.Duration { return w.now().Sub(w.start) }

// maxTail is how much of the trace is kept.
const maxTail = 4000

// note writes a line of the trace. It belongs to the driver.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%12.6f ", w.elapsed().Seconds()) + fmt.Sprintf(format, args...)
	w.hash(line)
	if len(w.tail) >= 2*maxTail {
		w.tail = append(w.tail[:0], w.tail[maxTail:]...)
	}
	w.tail = append(w.tail, line)
}

// hash adds to the trace what is not worth a line.
func (w *world) hash(parts ...string) {
	for _, part := range parts {
		_, _ = w.trace.Write([]byte(part)) // hashes take everything
		_, _ = w.trace.Write([]byte{0})
	}
}

func (w *world) fault(name string) { w.counts[name]++ }

func (w *world) result() *Result {
	r := &Result{
		Steps: w.steps, Virtual: w.elapsed(), Faults: w.counts, Hash: hex.EncodeToString(w.trace.Sum(nil)),
		Violations: w.oracle.violations, Tail: w.tail,
	}
	w.oracle.count(r)
	return r
}

// wrote is told of each write to the store.
func (w *world) wrote(verb, key string) {
	if verb != "create" && verb != "replace" && verb != "put" {
		return
	}
	if sealable(key) {
		w.seal(key)
	}
	switch {
	case strings.HasPrefix(key, "ledger/"):
		w.oracle.appended(key)
		w.notify("http://compactor/v1/notifications", key, w.faults.notice())
	case strings.HasPrefix(key, "archive/"):
		w.oracle.archived(key)
	case strings.HasPrefix(key, "assets/"):
		w.outputWritten(key)
	case strings.HasPrefix(key, "manifests/"):
		w.oracle.published(key)
		w.notify("http://dispatcher/v1/notifications", key, w.faults.notice())
	}
}

// maxNotices is how often a notification is delivered before it is dropped.
const maxNotices = 20

// notify delivers a notification of an object, as Pub/Sub does.
func (w *world) notify(to, key string, f deliveryFault) {
	body, err := json.Marshal(map[string]any{"message": map[string]any{"attributes": map[string]string{"objectId": key}}})
	if err != nil {
		panic(fmt.Sprintf("sim: encode notification: %v", err))
	}
	var deliver func(try int)
	deliver = func(try int) {
		if wait := w.keeping(); wait > 0 {
			w.after(wait, nil, func() { deliver(try) })
			return
		}
		w.push(to, http.Header{}, body, func(a answer) {
			if (a.err != nil || a.status >= 300) && try < maxNotices {
				w.after(backoff(try, time.Second, time.Minute), nil, func() { deliver(try + 1) })
			}
		})
	}
	if !f.lost {
		w.after(f.delay, nil, func() { deliver(0) })
	}
	if f.again > 0 {
		w.after(f.delay+f.again, nil, func() { deliver(maxNotices) })
	}
}
