package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

// Timeouts of a sample. They suit the slowest peer; most samples take seconds. An idle sample first executes ten
// thousand runs; the times of rest and observation are added to its timeout.
const (
	sampleWithin = 4 * time.Minute
	idleWithin   = 6 * time.Minute
)

// bench takes samples.
type bench struct {
	self, servo, tools string
	// dir contains all state, on the measured disk. device is the name of the disk.
	dir, device string
	samples     int // the number of samples taken so far
	idle        idleness
}

// sample is one measurement.
type sample struct {
	work.Done

	idle *idle // set for the workload work.Idle
}

// sample measures a workload once. It starts the peer's server before the measurement, and stops it afterwards.
func (b *bench) sample(ctx context.Context, p peer, workload string) (sample, error) {
	b.samples++
	within := sampleWithin
	if workload == work.Idle {
		within = idleWithin + b.idle.Rest + b.idle.For
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	dir := filepath.Join(b.dir, fmt.Sprintf("%03d-%s-%s", b.samples, p.Name, workload))
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user
		return sample{}, err
	}
	syncDisks()
	switch {
	case p.Name == servoName && workload == work.Idle:
		return b.sampleServoIdle(ctx, dir)
	case p.Name == servoName:
		return b.sampleServo(ctx, dir, workload)
	}
	return b.samplePeer(ctx, p, dir, workload)
}

// sampleServo runs servo-bench with two samples and uses the second one, because peers are warmed up as well. Flushes
// are the average of both samples, including the start and end of the process.
func (b *bench) sampleServo(ctx context.Context, dir, workload string) (done sample, err error) {
	flushed := work.Flushes(b.device)
	out, err := output(ctx, b.servo, workload, "--samples", "2", "--dir", dir, "-o", "json")
	if err != nil {
		return done, err
	}
	var results []struct {
		Tasks   int       `json:"tasks"`
		Unit    string    `json:"unit"`
		Samples []float64 `json:"samples"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		return done, fmt.Errorf("read the output of servo-bench: %w", err)
	}
	if len(results) != 1 || len(results[0].Samples) != 2 || results[0].Samples[1] <= 0 {
		return done, errors.New("the output of servo-bench has no duration")
	}
	r := results[0]
	seconds := float64(r.Tasks) / r.Samples[1]
	if r.Unit == "ms/hop" {
		seconds = r.Samples[1] * float64(r.Tasks) / 1000 //nolint:mnd // milliseconds
	}
	done.Done = work.Done{Tasks: r.Tasks, Seconds: seconds, Flushes: (work.Flushes(b.device) - flushed) / 2} //nolint:mnd // samples
	return done, nil
}

func (b *bench) samplePeer(ctx context.Context, p peer, dir, workload string) (done sample, err error) {
	job, err := work.Named(workload, b.idle.Runs)
	if err != nil {
		return done, err
	}
	cmd, err := b.program(ctx, p)
	if err != nil {
		return done, err
	}
	running, err := p.start(ctx, dir)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	job.Server, job.Admin, job.Settings, job.Device = running.Address, running.Admin, settingsFor(p.Settings, workload), b.device
	order, err := json.Marshal(work.Order{Job: job, Warming: work.Warming()})
	if err != nil {
		return done, err
	}
	err = converse(ctx, cmd, order, func(said io.Reader) error {
		if err := json.NewDecoder(said).Decode(&done.Done); err != nil {
			return fmt.Errorf("read the output of the program of %s: %w", p.Name, err)
		}
		if workload == work.Idle {
			done.idle, err = b.observeIdle(ctx)
		}
		return err
	})
	if err != nil {
		return done, err
	}
	if done.Tasks != job.Tasks() {
		return done, fmt.Errorf("%d of %d tasks were executed", done.Tasks, job.Tasks())
	}
	return done, nil
}

// settingsFor returns the settings of a peer for a workload. A setting with a prefix, such as
// "W3.cooldown_ms", applies to that workload only.
func settingsFor(all map[string]string, workload string) map[string]string {
	settings := maps.Clone(all)
	for key, value := range all {
		if name, ok := strings.CutPrefix(key, workload+"."); ok {
			settings[name] = value
		}
	}
	return settings
}

// program returns the command that starts a peer's program.
func (b *bench) program(ctx context.Context, p peer) (*exec.Cmd, error) {
	if p.open != nil {
		return exec.CommandContext(ctx, b.self, workerCommand, p.Name), nil
	}
	folder := filepath.Join(b.tools, nodePeers, p.node)
	if _, err := os.Stat(filepath.Join(folder, "node_modules")); err != nil {
		return nil, errors.New("its package is not installed")
	}
	return exec.CommandContext(ctx, "node", filepath.Join(folder, "main.mjs")), nil
}
