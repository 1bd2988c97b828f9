// Package prom records metrics with the Prometheus client library, and serves them in its formats.
// This package is not a stable API.
package prom

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/servo-orchestration/servo/pkg/metrics"
)

// Recorder records the metrics of one process in its own registry. It is safe for concurrent use.
type Recorder struct {
	http.Handler

	registry   *prometheus.Registry
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
	sampled    map[string]*sampled
}

var _ metrics.Recorder = (*Recorder)(nil)

// sampled computes the value of a gauge when it is read.
type sampled struct {
	value atomic.Pointer[func() float64]
}

func (s *sampled) read() float64 {
	if value := s.value.Load(); value != nil {
		return (*value)()
	}
	return 0
}

// New returns a recorder of the given metrics, and of the process metrics that the Go runtime and the operating
// system provide. It panics if two metrics have the same name or a name is invalid.
func New(all []*metrics.Metric) metrics.Recorder { return NewRecorder(all) }

// NewRecorder works like New, for callers that need the registry.
func NewRecorder(all []*metrics.Metric) *Recorder {
	r := &Recorder{
		registry: prometheus.NewRegistry(), counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{},
		histograms: map[string]*prometheus.HistogramVec{}, sampled: map[string]*sampled{},
	}
	r.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, m := range all {
		r.register(m)
	}
	r.Handler = promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{})
	return r
}

func (r *Recorder) register(m *metrics.Metric) {
	labels := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		labels[i] = l.Name
	}
	switch {
	case m.Type == metrics.Counter:
		r.counters[m.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, labels)
		r.registry.MustRegister(r.counters[m.Name])
	case m.Type == metrics.Gauge && m.Sampled:
		s := &sampled{}
		r.sampled[m.Name] = s
		r.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, s.read))
	case m.Type == metrics.Gauge:
		r.gauges[m.Name] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, labels)
		r.registry.MustRegister(r.gauges[m.Name])
	case m.Type == metrics.Histogram:
		r.histograms[m.Name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, labels)
		r.registry.MustRegister(r.histograms[m.Name])
	default:
		panic(fmt.Sprintf("prom: metric %s has the unknown type %q", m.Name, m.Type))
	}
}

// Registry returns the registry of the process.
func (r *Recorder) Registry() *prometheus.Registry { return r.registry }

// Begin implements [metrics.Recorder].
func (r *Recorder) Begin(m *metrics.Metric, values ...string) {
	values = bound(m, values)
	switch {
	case m.Sampled: // exists
	case m.Type == metrics.Counter:
		r.counters[m.Name].WithLabelValues(values...)
	case m.Type == metrics.Gauge:
		r.gauges[m.Name].WithLabelValues(values...)
	default:
		r.histograms[m.Name].WithLabelValues(values...)
	}
}

// Add implements [metrics.Recorder].
func (r *Recorder) Add(m *metrics.Metric, n float64, values ...string) {
	values = bound(m, values)
	if m.Type == metrics.Counter {
		r.counters[m.Name].WithLabelValues(values...).Add(n)
		return
	}
	r.gauges[m.Name].WithLabelValues(values...).Add(n)
}

// Observe implements [metrics.Recorder]. A negative duration, which results from a clock that was set back, is
// recorded as 0.
func (r *Recorder) Observe(m *metrics.Metric, d time.Duration, values ...string) {
	r.histograms[m.Name].WithLabelValues(bound(m, values)...).Observe(max(d, 0).Seconds())
}

// Sample implements [metrics.Recorder].
func (r *Recorder) Sample(m *metrics.Metric, value func() float64) {
	r.sampled[m.Name].value.Store(&value)
}

// bound replaces every value outside of its label's closed set with [metrics.Other]. It panics unless there is
// one value for each label.
func bound(m *metrics.Metric, values []string) []string {
	if len(values) != len(m.Labels) {
		panic(fmt.Sprintf("prom: metric %s has %d labels, got the values %q", m.Name, len(m.Labels), values))
	}
	for i, l := range m.Labels {
		if v := l.Bound(values[i]); v != values[i] {
			values = slices.Clone(values)
			values[i] = v
		}
	}
	return values
}
