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

// idleness configures the measurement of idle peers.
type idleness struct {
	// Runs is the number of finished runs.
	Runs int `json:"runs"`
	// Rest is the time between the end of the last run and the measurement, for background work of the engine. The
	// field For is the duration of the measurement.
	Rest time.Duration `json:"rest_ns"`
	For  time.Duration `json:"for_ns"`
}

func (i *idleness) flags(flags *flag.FlagSet) {
	flags.IntVar(&i.Runs, "idle-runs", 10_000, "number of finished runs before W4 is measured")
	flags.DurationVar(&i.Rest, "idle-rest", 5*time.Second, "time between the end of the last run and the measurement of W4")
	flags.DurationVar(&i.For, "idle-for", 30*time.Second, "length of the measurement of W4")
}

func (i *idleness) check() error {
	if i.Runs < 1 || i.Rest < 0 || i.For <= 0 {
		return errors.New("-idle-runs and -idle-for must be positive, and -idle-rest not negative")
	}
	return nil
}

// idle is the resource use of an idle peer, in the format of servo-bench.
type idle struct {
	// Runs is the number of finished runs in the store.
	Runs    int     `json:"runs"`
	Seconds float64 `json:"seconds"`
	// PSS is the proportional memory at the end, in bytes.
	PSS int64 `json:"pss_bytes"`
	// CPU is the CPU time as a percentage of one core.
	CPU float64 `json:"cpu_percent"`
	// Programs is the resource use by program.
	Programs map[string]usage.Part `json:"programs"`
}

// observeIdle measures the processes of a peer's server and program: all descendants of this process.
func (b *bench) observeIdle(ctx context.Context) (*idle, error) {
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
		return nil, errors.New("its server or its program ended while it was idle")
	}
	return &idle{
		Runs: b.idle.Runs, Seconds: took.Seconds(), PSS: after.PSS,
		CPU:      100 * (after.CPU - before.CPU).Seconds() / took.Seconds(), //nolint:mnd // percent
		Programs: after.Programs,
	}, nil
}

// sampleServoIdle measures with servo-bench, which starts one process on a store with the finished
// runs. That process also executes tasks.
func (b *bench) sampleServoIdle(ctx context.Context, dir string) (done sample, err error) {
	out, err := output(ctx, b.servo, work.Idle, "--samples", "1", "--idle-runs", strconv.Itoa(b.idle.Runs),
		"--idle-for", b.idle.For.String(), "--dir", dir, "-o", "json")
	if err != nil {
		return done, err
	}
	var results []struct {
		Idle *idle `json:"idle"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		return done, fmt.Errorf("read the output of servo-bench: %w", err)
	}
	if len(results) != 1 || results[0].Idle == nil || results[0].Idle.PSS == 0 {
		return done, errors.New("the output of servo-bench has no idle figures")
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

// text returns memory and CPU as text.
func (i *idle) text() string {
	return fmt.Sprintf("%s MiB, %s %% of a core", mebibytes(i.PSS), number(i.CPU))
}

// parts formats the number of processes and the memory of each program.
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
