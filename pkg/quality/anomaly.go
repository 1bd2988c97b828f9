package quality

import (
	"fmt"
	"math/big"
	"slices"
)

// Metrics of [Anomaly].
const (
	MetricRows     = "row_count"
	MetricNulls    = "null_count"     // the number of NULL values of a column
	MetricDistinct = "distinct_count" // the number of different values of a column
)

// Watch describes how a check compares a metric with its past values.
type Watch struct {
	Metric string `json:"metric"`
	// Window is the number of past values to compare with.
	Window int `json:"window"`
	// Threshold is the tolerated distance from the median, in thousandths of the median absolute
	// deviation.
	Threshold int64 `json:"threshold_permille"`
	// Weekday means that only values of the same day of the week are compared.
	Weekday bool `json:"weekday,omitempty"`
}

// Limits of anomaly checks.
const (
	// LeastHistory is the number of past values that a check needs. With fewer values, the check passes.
	LeastHistory = 7
	// MaxWindow is the number of past values that are kept.
	MaxWindow = 64
	// MaxThreshold is the greatest threshold, in thousandths.
	MaxThreshold = 1_000_000
)

func (w *Watch) valid(columns int) bool {
	want := 1
	if w.Metric == MetricRows {
		want = 0
	}
	return slices.Contains([]string{MetricRows, MetricNulls, MetricDistinct}, w.Metric) && columns == want &&
		w.Window >= LeastHistory && w.Window <= MaxWindow && w.Threshold > 0 && w.Threshold <= MaxThreshold
}

func (w *Watch) value(table string, columns []string) string {
	switch w.Metric {
	case MetricNulls:
		return "SELECT count(*) - count(" + Name(columns[0]) + ") FROM " + table
	case MetricDistinct:
		return "SELECT count(DISTINCT " + Name(columns[0]) + ") FROM " + table
	}
	return "SELECT count(*) FROM " + table
}

// Band is the range of values that are not anomalous.
type Band struct{ Low, High *big.Rat }

// Band returns median ± threshold × MAD of the past values. MAD is the median absolute deviation, at least a hundredth
// of the median and at least 1: without this floor, any change of a constant value would be an anomaly. Band reports
// false if there are too few values.
func (w *Watch) Band(past []int64) (Band, bool) {
	if len(past) > w.Window {
		past = past[len(past)-w.Window:]
	}
	if len(past) < LeastHistory {
		return Band{}, false
	}
	values := make([]*big.Rat, len(past))
	for i, v := range past {
		values[i] = new(big.Rat).SetInt64(v)
	}
	middle := median(values)
	distances := make([]*big.Rat, len(values))
	for i, v := range values {
		distances[i] = new(big.Rat).Sub(v, middle)
		distances[i].Abs(distances[i])
	}
	spread := median(distances)
	floor := new(big.Rat).Mul(middle, big.NewRat(1, 100))
	for _, least := range []*big.Rat{floor.Abs(floor), big.NewRat(1, 1)} {
		if spread.Cmp(least) < 0 {
			spread = least
		}
	}
	width := new(big.Rat).Mul(spread, big.NewRat(w.Threshold, 1000))
	return Band{new(big.Rat).Sub(middle, width), new(big.Rat).Add(middle, width)}, true
}

// median returns the median of values, exactly. It sorts them.
func median(values []*big.Rat) *big.Rat {
	slices.SortFunc(values, func(a, b *big.Rat) int { return a.Cmp(b) })
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	sum := new(big.Rat).Add(values[half-1], values[half])
	return sum.Mul(sum, big.NewRat(1, 2))
}

// Contains reports whether a value is inside the band.
func (b Band) Contains(value int64) bool {
	v := new(big.Rat).SetInt64(value)
	return v.Cmp(b.Low) >= 0 && v.Cmp(b.High) <= 0
}

// String returns the least and the greatest whole number in the band, as in "94..106".
func (b Band) String() string {
	low, high := ceil(b.Low), floor(b.High)
	return fmt.Sprintf("%s..%s", low, high)
}

// floor returns the greatest integer that is not greater than r.
func floor(r *big.Rat) *big.Int { return new(big.Int).Div(r.Num(), r.Denom()) } // Div rounds down, because the denominator is positive

func ceil(r *big.Rat) *big.Int {
	negated := floor(new(big.Rat).Neg(r))
	return negated.Neg(negated)
}
