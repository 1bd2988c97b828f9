package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudblob"
)

// Idle describes the resource use of an idle process.
type Idle struct {
	// Runs is the number of finished runs in its store.
	Runs    int     `json:"runs"`
	Seconds float64 `json:"seconds"`
	// PSS and RSS are the proportional and the resident set size of the process at the end of the measurement, in bytes;
	// 0: unknown.
	PSS int64 `json:"pss_bytes,omitempty"`
	RSS int64 `json:"rss_bytes,omitempty"`
	// Heap is the number of bytes that the schedules of W9 add to the live heap.
	Heap int64 `json:"heap_bytes,omitempty"`
	// CPU is the CPU time as a percentage of one core.
	CPU float64 `json:"cpu_percent"`
	// Operations is the number of operations on its store.
	Operations int64 `json:"operations"`
}

// idle measures the time from the start of a server process to its first response, once per sample.
// In the first sample it also measures the resource use of the idle process.
func idle(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	r := Result{Workload: w.Name, Description: w.Description, Store: cfg.store(), Unit: w.unit, Tasks: cfg.IdleRuns}
	err := cfg.inFolder(func(dir string) error {
		if err := cfg.seed(ctx, dir, cfg.IdleRuns, 1); err != nil {
			return err
		}
		for range cfg.Samples {
			took, err := cfg.serve(ctx, dir, &r)
			if err != nil {
				return err
			}
			r.Samples = append(r.Samples, float64(took)/float64(time.Millisecond))
			r.samples = append(r.samples, sample{tasks: cfg.IdleRuns, took: took})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Median, r.Min, r.Max = median(r.Samples), slices.Min(r.Samples), slices.Max(r.Samples)
	return []Result{r}, nil
}

// serve starts a server and waits for its first response. If r.Idle is not set yet, serve then measures the idle
// server for cfg.IdleFor, and sets r.Idle.
func (cfg Config) serve(ctx context.Context, dir string, r *Result) (took time.Duration, err error) {
	began := cfg.Clock.Now()
	server, err := cfg.StartServer(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := get(ctx, cmp.Or(server.Client, http.DefaultClient), server.URL+"/v1/runs?page_size=1"); err != nil {
		return 0, err
	}
	took = cfg.Clock.Now().Sub(began)
	if r.Idle != nil {
		return took, nil
	}
	before, err := server.Usage()
	if err != nil {
		return 0, err
	}
	cpu, at := cpuTime(server.PID), cfg.Clock.Now()
	if err := cfg.Clock.Sleep(ctx, cfg.IdleFor); err != nil {
		return 0, err
	}
	r.Idle = &Idle{Runs: cfg.IdleRuns, Seconds: cfg.Clock.Now().Sub(at).Seconds()}
	r.Idle.CPU = 100 * (cpuTime(server.PID) - cpu).Seconds() / r.Idle.Seconds //nolint:mnd // percent
	r.Idle.PSS, r.Idle.RSS, r.PeakRSS = residentMemory(server.PID, "Pss:"), residentMemory(server.PID, "Rss:"), PeakRSS(server.PID)
	after, err := server.Usage()
	r.Idle.Operations = operations(after) - operations(before)
	return took, err
}

func operations(u cloudblob.Usage) int64 { return u.Total().Operations() }

// get makes a request, which must succeed.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("request to the server: %w", err)
	}
	answer, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("request to the server: %w", err)
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("request to the server: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("request to the server: %s: %.300s", answer.Status, body)
	}
	return nil
}
