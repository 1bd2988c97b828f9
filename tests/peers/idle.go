package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/usage"
	"github.com/servo-orchestration/servo/tests/peers/work"
)

// idleness is how it is measured.
type idleness struct {
	// Runs have ended before.
	Runs int `json:"runs"`
	// Rest is between the end of the last run and the time that is measured, For: what an
	// engine still has to write or to tidy up is not what it takes for nothing.
	Rest time.Duration `json:"rest_ns"`
	For  time.Duration `json:"for_ns"`
}

func (i *idleness) flags(flags *flag.FlagSet) {
	flags.IntVar(&i.Runs, "idle-runs", 10_000, "how many runs have ended in W4, before it is measured")
	flags.DurationVar(&i.Rest, "idle-rest", 5*time.Second, "how long after the last one has ended W4 begins to look on")
	flags.DurationVar(&i.For, "idle-for", 30*time.Second, "how long W4 looks on while there is nothing to do")
}

func (i *idleness) check() error {
	if i.Runs < 1 || i.Rest < 0 || i.For <= 0 {
		return errors.New("-idle-runs and -idle-for must be positive, and -idle-rest not negative")
	}
	return nil
}

// idle is what was taken while there was nothing to do, in the form of servo bench.
type idle struct {
	// Runs are the finished runs in the store.
	Runs    int     `json:"runs"`
	Seconds float64 `json:"seconds"`
	// PSS is the share of memory, in bytes, in the end.
	PSS int64 `json:"pss_bytes"`
	// CPU is in percent of a core.
	CPU float64 `json:"cpu_percent"`
	// Programs are the parts of each program that ran.
	Programs map[string]usage.Part `json:"programs"`
}

// lookOn measures what a peer's server and program take, which are all that this program
// has started, and all that these have.
func (b *bench) lookOn(ctx context.Context) (*idle, error) {
	if err := sleep(ctx, b.idle.Rest); err != nil {
		return nil, err
	}
	proc := os.DirFS("/proc")
	before, err := usage.Below(proc, os.Getpid())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := sleep(ctx, b.idle.For); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := usage.Below(proc, os.Getpid())
	if err != nil {
		return nil, err
	}
	if len(after.Children) == 0 || !slices.Equal(before.Children, after.Children) {
		return nil, errors.New("its server or its program has ended while there was nothing to do")
	}
	return &idle{
		Runs: b.idle.Runs, Seconds: took.Seconds(), PSS: after.PSS,
		CPU:      100 * (after.CPU - before.CPU).Seconds() / took.Seconds(), //nolint:mnd // percent
		Programs: after.Programs,
	}, nil
}

// ofServoIdle has servo bench measure, which starts one process on a store that has the
// runs. It executes tasks, too.
func (b *bench) ofServoIdle(ctx context.Context, dir string) (done sample, err error) {
	out, err := output(ctx, b.servo, "bench", work.Idle, "--samples", "1", "--idle-runs", strconv.Itoa(b.idle.Runs),
		"--idle-for", b.idle.For.String(), "--dir", dir, "-o", "json")
	if err != nil {
		return done, err
	}
	var results []struct {
		Idle *idle `json:"idle"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		return done, fmt.Errorf("read what servo bench says: %w", err)
	}
	if len(results) != 1 || results[0].Idle == nil || results[0].Idle.PSS == 0 {
		return done, errors.New("servo bench does not say what it took")
	}
	done.idle = results[0].Idle
	done.idle.Programs = map[string]usage.Part{servoName: {Processes: 1, PSS: done.idle.PSS}}
	return done, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// text is the figures in a few words.
func (i *idle) text() string {
	return fmt.Sprintf("%s MiB, %s %% of a core", mebibytes(i.PSS), number(i.CPU))
}

// parts are the programs with how many processes and how much memory each has.
func (i *idle) parts() []string {
	var parts []string
	for _, name := range sortedKeys(i.Programs) {
		p := i.Programs[name]
		text := name
		if p.Processes > 1 {
			text = fmt.Sprintf("%d × %s", p.Processes, name)
		}
		parts = append(parts, text+" "+mebibytes(p.PSS))
	}
	return parts
}

func mebibytes(n int64) string { return number(float64(n) / (1 << 20)) }
