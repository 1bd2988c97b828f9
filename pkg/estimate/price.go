package estimate

import (
	"math"
	"math/big"
)

// Prices are in nano-dollars. 0: free.
type Prices struct {
	// CPUSecond is the price of a second of CPU time.
	CPUSecond int64
	// GBSecond is the price of reserving a gigabyte of memory for a second.
	GBSecond int64
	// WrittenGB is the price of a gigabyte of output.
	WrittenGB int64
	// Task is the price of a task.
	Task int64
}

// Units of [Prices] and [Sample].
const (
	gigabyte                 = 1_000_000_000
	bytesPerMiB, msPerSecond = 1 << 20, 1000
	nsPerSecond              = 1_000_000_000
)

// Price computes the costs of an estimate.
func (e *Estimate) Price(p Prices) {
	e.Cost, e.CostP95, e.Unpriced = 0, 0, 0
	for i := range e.Assets {
		a := &e.Assets[i]
		a.Priced = a.Samples > 0 && (p.CPUSecond == 0 || a.Median.CPU >= 0) && (p.GBSecond == 0 || a.Median.Memory >= 0)
		if !a.Priced {
			a.Cost, a.CostP95 = 0, 0
			e.Unpriced += a.Tasks
			continue
		}
		a.Cost, a.CostP95 = p.cost(a.Tasks, &a.Median), p.cost(a.Tasks, &a.P95)
		e.Cost, e.CostP95 = sum(e.Cost, a.Cost), sum(e.CostP95, a.CostP95)
	}
}

// cost returns the price of a number of tasks that each use the resources of the sample. It rounds down once for each
// kind of price, after the multiplication.
func (p Prices) cost(tasks int, each *Sample) int64 {
	total := int64(0)
	for _, part := range []struct{ price, count, unit int64 }{
		{p.CPUSecond, int64(each.CPU), nsPerSecond},
		{p.WrittenGB, each.Bytes, gigabyte},
		{p.Task, 1, 1},
	} {
		total = sum(total, product(part.unit, int64(tasks), part.price, part.count))
	}
	return sum(total, product(gigabyte*msPerSecond, int64(tasks), p.GBSecond, each.Memory, bytesPerMiB))
}

// product multiplies factors and divides the product. A result that does not fit into an int64 becomes the maximum
// int64.
func product(divisor int64, factors ...int64) int64 {
	n := big.NewInt(1)
	for _, f := range factors {
		n.Mul(n, big.NewInt(max(f, 0)))
	}
	if n.Quo(n, big.NewInt(divisor)); !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

// sum adds numbers that are not negative. A result that does not fit into an int64 becomes the maximum int64.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
