package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/server"
	"github.com/servo-orchestration/servo/tests/peers/work"
)

// sampleWithin is for the slowest: most take seconds.
const sampleWithin = 4 * time.Minute

// bench measures.
type bench struct {
	self, servo, tools string
	// dir is where all state is, on the disk that is measured.
	dir, device string
	samples     int // so many were taken
}

// sample measures a workload once. What the peer needs is started before, and ended after.
func (b *bench) sample(ctx context.Context, p peer, workload string) (work.Done, error) {
	b.samples++
	ctx, cancel := context.WithTimeout(ctx, sampleWithin)
	defer cancel()
	dir := filepath.Join(b.dir, fmt.Sprintf("%03d-%s-%s", b.samples, p.Name, workload))
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL is another user
		return work.Done{}, err
	}
	settle()
	if p.Name == servoName {
		return b.ofServo(ctx, dir, workload)
	}
	return b.ofPeer(ctx, p, dir, workload)
}

// ofServo has servo bench measure twice in one process, and takes the second sample, as
// peers have executed something before they are measured. Flushes are of both, and of its
// own start and end.
func (b *bench) ofServo(ctx context.Context, dir, workload string) (work.Done, error) {
	flushed := work.Flushes(b.device)
	out, err := output(ctx, nil, b.servo, "bench", workload, "--samples", "2", "--dir", dir, "-o", "json")
	if err != nil {
		return work.Done{}, err
	}
	var results []struct {
		Tasks   int       `json:"tasks"`
		Unit    string    `json:"unit"`
		Samples []float64 `json:"samples"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		return work.Done{}, fmt.Errorf("read what servo bench says: %w", err)
	}
	if len(results) != 1 || len(results[0].Samples) != 2 || results[0].Samples[1] <= 0 {
		return work.Done{}, errors.New("servo bench does not say how long it took")
	}
	r := results[0]
	seconds := float64(r.Tasks) / r.Samples[1]
	if r.Unit == "ms/hop" {
		seconds = r.Samples[1] * float64(r.Tasks) / 1000 //nolint:mnd // milliseconds
	}
	return work.Done{Tasks: r.Tasks, Seconds: seconds, Flushes: (work.Flushes(b.device) - flushed) / 2}, nil //nolint:mnd // samples
}

func (b *bench) ofPeer(ctx context.Context, p peer, dir, workload string) (done work.Done, err error) {
	job, err := work.Of(workload)
	if err != nil {
		return done, err
	}
	program, args, err := b.program(p)
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
	out, err := output(ctx, order, program, args...)
	if err != nil {
		return done, err
	}
	if err := json.Unmarshal(out, &done); err != nil {
		return done, fmt.Errorf("read what the program of %s says: %w", p.Name, err)
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

// program is how to start the program of a peer.
func (b *bench) program(p peer) (string, []string, error) {
	if p.open != nil {
		return b.self, []string{workerCommand, p.Name}, nil
	}
	folder := filepath.Join(b.tools, nodePeers, p.node)
	if _, err := os.Stat(filepath.Join(folder, "node_modules")); err != nil {
		return "", nil, errors.New("its package is not installed")
	}
	return "node", []string{filepath.Join(folder, "main.mjs")}, nil
}

// output is what a program prints; an error has the end of what it complains of.
func output(ctx context.Context, in []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaint
	cmd.SysProcAttr = server.ChildOf(nil)
	// It may have children, which end with it if it may end in order.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), errors.Join(ctx.Err(), err), strings.Join(lines[max(0, len(lines)-5):], " / "))
	}
	return out.Bytes(), nil
}
