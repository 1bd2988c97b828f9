package bench

import (
	"slices"

	"github.com/servo-orchestration/servo/internal/cloudsim"
)

// Result is the measurement of a workload.
type Result struct {
	Workload    string `json:"workload"`
	Description string `json:"description"`
	// Store is FileStore or CloudSim. Model describes the simulated cloud.
	Store string `json:"store"`
	Model string `json:"model,omitempty"`
	Tasks int    `json:"tasks"`
	// Samples are the measured values, in Unit.
	Samples []float64 `json:"samples"`
	Unit    string    `json:"unit"`
	Median  float64   `json:"median"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	// Makespan is the median time from the first request to the end of the last run.
	Makespan float64 `json:"makespan_s,omitempty"`
	// HopP50 and HopP99 are percentiles of the hops of all samples. A hop is the time from the end of a task's last
	// upstream to the task's own end, in milliseconds. If many tasks are ready at once, a hop is mostly time in the
	// queue.
	HopP50 float64 `json:"hop_p50_ms,omitempty"`
	HopP99 float64 `json:"hop_p99_ms,omitempty"`
	// Objects and Bytes are the number of files in the last sample's state folder and their total size, per task.
	Objects float64 `json:"objects_per_task,omitempty"`
	Bytes   float64 `json:"bytes_per_task,omitempty"`
	// Operations are averages per task over all samples, including the start of the stack.
	Operations *Operations `json:"operations_per_task,omitempty"`
	// Dollars is the cost of a million tasks.
	Dollars *cloudsim.Bill `json:"dollars_per_million_tasks,omitempty"`
	// History is the number of finished tasks in the store before the measurement. In each round, the throughput of this
	// store is divided by the throughput of the store with the first number in Config.History. Ratio is the median of
	// these quotients.
	History *int    `json:"history_tasks,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	// Idle describes the idle process.
	Idle *Idle `json:"idle,omitempty"`
	// PeakRSS and WorkerPeakRSS are the peak resident memory of the orchestrating process and of the worker over all
	// samples, in bytes; 0: unknown.
	PeakRSS       int64 `json:"peak_rss_bytes,omitempty"`
	WorkerPeakRSS int64 `json:"worker_peak_rss_bytes,omitempty"`

	samples []sample
	prices  cloudsim.Prices
}

// Operations counts operations of the store, of the queue and of notifications.
type Operations struct {
	ClassA   float64 `json:"class_a"`
	ClassB   float64 `json:"class_b"`
	Free     float64 `json:"free"`
	Refused  float64 `json:"refused,omitempty"`
	BytesIn  float64 `json:"bytes_in"`
	BytesOut float64 `json:"bytes_out"`
	// Amplification is how many bytes of state and manifests were written per byte of the ledger. It includes merges,
	// bases and history.
	Amplification float64 `json:"write_amplification"`

	Queue    float64 `json:"queue,omitempty"`
	Messages float64 `json:"messages,omitempty"`
	// ClassAByKind and ClassBByKind count the operations of each class by kind of object.
	ClassAByKind map[string]float64 `json:"class_a_by_kind"`
	ClassBByKind map[string]float64 `json:"class_b_by_kind"`
}

// result summarizes one or more samples.
func (cfg Config) result(w Workload, samples []sample) Result {
	r := Result{
		Workload: w.Name, Description: cfg.described(w), Store: cfg.store(), Unit: w.unit, samples: samples,
		Tasks: samples[0].tasks,
	}
	var hops, took []float64
	usage := cloudsim.Usage{}
	tasks := 0
	for _, s := range samples {
		r.Samples = append(r.Samples, w.value(s))
		took = append(took, s.took.Seconds())
		hops = append(hops, s.hops...)
		r.Objects, r.Bytes = float64(s.objects)/float64(s.tasks), float64(s.bytes)/float64(s.tasks)
		r.PeakRSS, r.WorkerPeakRSS = max(r.PeakRSS, s.peak), max(r.WorkerPeakRSS, s.workerPeak)
		usage = usage.Add(s.usage)
		tasks += s.tasks
	}
	r.Median, r.Min, r.Max = median(r.Samples), slices.Min(r.Samples), slices.Max(r.Samples)
	r.Makespan = median(took)
	if len(hops) > 0 {
		slices.Sort(hops)
		r.HopP50, r.HopP99 = percentile(hops, 50), percentile(hops, 99)
	}
	r.Operations = perTask(usage, tasks)
	if cfg.Cloud != nil {
		bill := cfg.Cloud.Prices.Bill(usage).Times(1e6 / float64(tasks))
		r.Model, r.Dollars, r.prices = cfg.Cloud.String(), &bill, cfg.Cloud.Prices
	}
	return r
}

func perTask(u cloudsim.Usage, tasks int) *Operations {
	per := func(n int64) float64 { return float64(n) / float64(tasks) }
	total := u.Store.Total()
	o := &Operations{
		ClassA: per(total.ClassA), ClassB: per(total.ClassB), Free: per(total.Free), Refused: per(total.Refused),
		BytesIn: per(total.BytesIn), BytesOut: per(total.BytesOut),
		Queue: per(u.QueueCalls + u.QueueDeliveries), Messages: per(u.Messages),
		ClassAByKind: map[string]float64{}, ClassBByKind: map[string]float64{},
	}
	if written := u.Store["ledger"].BytesIn; written > 0 {
		o.Amplification = float64(u.Store["state"].BytesIn+u.Store["manifests"].BytesIn) / float64(written)
	}
	for kind, c := range u.Store {
		if c.ClassA > 0 {
			o.ClassAByKind[kind] = per(c.ClassA)
		}
		if c.ClassB > 0 {
			o.ClassBByKind[kind] = per(c.ClassB)
		}
	}
	return o
}
