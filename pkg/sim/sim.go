// Package sim runs whole Servo systems, on virtual time and under faults, from a
// seed.
//
// # What runs
//
// The services are the real ones, as cmd/servo-compactor, -dispatcher and
// -sweeper run them, and so are the worker, the engine that people's requests go
// through, the fold, the manifests, the ledger. What surrounds them is simulated:
// the object store, the task queue, object notifications, the network, the
// machines' clocks, and the processes themselves, which are killed, frozen and
// started again.
//
// # Determinism
//
// All of it runs in a bubble of testing/synctest, whose clock moves only when
// every goroutine waits. Whatever a process asks of the world (a request to the
// store, the queue or another process, a sleep) parks its goroutine; when all
// are parked, the driver takes the requests in an order that does not depend on
// the scheduler, draws from the seed how long each takes and what goes wrong,
// and lets exactly one thing happen at a time. The same world gives the same
// trace, whose hash is part of the [Result].
//
// # Verdict
//
// An oracle follows every revision that is published and checks the invariants
// of docs/invariants.md on it; at the end, when faults have stopped, every run
// must have ended, in a state that a simple model allows. See oracle.go.
package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Result is what came of a world.
type Result struct {
	// Completions are the tasks that ended: succeeded, failed, skipped or cancelled.
	Completions int
	Runs        int
	Revisions   int64
	Steps       int           // of the driver
	Virtual     time.Duration // that passed in the world
	// Faults counts what went wrong, by its name.
	Faults map[string]int
	// Hash is of the trace.
	Hash string
	// Violations are what the oracle found. None: all is well.
	Violations []string
	// Tail is the end of the trace, a line each.
	Tail []string
}

// Err is an error with the violations, or nil.
func (r *Result) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.Violations, "\n"))
}

// Bubble is what a world needs of the testing/synctest bubble that it runs in.
type Bubble struct {
	// Wait returns when every other goroutine of the bubble waits.
	Wait func()
	// Scratch is a folder for the workers' files.
	Scratch string
	// Keys is a file of signing keys, the same for every world.
	Keys string
}

// Run runs a world to its end. It must be called in a bubble, and all goroutines
// that it started have ended when it returns.
func Run(b Bubble, cfg World) *Result {
	w := newWorld(b, cfg)
	defer w.end()
	w.drive()
	return w.result()
}

// random gives a source for a part of a world. Parts do not share one, so that
// leaving something out of one leaves the others as they were.
func random(seed uint64, part string, n int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, hashOf(fmt.Sprintf("%s/%d", part, n)))) //nolint:gosec // reproducible, not secret
}

// hashOf is FNV-1a.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
