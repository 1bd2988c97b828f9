// Package metrics describes metrics as data, and declares the interface Recorder, through which services record
// measurements. Package prom implements Recorder with the Prometheus client library. Code that records measurements
// does not import that library. This package is not a stable API.
package metrics

import (
	"net/http"
	"slices"
	"time"
)

// Type is the type of a metric.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric describes a metric.
type Metric struct {
	// Name follows the conventions of Prometheus: it ends with the base unit, if the metric has one. The name of a
	// counter ends with _total, after the unit.
	Name string
	Type Type
	// Help is one sentence.
	Help string
	// Act says when an operator should act.
	Act    string
	Labels []Label
	// Buckets are the upper bounds of a histogram, in seconds.
	Buckets []float64
	// Sampled means that the gauge has no labels, and that a function set with [Recorder.Sample] returns its value.
	Sampled bool
	// Services are the programs that serve the metric; nil: all of them.
	Services []string
}

// Label is a label of a metric. Its values are a closed set, so no caller can increase the number of series beyond a
// fixed bound.
type Label struct {
	Name   string
	Values []string
	// Begin lists the values for which a series exists before anything is measured; nil: all Values.
	Begin []string
}

// Other replaces a measured value that is not in the label's set.
const Other = "other"

// Bound returns the given value, or Other if the value is not in the label's set.
func (l Label) Bound(value string) string {
	if slices.Contains(l.Values, value) {
		return value
	}
	return Other
}

// Of reports whether a service serves the metric.
func (m *Metric) Of(service string) bool {
	return m.Services == nil || slices.Contains(m.Services, service)
}

// Recorder records measurements and serves them over HTTP. It is safe for concurrent use. Its methods take the values
// of labels in the order of the metric's labels.
type Recorder interface {
	http.Handler
	// Begin creates a series with the value 0.
	Begin(m *Metric, values ...string)
	// Add adds n to a counter or a gauge.
	Add(m *Metric, n float64, values ...string)
	// Observe adds a duration to a histogram.
	Observe(m *Metric, d time.Duration, values ...string)
	// Sample sets the function that returns the value of a sampled gauge whenever it is read. Until
	// then the value is 0.
	Sample(m *Metric, value func() float64)
}

// New creates a process's recorder for the given metrics.
type New func([]*Metric) Recorder

// None is a Recorder that records nothing.
type None struct{}

// Begin implements [Recorder].
func (None) Begin(*Metric, ...string) {}

// Add implements [Recorder].
func (None) Add(*Metric, float64, ...string) {}

// Observe implements [Recorder].
func (None) Observe(*Metric, time.Duration, ...string) {}

// Sample implements [Recorder].
func (None) Sample(*Metric, func() float64) {}

// ServeHTTP implements [http.Handler].
func (None) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
