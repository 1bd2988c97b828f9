package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Redis starts Redis, which flushes each command to its append-only file before it responds.
func Redis(ctx context.Context, dir string) (Running, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return Running{}, errors.New("redis-server is not installed")
	}
	ports, err := freePorts(1)
	if err != nil {
		return Running{}, err
	}
	server, err := run(dir, nil, program, "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
	if err != nil {
		return Running{}, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	if err := server.await(ctx, accepts(address)); err != nil {
		return Running{}, err
	}
	return Running{Address: address, Stop: func() error { return server.stop(syscall.SIGTERM) }}, nil
}

// Restate starts a single node with default settings except the number of partitions. The parameter "modules" is the
// folder of its packages, one of which contains the program for this platform.
func Restate(modules string, partitions int) Start {
	return func(ctx context.Context, dir string) (Running, error) {
		programs, err := filepath.Glob(filepath.Join(modules, "@restatedev", "restate-server-*", "bin", "restate-server"))
		if err != nil || len(programs) != 1 {
			return Running{}, errors.New("restate-server is not installed")
		}
		ports, err := freePorts(3)
		if err != nil {
			return Running{}, err
		}
		config := fmt.Sprintf("listen-mode = \"tcp\"\nbind-ip = \"127.0.0.1\"\nadvertised-host = \"127.0.0.1\"\nbind-port = %d\n"+
			"default-num-partitions = %d\ndisable-telemetry = true\nlog-filter = \"warn\"\n[ingress]\nbind-port = %d\n[admin]\nbind-port = %d\n",
			ports[0], partitions, ports[1], ports[2])
		file := filepath.Join(dir, "restate.toml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return Running{}, err
		}
		server, err := run(dir, nil, programs[0], "--no-logo", "-c", file, "--base-dir", filepath.Join(dir, "data"))
		if err != nil {
			return Running{}, err
		}
		r := Running{
			Address: fmt.Sprintf("http://127.0.0.1:%d", ports[1]), Admin: fmt.Sprintf("http://127.0.0.1:%d", ports[2]),
			Stop: func() error { return server.stop(syscall.SIGTERM) },
		}
		healthy := func(ctx context.Context) error {
			if err := answersOK(ctx, r.Admin+"/health"); err != nil {
				return err
			}
			return answersOK(ctx, r.Address+"/restate/health")
		}
		return r, server.await(ctx, healthy)
	}
}

func answersOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// Temporal starts the development server on a SQLite file that is flushed at each commit. It has one shard. By default,
// a shard polls for work at most 20 times a second, so that a hop would take 100 ms. The setting below raises this
// limit.
func Temporal(program string) Start {
	return func(ctx context.Context, dir string) (Running, error) {
		if !exists(program) {
			return Running{}, errors.New("temporal is not installed")
		}
		ports, err := freePorts(1)
		if err != nil {
			return Running{}, err
		}
		server, err := run(dir, nil, program, "server", "start-dev", "--headless", "--ip", "127.0.0.1",
			"--port", strconv.Itoa(ports[0]), "--db-filename", filepath.Join(dir, "temporal.db"), "--log-level", "error",
			"--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2",
			"--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000")
		if err != nil {
			return Running{}, err
		}
		address := fmt.Sprintf("127.0.0.1:%d", ports[0])
		if err := server.await(ctx, accepts(address)); err != nil {
			return Running{}, err
		}
		return Running{Address: address, Stop: func() error { return server.stop(syscall.SIGTERM) }}, nil
	}
}
