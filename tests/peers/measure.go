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

// These are for the slowest: most take seconds. One that is idle has executed ten thousand
// runs before, and is given beside this the time in which it rests and is looked on.
const (
	sampleWithin = 4 * time.Minute
	idleWithin   = 6 * time.Minute
)

// bench measures.
type bench struct {
	self, servo, tools string
	// dir is where all state is, on the disk that is measured.
	dir, device string
	samples     int // so many were taken
	idle        idleness
}

// sample is what was measured at once.
type sample struct {
	work.Done

	idle *idle // if that was to be measured
}

// sample measures a workload once. What the peer needs is started before, and ended after.
func (b *bench) sample(ctx context.Context, p peer, workload string) (sample, error) {
	b.samples++
	within := sampleWithin
	if workload == work.Idle {
		within = idleWithin + b.idle.Rest + b.idle.For
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	dir := filepath.Join(b.dir, fmt.Sprintf("%03d-%s-%s", b.samples, p.Name, workload))
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL is another user
		return sample{}, err
	}
	settle()
	switch {
	case p.Name == servoName && workload == work.Idle:
		return b.ofServoIdle(ctx, dir)
	case p.Name == servoName:
		return b.ofServo(ctx, dir, workload)
	}
	return b.ofPeer(ctx, p, dir, workload)
}

// ofServo has servo bench measure twice in one process, and takes the second sample, as
// peers have executed something before they are measured. Flushes are of both, and of its
// own start and end.
func (b *bench) ofServo(ctx context.Context, dir, workload string) (done sample, err error) {
	flushed := work.Flushes(b.device)
	out, err := output(ctx, b.servo, "bench", workload, "--samples", "2", "--dir", dir, "-o", "json")
	if err != nil {
		return done, err
	}
	var results []struct {
		Tasks   int       `json:"tasks"`
		Unit    string    `json:"unit"`
		Samples []float64 `json:"samples"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		return done, fmt.Errorf("read what servo bench says: %w", err)
	}
	if len(results) != 1 || len(results[0].Samples) != 2 || results[0].Samples[1] <= 0 {
		return done, errors.New("servo bench does not say how long it took")
	}
	r := results[0]
	seconds := float64(r.Tasks) / r.Samples[1]
	if r.Unit == "ms/hop" {
		seconds = r.Samples[1] * float64(r.Tasks) / 1000 //nolint:mnd // milliseconds
	}
	done.Done = work.Done{Tasks: r.Tasks, Seconds: seconds, Flushes: (work.Flushes(b.device) - flushed) / 2} //nolint:mnd // samples
	return done, nil
}

func (b *bench) ofPeer(ctx context.Context, p peer, dir, workload string) (done sample, err error) {
	job, err := work.Of(workload, b.idle.Runs)
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
			return fmt.Errorf("read what the program of %s says: %w", p.Name, err)
		}
		if workload == work.Idle {
			done.idle, err = b.lookOn(ctx)
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

// settingsFor are the settings of a peer for a workload: what is the best for one may not
// be for another, "W3.cooldown_ms" is for W3 alone.
func settingsFor(all map[string]string, workload string) map[string]string {
	settings := maps.Clone(all)
	for key, value := range all {
		if name, ok := strings.CutPrefix(key, workload+"."); ok {
			settings[name] = value
		}
	}
	return settings
}

// program is the program of a peer.
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
