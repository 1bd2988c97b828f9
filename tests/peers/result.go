package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

// row is a peer with its measurements by workload.
type row struct {
	peer     peer
	measured map[string]*figures
}

// figures are the measurements of a workload.
type figures struct {
	// Unit is the unit of Samples: ms/hop or tasks/s. Both are empty for an idle peer.
	Unit    string    `json:"unit,omitempty"`
	Samples []float64 `json:"samples,omitempty"`
	Median  float64   `json:"median,omitempty"`
	Idle    *idle     `json:"idle,omitempty"`
	// Flushes is the median number of disk flushes per task, by any process.
	Flushes float64 `json:"flushes_per_task"`
	// Repeated is the number of repeated executions of tasks, in all samples.
	Repeated int `json:"repeated"`
	// Failed is the reason why the measurement stopped before all samples were taken.
	Failed string `json:"failed,omitempty"`

	flushes []float64
}

const hop = "ms/hop"

func (r *row) failed(workload string) bool {
	f := r.measured[workload]
	return f != nil && f.Failed != ""
}

func (r *row) add(workload string, done sample, err error) {
	if r.measured == nil {
		r.measured = map[string]*figures{}
	}
	f := r.measured[workload]
	if f == nil {
		f = &figures{Unit: "tasks/s"}
		switch workload {
		case "W1":
			f.Unit = hop
		case work.Idle:
			f.Unit = ""
		}
		r.measured[workload] = f
	}
	if err != nil {
		f.Failed = err.Error()
		return
	}
	f.Repeated += done.Repeated
	if done.idle != nil {
		f.Idle = done.idle
		return
	}
	tasks := float64(done.Tasks)
	if f.Unit == hop {
		f.Samples = append(f.Samples, done.Seconds*1000/tasks)
	} else {
		f.Samples = append(f.Samples, tasks/done.Seconds)
	}
	f.flushes = append(f.flushes, float64(done.Flushes)/tasks)
	f.Median, f.Flushes = median(f.Samples), median(f.flushes)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// last formats the last sample.
func (r *row) last(workload string) string {
	f := r.measured[workload]
	if f.Failed != "" {
		return "not measured: " + f.Failed
	}
	if f.Idle != nil {
		return f.Idle.text()
	}
	return number(f.Samples[len(f.Samples)-1]) + " " + f.Unit
}

// report is the whole result.
type report struct {
	Machine   string   `json:"machine"`
	Workloads []string `json:"workloads"`
	// Idle is the configuration of workload W4, which measures idle processes.
	Idle  idleness `json:"idle"`
	Peers []entry  `json:"peers"`
}

type entry struct {
	Name       string              `json:"name"`
	Title      string              `json:"title"`
	Version    string              `json:"version"`
	Worker     string              `json:"worker"`
	Durability string              `json:"durability"`
	Server     string              `json:"server,omitempty"`
	Settings   map[string]string   `json:"settings,omitempty"`
	Figures    map[string]*figures `json:"figures"`
}

// machine describes the time, the machine, the file system and the load.
func machine(dir string) string {
	kind, _ := disk(dir)
	load := "unknown"
	if content, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(content), " ")
	}
	return fmt.Sprintf("%s: %s/%s, %d cores, %s, load %s at the start",
		time.Now().UTC().Format("2006-01-02 15:04"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), kind, load)
}

func (r *report) add(ctx context.Context, rows []*row, tools string) {
	for _, row := range rows {
		p := row.peer
		e := entry{
			Name: p.Name, Title: p.Title, Worker: p.Worker, Durability: p.Durability,
			Server: p.Server, Settings: p.Settings, Figures: row.measured,
		}
		if p.version != nil {
			e.Version = p.version(ctx, tools)
		}
		r.Peers = append(r.Peers, e)
	}
}

// write writes the report as JSON and Markdown, and prints the table.
func (r *report) write(out string) error {
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	table := r.table()
	fmt.Print(table)
	return errors.Join(
		os.MkdirAll(filepath.Dir(out), 0o755),
		os.WriteFile(out+".json", append(encoded, '\n'), 0o644), //nolint:gosec // other users may read the report
		os.WriteFile(out+".md", []byte(table), 0o644),           //nolint:gosec // other users may read the report
	)
}
