// Command peers measures Servo and other engines on the same workloads and the same machine. It alternates between the
// engines: first it takes one sample of each engine, then the next sample of each, so that a busy machine affects all
// engines. Each sample has its own server, store and process. The result also lists the peers that could not be
// measured, with the reasons.
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

// workerCommand is the argument with which this program starts itself to execute a job on a peer.
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
		return fmt.Errorf("peer %q has no program in Go", name)
	}
	return work.Serve(ctx, os.Stdin, os.Stdout, p.open)
}

// settings is a flag of the form PEER.NAME=VALUE.
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
	chosen := flags.String("peers", "", "names of peers, separated by spaces (default: all)")
	workloads := flags.String("workloads", strings.Join(work.Workloads(), " "), "names of workloads, separated by spaces")
	samples := flags.Int("samples", 3, "number of samples of each peer and workload")
	in := flags.String("dir", "", "parent folder of all state, on the disk to be measured (default: the folder of temporary files)")
	tools := flags.String("tools", "", "folder in which the peers' servers and packages are installed")
	servoProgram := flags.String("servo", "servo-bench", "the program servo-bench, which measures Servo")
	var idle idleness
	idle.flags(flags)
	out := flags.String("out", "peers", "file name of the result, without .json and .md")
	given := settings{}
	flags.Var(given, "set", "setting of a peer, as PEER.NAME=VALUE; may be repeated")
	_ = flags.Parse(args) // exits on errors

	if err := idle.check(); err != nil {
		return err
	}
	// The path must be absolute, because programs are started in other folders.
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
	// Remove the folder only at the end, because recently removed files make a disk slower.
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // PostgreSQL runs as another user
		return err
	}
	b := &bench{self: self, servo: *servoProgram, tools: *tools, dir: dir, idle: idle}
	report := report{Machine: machine(dir), Workloads: strings.Fields(*workloads), Idle: idle}
	_, b.device = disk(dir)
	if err := measureAll(ctx, b, rows, report.Workloads, *samples); err != nil {
		return err
	}
	report.add(ctx, rows, *tools)
	return report.write(filepath.Clean(*out))
}

// choose returns the named peers, or all peers if no names are given.
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

// measureAll measures all peers alternately: in each round, it takes one sample of each peer for each workload. Every
// round begins with another peer. Idle peers are measured only once, because that takes minutes.
func measureAll(ctx context.Context, b *bench, rows []*row, workloads []string, samples int) error {
	for n := range samples {
		for _, workload := range workloads {
			if workload == work.Idle && n > 0 {
				continue
			}
			for _, r := range slices.Concat(rows[n%len(rows):], rows[:n%len(rows)]) {
				if r.failed(workload) {
					continue // do not repeat a measurement that has failed
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
