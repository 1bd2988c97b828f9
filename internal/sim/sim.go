// Package sim runs whole Servo systems from a seed, on virtual time and under faults.
//
// # What runs
//
// The simulator runs the real code of the services (cmd/servo-compactor, -dispatcher and -sweeper), of the worker, and
// of the engine that handles users' requests. All of them use the real fold, manifests and ledger. Their environment is
// simulated: the object store, the task queue, object notifications, the network, the machines' clocks, and the
// processes themselves, which are killed, frozen and restarted.
//
// # Determinism
//
// Everything runs in a bubble of testing/synctest, whose clock advances only when every goroutine waits. A process
// calls the world when it sends a request to the store, the queue or another process, and when it sleeps. Each call
// parks its goroutine. When all goroutines are parked, the driver takes the calls in an order that does not depend on
// the scheduler. From the seed, it draws how long each call takes and which faults occur. It executes exactly one
// event at a time. The same world produces the same trace, whose hash is part of the [Result].
//
// # Verdict
//
// An oracle follows every published revision and checks the invariants of docs/invariants.md. At
// the end, when faults have stopped, every run must have ended, in a state that a simple model
// allows. See oracle.go.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// Result is the result of a world.
type Result struct {
	// Completions is the number of tasks that have succeeded, failed, or been skipped or cancelled.
	Completions int
	Runs        int
	Revisions   int64
	// GaveUp reports that the world took too much time and was stopped, without the checks at its end.
	GaveUp bool
	// Deployed reports whether releases with assets were deployed. Automated reports whether schedules ticked or
	// backfills were created.
	Deployed, Automated bool
	Steps               int           // events that the driver has executed
	Calls               int           // calls of processes: to the store, to the queue, to each other and to their clocks
	Virtual             time.Duration // time that has passed in the world
	// Faults counts faults and notable events of the system, by name.
	Faults map[string]int
	// Hash is the hash of the trace.
	Hash string
	// Violations are the violations that the oracle found.
	Violations []string
	// Tail contains the last lines of the trace.
	Tail []string
}

// Err returns the violations as an error, or nil.
func (r *Result) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.Violations, "\n"))
}

// Bubble describes the testing/synctest bubble in which a world runs.
type Bubble struct {
	// Wait returns when every other goroutine of the bubble is blocked.
	Wait func()
	// Scratch is a folder for the workers' files.
	Scratch string
	// Keys is a file of signing keys, the same for every world.
	Keys string
	// GiveUp, if not nil, reports whether the world takes too much time and must be stopped.
	GiveUp func() bool
}

// Run runs a world to its end. It must be called in a bubble. Before it returns, it waits for all goroutines that it
// started.
func Run(b Bubble, cfg World) *Result {
	virtual := clock.System{}
	_ = virtual.Sleep(context.Background(), max(0, cfg.begin().Sub(virtual.Now()))) // fails only if its context ends
	w := newWorld(b, cfg)
	defer w.end()
	w.drive()
	return w.result()
}

// random returns a source of randomness for a part of a world. Each part has its own source, so that removing a part
// does not change the others.
func random(seed uint64, part string, n int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, hashOf(fmt.Sprintf("%s/%d", part, n)))) //nolint:gosec // reproducible, not secret
}

// hashOf returns the FNV-1a hash of a string.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
