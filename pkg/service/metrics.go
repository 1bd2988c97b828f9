package service

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// help describes every metric. Other names are rejected.
var help = map[string]string{
	"servo_http_requests_total":       "Requests answered, by route and status.",
	"servo_refused_callers_total":     "Requests refused because of their caller, by reason.",
	"servo_refused_callbacks_total":   "Callbacks refused because their signature is invalid or has expired.",
	"servo_store_requests_total":      "Requests to the object store, by operation, kind of object and result.",
	"servo_publishes_total":           "Manifest revisions published.",
	"servo_published_rows_total":      "Rows that published revisions changed.",
	"servo_publish_conflicts_total":   "Revisions that another writer published first.",
	"servo_compaction_failures_total": "Compactions that failed and were retried.",
	"servo_queue_tasks_total":         "Queue tasks created, by queue kind and result.",
	"servo_dispatches_waiting":        "Tasks waiting in the fair queue.",
	"servo_handovers_total":           "Hand-overs to another service, by result.",
	"servo_sweeps_total":              "Sweeps, by kind (due or full) and result.",
	"servo_swept_domains_total":       "Domains swept, by kind of sweep.",
	"servo_late_sweeps_total":         "Sweeps that found a wakeup at least 10 minutes late.",
	"servo_swept_groups_total":        "Ledger groups found by sweeps that were never announced.",
	"servo_domains_bytes":             "Approximate memory of the open domains, in bytes.",
	"servo_domains_open":              "Open domains.",
}

// metrics is the process's counters and gauges, served as Prometheus text. It is safe for
// concurrent use.
type metrics struct {
	mu     sync.Mutex
	values map[string]float64 // by name and labels, in the text format
}

func newMetrics() *metrics { return &metrics{values: map[string]float64{}} }

// Add adds n to a series. labels are names and values, alternating.
func (m *metrics) Add(name string, n float64, labels ...string) {
	if help[name] == "" {
		panic("service: metric " + name + " has no help")
	}
	series := name
	if len(labels) > 0 {
		pairs := make([]string, 0, len(labels)/2) //nolint:mnd // names and values
		for i := 0; i+1 < len(labels); i += 2 {
			pairs = append(pairs, fmt.Sprintf("%s=\"%s\"", labels[i], escape.Replace(labels[i+1])))
		}
		series += "{" + strings.Join(pairs, ",") + "}"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[series] += n
}

// escape escapes label values for the text format.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// ServeHTTP implements [http.Handler].
func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	values := maps.Clone(m.values)
	m.mu.Unlock()
	var text strings.Builder
	last := ""
	for _, series := range slices.SortedFunc(maps.Keys(values), compareSeries) {
		name, _, _ := strings.Cut(series, "{")
		if name != last {
			kind := "gauge"
			if strings.HasSuffix(name, "_total") {
				kind = "counter"
			}
			fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", name, help[name], name, kind)
			last = name
		}
		fmt.Fprintf(&text, "%s %g\n", series, values[series])
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text.String()))
}

// compareSeries sorts the series of a metric together.
func compareSeries(a, b string) int {
	nameA, _, _ := strings.Cut(a, "{")
	nameB, _, _ := strings.Cut(b, "{")
	if c := strings.Compare(nameA, nameB); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}
