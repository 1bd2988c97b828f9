// Command peers measures Servo and other engines on the same workloads, on this machine,
// taking turns: one sample of each, then the next one of each, so that a busy moment is
// one for all. Each sample has a server, a store and a process of its own. A peer that
// cannot be measured is in the result, with the reason.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

// workerCommand executes a job on a peer: this program starts itself with it.
const workerCommand = "worker"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 3 && os.Args[1] == workerCommand {
		err = serve(ctx, os.Args[2])
	} else {
		err = measure(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

func serve(ctx context.Context, name string) error {
	p, ok := named(peers(""), name)
	if !ok || p.open == nil {
		return fmt.Errorf("no peer %q with a program in Go", name)
	}
	return work.Serve(ctx, os.Stdin, os.Stdout, p.open)
}

// settings are given as PEER.NAME=VALUE.
type settings map[string]map[string]string

func (s settings) String() string { return "" }

func (s settings) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	name, setting, named := strings.Cut(key, ".")
	if !ok || !named {
		return errors.New("must be PEER.NAME=VALUE")
	}
	if s[name] == nil {
		s[name] = map[string]string{}
	}
	s[name][setting] = value
	return nil
}

func measure(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("peers", flag.ExitOnError)
	chosen := flags.String("peers", "", "which peers, by name, separated by spaces (default: all)")
	workloads := flags.String("workloads", strings.Join(work.Workloads(), " "), "which workloads")
	samples := flags.Int("samples", 3, "how often each is measured")
	in := flags.String("dir", "", "where to keep state: on the disk to be measured (default: that of temporary files)")
	tools := flags.String("tools", "", "where what the peers need was installed")
	servoProgram := flags.String("servo", "servo", "the program to measure")
	var idle idleness
	idle.flags(flags)
	out := flags.String("out", "peers", "where to write the result: with .json and .md after it")
	given := settings{}
	flags.Var(given, "set", "a setting of a peer, PEER.NAME=VALUE; may be repeated")
	_ = flags.Parse(args) // it exits

	if err := idle.check(); err != nil {
		return err
	}
	// Programs are started in folders of their own.
	for _, path := range []*string{tools, servoProgram} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	rows := []*row{{peer: servo()}}
	picked, err := choose(peers(*tools), strings.Fields(*chosen))
	if err != nil {
		return err
	}
	for _, p := range picked {
		for name, value := range given[p.Name] {
			p.Settings[name] = value
		}
		rows = append(rows, &row{peer: p})
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*in, "servo-peers-")
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	// At the end only: a disk is slower where files were just removed.
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // PostgreSQL is another user
		return err
	}
	b := &bench{self: self, servo: *servoProgram, tools: *tools, dir: dir, idle: idle}
	report := report{Machine: machine(dir), Workloads: strings.Fields(*workloads), Idle: idle}
	_, b.device = disk(dir)
	if err := turns(ctx, b, rows, report.Workloads, *samples); err != nil {
		return err
	}
	report.add(ctx, rows, *tools)
	return report.write(filepath.Clean(*out))
}

// choose picks peers by name; none: all.
func choose(all []peer, names []string) ([]peer, error) {
	if len(names) == 0 {
		return all, nil
	}
	var picked []peer
	for _, name := range names {
		p, ok := named(all, name)
		if !ok {
			return nil, fmt.Errorf("no peer %q", name)
		}
		picked = append(picked, p)
	}
	return picked, nil
}

// turns has all measured, one sample each before the next one of any. Who is first
// changes from sample to sample. What is idle is measured once: it takes a minute or more.
func turns(ctx context.Context, b *bench, rows []*row, workloads []string, samples int) error {
	for n := range samples {
		for _, workload := range workloads {
			if workload == work.Idle && n > 0 {
				continue
			}
			for _, r := range slices.Concat(rows[n%len(rows):], rows[:n%len(rows)]) {
				if r.failed(workload) {
					continue // it would again
				}
				done, err := b.sample(ctx, r.peer, workload)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				r.add(workload, done, err)
				fmt.Fprintf(os.Stderr, "%d/%d %s %-12s %s\n", n+1, samples, workload, r.peer.Name, r.last(workload))
			}
		}
	}
	return nil
}
