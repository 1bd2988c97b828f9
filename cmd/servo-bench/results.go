package main

import (
	"io"
	"slices"
	"strconv"

	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// column is a column of the table of results.
type column = render.Column[bench.Result]

// write writes the results in a format. A table omits columns without values, and fits into a terminal of the given
// width.
func write(w io.Writer, format render.Format, width int, results []bench.Result) error {
	if format == render.JSON || format == render.YAML {
		return render.Document(w, format, results)
	}
	shown := columns()
	if format == render.Table {
		shown = slices.DeleteFunc(shown, func(c column) bool {
			return !slices.ContainsFunc(results, func(r bench.Result) bool { return c.Value(r) != nil })
		})
	}
	return render.Write(w, render.List(format, shown, results), render.Options{Format: format, Width: width})
}

func columns() []column {
	operations := func(get func(*bench.Operations) float64) func(bench.Result) (float64, bool) {
		return func(r bench.Result) (float64, bool) {
			if r.Operations == nil {
				return 0, false
			}
			return get(r.Operations), true
		}
	}
	idle := func(get func(*bench.Idle) float64) func(bench.Result) (float64, bool) {
		return func(r bench.Result) (float64, bool) {
			if r.Idle == nil {
				return 0, false
			}
			return get(r.Idle), true
		}
	}
	return []column{
		{Name: "workload", Value: func(r bench.Result) any { return r.Workload }},
		{Name: "store", Value: func(r bench.Result) any { return r.Store }},
		{Name: "tasks", Value: func(r bench.Result) any { return r.Tasks }},
		figure("median", func(r bench.Result) (float64, bool) { return r.Median, true }),
		{Name: "unit", Value: func(r bench.Result) any { return r.Unit }},
		figure("min", func(r bench.Result) (float64, bool) { return r.Min, true }),
		figure("max", func(r bench.Result) (float64, bool) { return r.Max, true }),
		figure("makespan_s", known(func(r bench.Result) float64 { return r.Makespan })),
		figure("hop_p50_ms", known(func(r bench.Result) float64 { return r.HopP50 })),
		figure("hop_p99_ms", known(func(r bench.Result) float64 { return r.HopP99 })),
		figure("history_tasks", func(r bench.Result) (float64, bool) {
			if r.History == nil {
				return 0, false
			}
			return float64(*r.History), true
		}),
		figure("ratio", known(func(r bench.Result) float64 { return r.Ratio })),
		figure("class_a_per_task", operations(func(o *bench.Operations) float64 { return o.ClassA })),
		figure("class_b_per_task", operations(func(o *bench.Operations) float64 { return o.ClassB })),
		figure("bytes_in_per_task", operations(func(o *bench.Operations) float64 { return o.BytesIn })),
		figure("write_amplification", operations(func(o *bench.Operations) float64 { return o.Amplification })),
		figure("queue_per_task", known(func(r bench.Result) float64 {
			if r.Operations == nil {
				return 0
			}
			return r.Operations.Queue
		})),
		figure("dollars_per_million", known(func(r bench.Result) float64 {
			if r.Dollars == nil {
				return 0
			}
			return r.Dollars.Total
		})),
		figure("objects_per_task", known(func(r bench.Result) float64 { return r.Objects })),
		figure("idle_pss_mib", idle(func(i *bench.Idle) float64 { return mebibytes(i.PSS) })),
		figure("idle_heap_mib", idle(func(i *bench.Idle) float64 { return mebibytes(i.Heap) })),
		figure("idle_cpu_percent", idle(func(i *bench.Idle) float64 { return i.CPU })),
		figure("idle_operations", idle(func(i *bench.Idle) float64 { return float64(i.Operations) })),
		figure("peak_rss_mib", known(func(r bench.Result) float64 { return mebibytes(r.PeakRSS) })),
		figure("worker_peak_rss_mib", known(func(r bench.Result) float64 { return mebibytes(r.WorkerPeakRSS) })),
	}
}

// figure returns a column of numbers. Tables show three significant digits. The function "get" returns false if the
// result has no value.
func figure(name string, get func(bench.Result) (float64, bool)) column {
	return column{
		Name: name,
		Value: func(r bench.Result) any {
			if v, ok := get(r); ok {
				return v
			}
			return nil
		},
		Text: func(r bench.Result) any {
			v, ok := get(r)
			switch {
			case !ok:
				return nil
			case v >= 1000: //nolint:mnd // the integer already has more than three digits
				return strconv.FormatFloat(v, 'f', 0, 64)
			}
			return strconv.FormatFloat(v, 'g', 3, 64)
		},
	}
}

// known takes a function that returns 0 for an unknown value. It returns a function that also reports whether the
// value is known.
func known(get func(bench.Result) float64) func(bench.Result) (float64, bool) {
	return func(r bench.Result) (float64, bool) {
		v := get(r)
		return v, v != 0
	}
}

func mebibytes(n int64) float64 { return float64(n >> 20) } //nolint:mnd // mebibytes
