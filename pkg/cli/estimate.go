package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// dryRunEstimate is the estimate of a whole run. Durations are in seconds, and costs in nano-dollars. The estimate does
// not include tasks of assets that have never succeeded.
type dryRunEstimate struct {
	Unknown     int     `json:"unknown_tasks"`
	Work        float64 `json:"work"`
	Makespan    float64 `json:"makespan"`
	MakespanP95 float64 `json:"makespan_p95"`
	CPU         float64 `json:"cpu"`
	Rows        int64   `json:"rows"`
	Bytes       int64   `json:"bytes"`
	// Cost is absent if the project declares no prices.
	Cost *estimatedCost `json:"cost,omitempty"`
}

// estimatedCost is the estimated cost of the tasks of a run. It does not include tasks whose price is unknown.
type estimatedCost struct {
	Median   int64 `json:"nanousd"`
	P95      int64 `json:"p95_nanousd"`
	Unpriced int   `json:"unpriced_tasks"`
}

// estimateOf adds prices to an estimate, and returns the values that the output shows.
func estimateOf(e *estimate.Estimate, prices *estimate.Prices) dryRunEstimate {
	d := dryRunEstimate{
		Unknown: e.Unknown, Work: e.Work.Seconds(), Makespan: e.Makespan.Seconds(), MakespanP95: e.MakespanP95.Seconds(),
		CPU: e.CPU.Seconds(), Rows: e.Rows, Bytes: e.Bytes,
	}
	if prices != nil {
		e.Price(*prices)
		d.Cost = &estimatedCost{e.Cost, e.CostP95, e.Unpriced}
	}
	return d
}

// texts describes an estimate in up to four lines: time and size, the cost, the assets without an estimate, and the
// assets without a cost.
func (d *dryRunEstimate) texts(e *estimate.Estimate) (texts []string) {
	if e.Tasks > e.Unknown {
		texts = append(texts, fmt.Sprintf("estimate: about %s, or %s if every task takes its 95th percentile; %s of work in all tasks, %s, %s",
			view.Span(e.Makespan), view.Span(e.MakespanP95), view.Span(e.Work), plural(int(e.Rows), "row"), bytesText(e.Bytes)))
	}
	if d.Cost != nil && e.Tasks > e.Unpriced {
		texts = append(texts, fmt.Sprintf("cost: about %s, or %s if every task takes its 95th percentile, at the prices of servo.yaml", dollars(e.Cost), dollars(e.CostP95)))
	}
	if unknown := withoutPast(e); len(unknown) > 0 {
		texts = append(texts, fmt.Sprintf("no estimate for %s: no task has succeeded yet", view.Some(unknown)))
	}
	if d.Cost == nil {
		return texts
	}
	var unpriced []string
	for i := range e.Assets {
		if a := &e.Assets[i]; a.Samples > 0 && !a.Priced {
			unpriced = append(unpriced, a.Asset)
		}
	}
	if len(unpriced) > 0 {
		texts = append(texts, fmt.Sprintf("no cost for %s: servo.yaml has a price for CPU time or for memory, but no worker has reported how much these assets use", view.Some(unpriced)))
	}
	return texts
}

// dollars formats an amount in nano-dollars: with cents or, below one dollar, with two significant digits.
func dollars(nano int64) string {
	const dollar = 1_000_000_000
	unit, decimals := int64(dollar/100), 2
	for nano > 0 && nano < 10*unit && unit > 1 {
		unit, decimals = unit/10, decimals+1
	}
	units := nano / unit
	if nano%unit >= unit-nano%unit && unit > 1 {
		units++
	}
	const oneDigitMore = 100 // rounding up has added a digit: 99.9 became 100
	if units == oneDigitMore && decimals > 2 {
		unit, units, decimals = 10*unit, units/10, decimals-1
	}
	whole := dollar / unit
	return "$" + view.Grouped(units/whole) + "." + pad0(units%whole, decimals)
}

// pad0 writes a number with leading zeros.
func pad0(n int64, digits int) string {
	text := strconv.FormatInt(n, 10)
	return strings.Repeat("0", max(0, digits-len(text))) + text
}

// costOf returns the cost of the tasks of an asset, or nil if it is unknown.
func costOf(a *estimate.Asset) *int64 {
	if !a.Priced {
		return nil
	}
	return &a.Cost
}

// numberOrNil returns the value of a cell, or nil.
func numberOrNil[V int64 | float64](v *V) any {
	if v == nil {
		return nil
	}
	return *v
}

// typical describes a task of an asset by medians of its newest successful attempts: how long it took, and how much it
// wrote.
type typical struct {
	Samples int `json:"samples"`
	// PerPartition means that the other fields are values for one partition, because attempts have materialized several
	// partitions each.
	PerPartition bool     `json:"per_partition,omitempty"`
	Duration     float64  `json:"duration"` // seconds
	DurationP95  float64  `json:"duration_p95"`
	CPU          *float64 `json:"cpu,omitempty"` // absent: not reported
	Rows         int64    `json:"rows"`
	Bytes        int64    `json:"bytes"`
}

// typicalOf returns the statistics of an asset, or nil if no task of it has succeeded.
func typicalOf(s *state.State, asset ids.AssetKey) (*typical, error) {
	samples, err := engine.Samples(s, asset.String())
	if err != nil || len(samples) == 0 {
		return nil, err
	}
	e := estimate.Of([]estimate.Task{{Asset: "a"}}, map[string][]estimate.Sample{"a": samples}, estimate.Limits{})
	median, p95 := e.Assets[0].Median, e.Assets[0].P95
	t := &typical{Samples: len(samples), Duration: median.Duration.Seconds(), DurationP95: p95.Duration.Seconds(), Rows: median.Rows, Bytes: median.Bytes}
	t.PerPartition = slices.ContainsFunc(samples, func(s estimate.Sample) bool { return s.Partitions > 1 })
	if median.CPU >= 0 {
		t.CPU = new(median.CPU.Seconds())
	}
	return t, nil
}

// String describes the statistics of an asset.
func (t *typical) String() string {
	text := fmt.Sprintf("%s, or %s in the 95th percentile", view.Span(seconds(t.Duration)), view.Span(seconds(t.DurationP95)))
	if t.CPU != nil {
		text += fmt.Sprintf("; %s of CPU time", view.Span(seconds(*t.CPU)))
	}
	of := "the only success"
	if t.Samples > 1 {
		of = fmt.Sprintf("median of the newest %d successes", t.Samples)
	}
	if t.PerPartition {
		of += "; values per partition, because tasks materialize batches"
	}
	return text + fmt.Sprintf("; %s, %s (%s)", plural(int(t.Rows), "row"), bytesText(t.Bytes), of)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// typicalColumn is a column with a statistic of each asset. Only formats for programs have this column.
func typicalColumn(name string, of func(*typical) any) column[assetInfo] {
	return column[assetInfo]{Name: name, Machine: true, Value: func(i assetInfo) any {
		if i.usual == nil {
			return nil
		}
		return of(i.usual)
	}}
}
